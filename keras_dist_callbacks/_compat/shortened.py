"""Epochs that end after some batches, for a rehearsal.

The generator that enumerates an epoch's steps is ended. `steps_per_epoch` is not touched: with it Keras would keep one
iterator across epochs, which is another input. What was asked for is kept on the epoch iterator itself, so that
replaying past epochs ends them at the same place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

_MOST = "_kdc_most_batches"


def shorten(iterator: Any, most: int | None) -> None:
    """Makes each epoch of an epoch iterator of Keras' end after so many batches at most; None changes nothing.

    An epoch has at least one step, of `steps_per_execution` batches, and no part of one.
    """
    if most is not None:
        per_step = iterator.steps_per_execution
        setattr(iterator, _MOST, max(per_step, most - most % per_step))
        iterator._enumerate_iterator = functools.partial(own_steps, iterator)


def most_batches(iterator: Any) -> int | None:
    """After how many batches its epochs are ended; None: where Keras ends them."""
    most: int | None = vars(iterator).get(_MOST)
    return most


def own_steps(iterator: Any) -> Iterator[tuple[Any, ...]]:
    """Keras' own enumeration of an epoch's steps, without what is wrapped around it."""
    steps: Iterator[tuple[Any, ...]] = type(iterator)._enumerate_iterator.__get__(iterator)()
    most = most_batches(iterator)
    return steps if most is None else _shortened(iterator, steps, most)


def _shortened(iterator: Any, steps: Iterator[tuple[Any, ...]], most: int) -> Iterator[tuple[Any, ...]]:
    for step in steps:
        yield step
        if step[0] + iterator.steps_per_execution >= most:
            # What Keras does where an epoch ends; an epoch that is one pass is followed by a pass from the start.
            if iterator.steps_per_epoch and iterator._num_batches and iterator.steps_per_epoch >= iterator._num_batches:
                iterator._current_iterator = iter(iterator._get_iterator())
                iterator._steps_seen = 0
            iterator.data_adapter.on_epoch_end()
            return
