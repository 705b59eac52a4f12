"""Brings a fresh input pipeline to where an interrupted run's pipeline was, reading as little as possible.

A reshuffled order depends on how many iterators were created before. So for past epochs the iterators that
Keras would have created are created again, on plain local copies of the dataset (a distributed iterator costs
a hundred times more), and nothing is pulled from them unless shuffles nest: an inner shuffle draws its seed
when the outer one asks for its first element. An iterator that lives across epochs (`steps_per_epoch`) is
created for real and what was consumed of it is pulled and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_dist_callbacks._compat.fit import RunningFit
from keras_dist_callbacks.errors import BackupError


class _CountingIterator:
    """Stands in for a data iterator and counts what Keras would have pulled from it."""

    def __init__(self) -> None:
        self.pulled = 0

    def __iter__(self) -> _CountingIterator:
        return self

    def __next__(self) -> None:
        raise AssertionError("a past epoch's data is counted, not read")


def replay_epochs(fit: RunningFit, past: int) -> None:
    """Puts the epoch iterator into the state after `past` complete epochs of this run."""
    if past == 0:
        return
    iterator = fit.epoch_iterator
    created = _count_iterators(iterator, past)
    pull = 1 if _shuffles(fit.data) > 1 else 0
    local = getattr(fit.data, "_cloned_datasets", None) or [fit.data]
    for stand_in in created:
        if stand_in is iterator._current_iterator:
            live = iter(iterator._get_iterator())
            drop(live, stand_in.pulled)
            iterator._current_iterator = live
            continue
        for dataset in local:
            drop(iter(dataset), min(pull, stand_in.pulled))


def drop(data: Iterator[Any], count: int, done: int = 0, total: int | None = None) -> None:
    """Pulls `count` elements and forgets them.

    Args:
        data: Where to pull from.
        count: How many.
        done: How many were dropped before, for the message.
        total: How many are to be dropped in all, for the message. Defaults to `count`.

    Raises:
        BackupError: The input has fewer.
    """
    import tensorflow as tf

    for number in range(count):
        try:
            next(data)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise BackupError(
                f"the input ended after {done + number} of the {total or count} batches that the interrupted run had "
                "consumed; fit() must be given the same data as before (the backup is untouched)"
            ) from None


def _count_iterators(iterator: Any, past: int) -> list[_CountingIterator]:
    created: list[_CountingIterator] = []

    def stand_in() -> _CountingIterator:
        created.append(_CountingIterator())
        return created[-1]

    iterator._get_iterator = stand_in
    try:
        for _ in range(past):
            _count_epoch(iterator)
    finally:
        del iterator._get_iterator  # the class' own shows again
    return created


def _count_epoch(iterator: Any) -> None:
    enumerate_steps = type(iterator)._enumerate_iterator.__get__(iterator)
    if not (iterator.steps_per_epoch or iterator._num_batches):
        next(enumerate_steps())  # of unknown length: one iterator, read to its end
        iterator.data_adapter.on_epoch_end()
        return
    for _, _, data in enumerate_steps():
        data.pulled += iterator.steps_per_execution


def _shuffles(dataset: Any) -> int:
    """How many shuffles a pipeline contains, those inside of its functions included."""
    dataset = getattr(dataset, "_original_dataset", dataset)
    count = int("Shuffle" in type(dataset).__name__)
    count += sum(_shuffles(source) for source in dataset._inputs())
    return count + sum(_shuffles_in_function(f) for f in getattr(dataset, "_functions", list)())


def _shuffles_in_function(function: Any) -> int:
    graph = function.function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return sum(node.op.startswith("Shuffle") for node in nodes)
