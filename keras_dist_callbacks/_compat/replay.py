"""Brings fresh input pipelines to where an interrupted run's pipelines were, reading as little as possible.

A reshuffled order depends on how many iterators were created before. So for past epochs the iterators that
Keras would have created are created again, in their order, on plain local copies of the datasets (a distributed
iterator costs a hundred times more), and nothing is pulled from them. Exceptions: where shuffles nest, one
element is, because an inner shuffle draws its seed when the outer one asks for its first element; where a
shuffle is cached, the first pass is read, as far as it was. An iterator that lives across epochs
(`steps_per_epoch`) is created for real, and what was consumed of it is pulled and dropped.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from keras_dist_callbacks._compat import pipeline
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks._compat.shortened import most_batches, own_steps
from keras_dist_callbacks.base.errors import BackupError

_ALL = 2**62
_NONE: Mapping[int, int] = MappingProxyType({})
# Keras gives arrays the same order in every epoch, and PyDatasets one from Python's random state, which is restored.
_ITERATORS_WITHOUT_INFLUENCE = ("ArrayDataAdapter", "PyDatasetAdapter")


class _StandIn:
    """Stands in for a data iterator and counts what Keras would have pulled from it."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.pulled = 0

    def __iter__(self) -> _StandIn:
        return self

    def __next__(self) -> None:
        raise AssertionError("a past epoch's data is counted, not read")


def replay_epochs(
    fit: RunningFit,
    first: int,
    epoch: int,
    validations: int,
    *,
    training: bool = True,
    before_reading: Callable[[], None] = lambda: None,
    by_count: Mapping[int, int] = _NONE,
    begun: Callable[[Any, bool], None] = lambda iterator, is_training: None,
) -> None:
    """Puts the iterators into the state before `epoch`.

    Args:
        fit: The running fit, before its epoch loop.
        first: The epoch with which the interrupted run had begun.
        epoch: The epoch to continue with.
        validations: How many validations were complete.
        training: Whether the training data need it.
        before_reading: Called before an iterator of the training data that lives across epochs is read.
        by_count: Batches of the epochs whose iterator did not come to its end, for an input of unknown length.
        begun: Called with each iterator before anything is read of it, and whether it is one of the training data.
    """
    if epoch <= first:
        return
    iterator = fit.epoch_iterator if training else None
    validation = fit.validation_iterator() if validations else None
    created: list[_StandIn] = []
    with _replaced_iterators(iterator, created), _replaced_iterators(validation, created):
        for past in range(first, epoch):
            if iterator is not None:
                _count_epoch(iterator, by_count.get(past))
            if validation is not None and validations and fit.validates(past):
                if fit.builds_before_evaluating:
                    *_, data = next(own_steps(validation))
                    data.pulled = 1
                validation.reset()
                _count_epoch(validation)
                validations -= 1
    cached: set[int] = set()
    for stand_in in created:
        _recreate(stand_in, stand_in.owner is iterator, cached, before_reading, begun)


def read_epochs(
    fit: RunningFit,
    first: int,
    epoch: int,
    validations: int,
    advance: Callable[[int], None] = lambda count: None,
    by_count: Mapping[int, int] = _NONE,
) -> None:
    """Reads past epochs again, for an input whose own Python state moves by being read.

    Args:
        fit: The running fit, before its epoch loop.
        first: The epoch with which the interrupted run had begun.
        epoch: The epoch to continue with.
        validations: How many validations were complete.
        advance: Called with each number of batches of the training data that were read.
        by_count: As in `replay_epochs`.
    """
    validation = fit.validation_iterator() if validations else None
    for past in range(first, epoch):
        _read_epoch(fit.epoch_iterator, advance, by_count.get(past))
        if validation is not None and validations and fit.validates(past):
            if fit.builds_before_evaluating:
                *_, data = next(own_steps(validation))
                pull(data, 1)
            validation.reset()
            _read_epoch(validation, lambda count: None)
            validations -= 1


def _read_epoch(iterator: Any, advance: Callable[[int], None], by_count: int | None = None) -> None:
    for begin, *_, data in own_steps(iterator):
        if by_count is not None and begin >= by_count:
            iter(iterator._get_iterator())
            iterator.data_adapter.on_epoch_end()
            return
        count = pull(data, iterator.steps_per_execution)
        advance(count)
        if count < iterator.steps_per_execution:  # what Keras does when an input ends
            iterator._current_iterator = None
            iterator.data_adapter.on_epoch_end()
            return


def drop_steps(steps: Iterator[tuple[int, int, Any]], batches: int, fit: RunningFit, *, may_end: bool = False) -> None:
    """Takes an epoch's first batches from the steps of a fit, each its first and last batch and an iterator.

    Args:
        steps: The steps.
        batches: How many batches to take.
        fit: The running fit.
        may_end: Whether the epoch may have fewer, as one has whose input is another one in each run.

    Raises:
        BackupError: There are fewer.
    """
    done = 0
    while done < batches:
        item = next(steps, None)
        if item is None:
            drop(iter(()), batches - done, batches, at_least=0 if may_end else None)
            return
        ragged = fit.known_length is None and done + fit.steps_per_execution >= batches
        begin, end, data = item
        drop(data, min(end + 1, batches) - begin, batches, at_least=0 if may_end else 1 if ragged else None)
        done = end + 1


def drop(data: Iterator[Any], count: int, total: int, *, at_least: int | None = None) -> None:
    """Pulls `count` elements and forgets them.

    Args:
        data: Where to pull from.
        count: How many.
        total: How many are to be dropped in all, for the message.
        at_least: How many there must be. Defaults to `count`.

    Raises:
        BackupError: The input has fewer.
    """
    if pull(data, count) < (count if at_least is None else at_least):
        raise BackupError(
            f"the input ended before the {total} batches that the interrupted run had consumed; give fit() the same "
            "data as before (the backup is unchanged)"
        )


def replay_iterators(dataset: Any, past: int) -> None:
    """Puts a dataset of a custom loop into the state after `past` passes, each with an iterator of its own."""
    if past == 0:
        return
    wanted = 1 if pipeline.shuffles(dataset) > 1 else 0
    for number in range(past):
        whole = number == 0 and pipeline.caches_randomness(dataset)
        whole |= pipeline.draws_during_pass(dataset) and not pipeline.is_endless(dataset)
        for local in pipeline.local_copies(dataset):
            pull(iter(local), _ALL if whole else wanted)


@contextlib.contextmanager
def _replaced_iterators(iterator: Any, created: list[_StandIn]) -> Iterator[None]:
    """Lets an epoch iterator, if there is one, create stand-ins instead of data iterators."""

    def create() -> _StandIn:
        created.append(_StandIn(iterator))
        return created[-1]

    if iterator is None:
        yield
        return
    iterator._get_iterator = create
    try:
        yield
    finally:
        del iterator._get_iterator  # the class' own shows again


def _count_epoch(iterator: Any, by_count: int | None = None) -> None:
    steps = own_steps(iterator)
    if not (iterator.steps_per_epoch or iterator._num_batches):
        *_, data = next(steps)  # of unknown length: one iterator, read to its end, mostly
        data.pulled = by_count or most_batches(iterator) or _ALL
        if by_count:
            iterator._get_iterator()
        iterator.data_adapter.on_epoch_end()
    else:
        for *_, data in steps:
            data.pulled += iterator.steps_per_execution
    # Keras would take for the next pass what several workers of a PyDataset have read of one that is only counted.
    enqueuer = getattr(iterator.data_adapter, "enqueuer", None)
    if enqueuer is not None and iterator.data_adapter.py_dataset.num_batches is not None:
        with contextlib.suppress(queue.Empty):
            while True:
                enqueuer.ready_queue.get_nowait()


def _recreate(
    stand_in: _StandIn,
    is_training: bool,
    cached: set[int],
    before_reading: Callable[[], None],
    begun: Callable[[Any, bool], None],
) -> None:
    iterator = stand_in.owner
    if stand_in is iterator._current_iterator and iterator.steps_per_epoch:
        if stand_in.pulled and is_training:
            before_reading()
        live = iter(iterator._get_iterator())
        begun(live, is_training)
        drop(live, stand_in.pulled, stand_in.pulled)
        iterator._current_iterator = live
        return
    if type(iterator.data_adapter).__name__ in _ITERATORS_WITHOUT_INFLUENCE:
        return
    dataset = iterator._distributed_dataset
    wanted = 1 if pipeline.shuffles(dataset) > 1 else 0
    if pipeline.caches_randomness(dataset) and stand_in.pulled and id(iterator) not in cached:
        cached.add(id(iterator))
        wanted = _ALL if pipeline.reads_past_last_element(dataset) else stand_in.pulled
    elif pipeline.draws_during_pass(dataset):
        at_end = pipeline.draws_at_end_of_pass(dataset) and not pipeline.is_endless(dataset)
        wanted = _ALL if at_end and stand_in.pulled and not iterator.steps_per_epoch else stand_in.pulled
    count = min(wanted, stand_in.pulled) * pipeline.replicas_per_batch(dataset) if wanted < _ALL else _ALL
    for local in pipeline.local_copies(dataset):
        made = iter(local)
        begun(made, is_training)
        pull(made, count)


def pull(data: Iterator[Any], count: int) -> int:
    """Pulls up to `count` elements and forgets them; how many there were."""
    import tensorflow as tf

    for number in range(count):
        try:
            next(data)
        except (StopIteration, tf.errors.OutOfRangeError):
            return number
    return count
