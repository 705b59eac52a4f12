"""Which parts of an input pipeline are read by another thread than their consumer's, measured with TensorFlow 2.21."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks._compat import pipeline, rng

_ASYNCHRONOUS = ("Prefetch", "Parallel", "MapAndBatch")


def runs_ahead(stage: Any, whole: Any) -> bool:
    """Whether another thread than its consumer's asks for what lies before a stage.

    TensorFlow makes a serial map without a state parallel where it tunes, and joins a map with the batch behind it,
    which then runs by itself; neither where operations are deterministic, or options say no.
    """
    kind = type(stage).__name__.strip("_")
    if kind.startswith(_ASYNCHRONOUS):
        return True
    if rng.is_deterministic() or _option(whole, "apply_default_optimizations") is False:
        return False
    if kind == "MapDataset":
        state = any(found.random or found.writes or found.python for found in pipeline.function_operations(stage))
        return not state and _tunes(whole) and _option(whole, "map_parallelization") is not False
    behind_map = any(type(source).__name__.strip("_") == "MapDataset" for source in getattr(stage, "_inputs", list)())
    if "Ragged" in kind:
        return True
    return kind == "BatchDataset" and behind_map and _option(whole, "map_and_batch_fusion") is not False


def reads_its_end(dataset: Any) -> bool:
    """Whether the end of what a dataset caches is read, though its consumer asks for no element behind the last.

    Only then a cache is whole in front of a stage that leaves elements over, such as a batch that drops the remainder;
    otherwise the next pass fills it anew. TensorFlow adds a prefetch at the end of a pipeline unless options say no.
    """
    every = pipeline.occurrences(pipeline.original(dataset))
    return _is_read_whole(dataset, [path for path, stage in every if "Cache" in type(stage).__name__])


def draws_at_its_end(dataset: Any) -> bool:
    """The same for stages that draw in the course of a pass: a `repeat` draws once more at the end of its last one."""
    return _is_read_whole(dataset, pipeline.late_places(dataset))


def _is_read_whole(dataset: Any, places: list[tuple[int, ...]]) -> bool:
    whole = pipeline.original(dataset)
    if whole is not dataset:
        return True  # distributed datasets are read ahead for their devices
    behind = [s for path, s in pipeline.occurrences(whole) if any(_lies_behind(path, place) for place in places)]
    if rng.is_deterministic() and any(pipeline.function_stages(stage) for stage in behind):
        return False  # TensorFlow takes the asynchronous parts out then
    allowed = all(_option(whole, name) is not False for name in ("apply_default_optimizations", "inject_prefetch"))
    alone = [stage for stage in behind if "Ragged" not in type(stage).__name__]
    return (allowed and _tunes(whole)) or any(runs_ahead(stage, whole) for stage in alone)


def _lies_behind(path: tuple[int, ...], place: tuple[int, ...]) -> bool:
    return len(path) < len(place) and place[: len(path)] == path


def _tunes(dataset: Any) -> bool:
    return not hasattr(dataset, "options") or dataset.options().autotune.enabled is not False


def _option(dataset: Any, name: str) -> Any:
    options = dataset.options() if hasattr(dataset, "options") else None
    return None if options is None else getattr(options.experimental_optimization, name)
