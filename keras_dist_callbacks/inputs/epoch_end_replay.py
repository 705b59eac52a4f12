"""A PyDataset's `on_epoch_end`, called again for past epochs with the random states that it had then."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import rng
from keras_dist_callbacks.backups.snapshot import SharedArray, SharedTensor

_TENSOR = "input/epoch_end/"


class EpochEndReplay:
    """Notes the random states before each `on_epoch_end` of an input, which may shuffle with them.

    Args:
        source: What the user passed to `fit()`. Nothing is noted unless it is a PyDataset whose class has an
            `on_epoch_end` of its own.
        epoch_begun: Called after its own `on_epoch_begin`, if it has one.
        epoch_read: Called before its `on_epoch_end`, in an epoch that is trained.
    """

    def __init__(self, source: Any, epoch_begun: Callable[[], None], epoch_read: Callable[[], None]) -> None:
        self._source = source if _has_own(source, "on_epoch_end") else None
        self._epoch_begun, self._epoch_read = epoch_begun, epoch_read
        self._begins = source if _has_own(source, "on_epoch_begin") else None
        if self._begins is not None:
            self._begin = self._begins.on_epoch_begin
            self._begins.on_epoch_begin = self._begin_called
        self._states: list[SharedArray] = []
        self._past: list[Any] = []
        if self._source is not None:
            self._original = self._source.on_epoch_end
            self._source.on_epoch_end = self._called

    def capture(self) -> dict[str, SharedTensor]:
        """The tensors of a snapshot, one for each call so far; those of past epochs are not written again."""
        return {f"{_TENSOR}{number}": held for number, held in enumerate(self._states)}

    def replay(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """From now on, as many calls as were noted get the states from then."""
        count = sum(name.startswith(_TENSOR) for name in tensors)
        self._past = [json.loads(bytes(tensors[f"{_TENSOR}{number}"])) for number in range(count)]

    def replayed(self) -> None:
        """Calls are new again."""
        self._past = []

    def close(self) -> None:
        """Takes the wrapper away."""
        for source, hook in ((self._source, "on_epoch_end"), (self._begins, "on_epoch_begin")):
            if source is not None:
                source.__dict__.pop(hook, None)

    def _begin_called(self) -> None:
        self._begin()
        self._epoch_begun()

    def _called(self) -> None:
        if self._past:
            rng.restore(self._past.pop(0))
        else:
            self._epoch_read()
        text = json.dumps(rng.capture()).encode()
        self._states.append(SharedArray(np.frombuffer(text, np.uint8)))
        self._original()


def _has_own(source: Any, hook: str) -> bool:
    import keras

    base = keras.utils.PyDataset
    return isinstance(source, base) and getattr(type(source), hook, None) is not getattr(base, hook, None)
