"""What can be known about an input: its state, its order, its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras_dist_callbacks._compat import graphs, pipeline, rng
from keras_dist_callbacks.base import static

_ADAPTERS = {
    "PyDatasetAdapter": "the PyDataset",
    "GeneratorDataAdapter": "the Python generator",
    "TorchDataLoaderAdapter": "the torch DataLoader",
    "GrainDatasetAdapter": "the Grain dataset",
}
_SECONDS = 5.0
"""How long the dispatcher of a tf.data service is waited for."""


class PythonCode(NamedTuple):
    """Python code of an input.

    Attributes:
        name: What users call it.
        is_dataset: It is a PyDataset.
        is_ahead: It may run while states are put back, or in no fixed order: a plain generator's thread draws
            meanwhile, of parallel calls no one orders the draws, a cache is filled again in a later epoch.
        functions: The functions of stages in which it is; none of other inputs.
    """

    name: str
    is_dataset: bool = False
    is_ahead: bool = False
    functions: tuple[Any, ...] = ()


@dataclass(frozen=True)
class InputInspection:
    """What a resume must know of an input in addition to its position.

    Attributes:
        variables: Those that functions of the pipeline capture and change, such as the state of a Keras random layer.
        reads: Those that they only read.
        cached: Those whose values a cache has taken over in its first pass.
        python: Python code in it, by what users call it.
        found: Why two uninterrupted runs differ, and what could not be looked into: codes of findings, and what fills
            their sentences.
    """

    variables: tuple[graphs.Resource, ...] = ()
    reads: tuple[graphs.Resource, ...] = ()
    cached: tuple[graphs.Resource, ...] = ()
    python: tuple[PythonCode, ...] = ()
    found: tuple[tuple[str, ...], ...] = ()


def inspect_dataset(dataset: Any, adapter: Any = None, source: Any = None) -> InputInspection:
    """Looks for what the stages of a dataset hide.

    Args:
        dataset: A `tf.data.Dataset`, or a distributed one.
        adapter: Keras' adapter that made it of what the user passed.
        source: What the user passed.
    """
    kind = type(adapter).__name__
    if kind == "ArrayDataAdapter":
        return InputInspection()
    if kind in _ADAPTERS:
        name = "" if kind == "GeneratorDataAdapter" or source is None else f" {type(source).__name__}"
        parallel = _parallel_reads(source)
        is_ahead = bool(parallel) or kind in ("GeneratorDataAdapter", "GrainDatasetAdapter")
        code = PythonCode(_ADAPTERS[kind] + name + parallel, kind == "PyDatasetAdapter", is_ahead)
        return InputInspection(python=(code,))
    if not hasattr(pipeline.original(dataset), "_inputs"):
        return InputInspection(python=(PythonCode("the function of the distributed dataset"),))
    stages = list({id(stage): stage for stage in pipeline.stages(pipeline.original(dataset))}.values())
    variables = graphs.distinct(r for stage in stages for r in pipeline.written(stage))
    changed = {variable.key for variable in variables}
    reads = [r for r in graphs.distinct(r for s in stages for r in pipeline.captured(s)) if r.key not in changed]
    found = [*_loose_orders(dataset, stages), *_services(stages), *_shared_draws(stages)]
    found += [*_races(dataset, stages, variables), *_early_ends(dataset)]
    if any(operations.tables for stage in stages for operations in pipeline.function_operations(stage)):
        found.append(("input-table",))
    cached = [r for r in pipeline.cached_reads(dataset) if r.key not in changed]
    python = tuple(_python(stages, dataset))
    return InputInspection(tuple(variables), tuple(reads), tuple(cached), python, tuple(dict.fromkeys(found)))


def passes_differ(dataset: Any) -> bool:
    """Returns whether a pass over a dataset may have other elements, or another order, than the pass before it."""
    if pipeline.reshuffling_stages(dataset):
        return True
    functions = [found for stage in pipeline.stages(dataset) for found in pipeline.function_operations(stage)]
    if any(found.random or found.writes for found in functions):
        return True
    hidden = inspect_dataset(dataset)
    return bool(hidden.python or hidden.found or hidden.reads)


def inspect_source(source: Any) -> InputInspection:
    """Returns the same for what the user passed, before Keras made an adapter of it; arrays hide nothing."""
    import keras
    import tensorflow as tf

    if static.is_a(source, tf.data.Dataset):
        return inspect_dataset(source)
    if static.is_a(source, keras.utils.PyDataset):
        parallel = _parallel_reads(source)
        name = f"the PyDataset {type(source).__name__}{parallel}"
        return InputInspection(python=(PythonCode(name, is_dataset=True, is_ahead=bool(parallel)),))
    if static.has(source, "__next__"):
        return InputInspection(python=(PythonCode("the Python generator", is_ahead=True),))
    return InputInspection()


def _parallel_reads(source: Any) -> str:
    """Words about a PyDataset that several threads or processes read, as Keras' adapter decides it."""
    import keras

    if not static.is_a(source, keras.utils.PyDataset):
        return ""
    workers, processes = getattr(source, "workers", 0), getattr(source, "use_multiprocessing", False)
    if not isinstance(workers, int) or not (workers > 1 or (workers > 0 and processes)):
        return ""
    return f" (read in parallel: workers={workers}{', use_multiprocessing=True' if processes else ''})"


def _python(stages: list[Any], dataset: Any) -> Iterator[PythonCode]:
    found = [stage for stage in stages if any(part.python for part in pipeline.function_operations(stage))]
    if not found:
        return
    name, is_ahead = f"the Python code in {pipeline.call_of(found[0])}", True
    if len(found) > 1:  # each may be read by a thread of its own
        name += " and of other stages (perhaps in parallel)"
    elif _is_parallel(found[0]):
        name += " (called in parallel)"
    else:
        is_ahead = False
    if any(pipeline.is_before_a_cache(stage, dataset) for stage in found):
        name, is_ahead = f"{name} before a cache()", True
    functions = tuple(function for stage in found for function in pipeline.functions_of(stage))
    yield PythonCode(name, is_ahead=is_ahead, functions=functions)


def _loose_orders(dataset: Any, stages: list[Any]) -> Iterator[tuple[str, ...]]:
    """Whose order is left open, and of whom that could not be read."""
    whole = pipeline.original(dataset)
    loose = hasattr(whole, "options") and whole.options().deterministic is False
    for stage in stages:
        found = pipeline.orders(stage, loose=loose)
        if found is None:
            yield "loose-order-unread", pipeline.call_of(stage)
        for op, is_fixed in found or ():
            if not is_fixed:
                is_own = pipeline.method_of(op) == pipeline.method_of(pipeline.kind_of(stage))
                yield "loose-order", pipeline.call_of(stage) if is_own else pipeline.method_of(op)


def _shared_draws(stages: list[Any]) -> Iterator[tuple[str, ...]]:
    """Parallel calls that draw; where operations are deterministic, tf.data makes them one after the other."""
    parallel = [] if rng.is_deterministic() else [stage for stage in stages if _is_parallel(stage)]
    for stage in parallel:
        for found in pipeline.function_operations(stage):
            if found.random or found.writes:
                what = found.random[0] if found.random else "a random layer or a variable"
                yield "parallel-draws", pipeline.call_of(stage), what


def _races(dataset: Any, stages: list[Any], variables: list[graphs.Resource]) -> Iterator[tuple[str, ...]]:
    """Variables that two threads of the pipeline use: some of their stages lie before an asynchronous one."""
    whole = pipeline.original(dataset)
    occurrences = list(pipeline.occurrences(whole))
    ahead = [path for path, stage in occurrences if pipeline.reads_ahead(stage, whole)]
    for variable in variables:
        keyed = {id(s) for s in stages if variable.key in {r.key for r in pipeline.captured(s)}}
        users = [path for path, stage in occurrences if id(stage) in keyed]
        if any(0 < sum(user[: len(path)] == path and user != path for user in users) < len(users) for path in ahead):
            yield "racing-parts", variable.name


def _early_ends(dataset: Any) -> Iterator[tuple[str, ...]]:
    """A part that draws in the course of a pass is read ahead and left early: how far it came was a matter of time."""
    whole = pipeline.original(dataset)
    ahead = [path for path, stage in pipeline.occurrences(whole) if pipeline.reads_ahead(stage, whole)]
    late = pipeline.mid_pass_draw_paths(dataset)
    for end, stage in pipeline.early_termination_paths(dataset):
        if any(place[: len(path)] == path and path[: len(end)] == end for place in late for path in ahead):
            yield "early-end", pipeline.call_of(stage)


def _services(stages: list[Any]) -> Iterator[tuple[str, ...]]:
    """The tf.data services with several workers, and those that could not be asked."""
    for stage in stages:
        if pipeline.kind_of(stage) != "DataService":
            continue
        address = _text(stage._address)
        workers = worker_count(address) if _text(stage._protocol) == "grpc" else None
        if workers is None:
            yield "service-not-asked", address
        elif workers > 1:
            yield "service-workers", address, str(workers)


def worker_count(address: str) -> int | None:
    """Returns how many workers a tf.data service has; None if its dispatcher cannot be asked.

    Clients have no other way to learn it.
    """
    import grpc  # TensorFlow depends on it
    import tensorflow as tf

    try:
        with grpc.insecure_channel(address) as channel:
            ask = channel.unary_unary("/tensorflow.data.DispatcherService/GetWorkers")
            answer = ask(b"", timeout=_SECONDS)
        return len(tf.train.BytesList.FromString(answer).value)  # this message too is one repeated field, the first
    except Exception:  # noqa: BLE001 - whatever it is, the service cannot be asked
        return None


def _text(tensor: Any) -> str:
    return str(tensor.numpy().decode(errors="replace"))


def _is_parallel(stage: Any) -> bool:
    can_be = type(stage).__name__.strip("_").startswith(("Parallel", "MapAndBatch"))
    return can_be and not pipeline.calls_one(stage)
