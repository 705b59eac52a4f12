"""What a tf.data pipeline is made of, as far as resuming must know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def original(dataset: Any) -> Any:
    """The dataset that a distributed one was made from; any other as it is."""
    return getattr(dataset, "_original_dataset", dataset)


def local_copies(dataset: Any) -> list[Any]:
    """Plain datasets that draw the same seeds as the iterators of `dataset` on this worker."""
    return list(getattr(dataset, "_cloned_datasets", None) or [dataset])


def shuffles(dataset: Any) -> int:
    """How many shuffles it contains, those inside of its functions included."""
    return sum(
        _is_shuffle(stage) + sum(op.startswith("Shuffle") for op in _function_ops(stage))
        for stage in stages(original(dataset))
    )


def caches_a_shuffle(dataset: Any) -> bool:
    """Whether a shuffled order is cached: its first pass decides all others."""
    return any(
        "Cache" in type(stage).__name__ and any(shuffles(source) for source in stage._inputs())
        for stage in stages(original(dataset))
    )


def reshuffling_stages(dataset: Any) -> list[Any]:
    """The shuffles that draw a new order for each iterator."""
    return [
        stage
        for stage in stages(original(dataset))
        if _is_shuffle(stage) and getattr(stage, "_reshuffle_each_iteration", True)
    ]


def uses_random_generator(dataset: Any) -> bool:
    """Whether its functions draw from a `tf.random.Generator`, whose state runs ahead of training."""
    return any(op.startswith("RngReadAndSkip") for stage in stages(original(dataset)) for op in _function_ops(stage))


def stages(dataset: Any) -> Iterator[Any]:
    """The dataset and everything upstream of it."""
    yield dataset
    for source in getattr(dataset, "_inputs", list)():
        yield from stages(source)


def _is_shuffle(stage: Any) -> bool:
    return "Shuffle" in type(stage).__name__


def _function_ops(stage: Any) -> Iterator[str]:
    for function in getattr(stage, "_functions", list)():
        graph = function.function.graph.as_graph_def()
        yield from (node.op for node in graph.node)
        yield from (node.op for inner in graph.library.function for node in inner.node_def)
