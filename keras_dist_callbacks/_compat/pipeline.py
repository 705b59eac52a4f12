"""What is known about the ops of a tf.data pipeline."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from keras_dist_callbacks._compat import graphs, rng
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.process import Shared, shared

_UNKNOWN = -2  # tf.data.UNKNOWN_CARDINALITY


def original(dataset: Any) -> Any:
    """Returns the user's dataset that a distributed one, or one with orders of its own, was made from."""
    dataset = getattr(dataset, "_original_dataset", dataset)
    return getattr(dataset, "_kdc_made_from", dataset)


def is_distributed(dataset: Any) -> bool:
    """Returns whether a strategy has made it of another one."""
    return hasattr(dataset, "_original_dataset")


def graph_of(dataset: Any) -> Any:
    """Returns the graph of a dataset, as `graphs.dataset_graph`."""
    return graphs.dataset_graph(dataset._variant_tensor)


def made_from_graph(definition: Any, given: Mapping[str, Any], dataset: Any) -> Any:
    """Returns a dataset that a changed graph of another one describes; it keeps that one, with its functions, alive.

    Args:
        definition: The graph. Its only operation without a reader is the result.
        given: What is in the place of its placeholders, by their names: the function in which the dataset is made takes
            it, so that variables are shared and rows are not copied once more.
        dataset: The other one.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    (end,) = [node for node in definition.node if node.op == "_Retval"]
    definition.node.remove(end)

    def make(*values: Any) -> Any:
        inputs = {f"{name}:0": value for name, value in zip(given, values, strict=True)}
        name = end.input[0] if ":" in end.input[0] else f"{end.input[0]}:0"
        return tf.graph_util.import_graph_def(definition, input_map=inputs, return_elements=[name], name="")[0]

    with tf.device("CPU:0"):
        variant = tf.function(make, autograph=False)(*given.values())
    made = dataset_ops._VariantDataset(variant, dataset.element_spec)
    made._options_attr = dataset._options_attr
    made._kdc_made_from = dataset
    return made


def captures_by_function(dataset: Any) -> dict[str, list[Any]]:
    """Returns the tensors that functions of a dataset captured, by the names that the functions have in its graph."""
    import tensorflow as tf

    found = [function for stage in stages(dataset) for function in _functions(stage)]
    return {tf.compat.as_str(function.name): list(function.captured_inputs) for function in found}


def bytes_held(dataset: Any) -> int:
    """Returns how many bytes of data its graph would hold."""
    found = list({id(stage): stage for stage in stages(dataset)}.values())
    held = [tensor for stage in found for tensor in vars(stage).values()]
    held += [tensor for stage in found for function in _functions(stage) for tensor in function.captured_inputs]
    return sum({id(tensor): _size(tensor) for tensor in held}.values())


def tensors_of(stage: Any) -> list[Any]:
    """Returns the tensors that a stage was made from, ragged and sparse ones as the user gave them.

    Those of the dataset of file names that a stage reads are among them.
    """
    import tensorflow as tf
    from tensorflow.python.data.util import structure

    names = getattr(stage, "_filenames", None)
    of_names = [t for one in stages(names) for t in tensors_of(one)] if hasattr(names, "_inputs") else []
    single = [tensor for tensor in (getattr(stage, "_tensor", None),) if tensor is not None]
    tensors = [*getattr(stage, "_tensors", ()), *single]
    if not any(tensor.dtype == tf.variant for tensor in tensors):
        return [*tensors, *of_names]
    spec = stage.element_spec
    if "Slice" in type(stage).__name__:
        rows = tensors[0].shape[0]
        spec = tf.nest.map_structure(lambda one: one._batch(rows), spec, expand_composites=False)
    return [*tf.nest.flatten(structure.from_tensor_list(spec, tensors)), *of_names]


_NO_SETTINGS = (
    *("_name", "_metadata", "_use_inter_op_parallelism", "_preserve_cardinality", "_force_synchronous", "_filenames"),
    *("_seed", "_seed2"),
)


def settings(stage: Any) -> dict[str, str]:
    """Returns the numbers and texts that a stage was made with, and the seeds of random operations in its functions."""
    import tensorflow as tf

    found = {}
    for name, value in vars(stage).items():
        if tf.is_tensor(value) and value.shape.rank == 0 and value.dtype.is_numpy_compatible:
            value = value.numpy()
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, bool | int | float | str | np.generic) and name not in _NO_SETTINGS:
            found[name.strip("_")] = str(value)
    for function in _functions(stage):
        found.update({f"seed of {op}": seeds for op, seeds in graphs.seeds(function.graph).items()})
    return found


def seeds_of(stage: Any) -> dict[str, str]:
    """Returns the two seeds of a stage that draws by itself."""
    import tensorflow as tf

    found = {name: tf.get_static_value(vars(stage).get(f"_{name}")) for name in ("seed", "seed2")}
    return {name: str(value) for name, value in found.items() if value is not None}


def held_by_functions(stage: Any) -> list[list[Any]]:
    """Returns the tensors that each function of a stage captured, without handles."""
    handles = ("resource", "variant")
    return [[tensor for tensor in f.captured_inputs if tensor.dtype.name not in handles] for f in _functions(stage)]


def is_source(stage: Any) -> bool:
    """Returns whether a stage reads from outside of the pipeline; not of the function of a distributed dataset."""
    return hasattr(stage, "_inputs") and not stage._inputs()


def range_of(stage: Any) -> str | None:
    """Returns start, end and step of the range that `Dataset.enumerate` hides in a dataset without a class."""
    import tensorflow as tf

    if kind_of(stage) != "Variant":
        return None
    nodes = tf.compat.v1.GraphDef.FromString(stage._as_serialized_graph().numpy()).node
    if not {node.op for node in nodes} <= {"Const", "RangeDataset", "_Retval"}:
        return None
    return str([tf.make_ndarray(node.attr["value"].tensor).item() for node in nodes if node.op == "Const"])


def seeded_reshuffles(dataset: Any) -> list[Any]:
    """Returns the stages whose next order follows from a seed and from how often the user's dataset was read before."""
    return [stage for stage in reshuffling_stages(dataset) if has_seed(stage)]


def has_seed(stage: Any) -> bool:
    """Returns whether a stage that draws has a seed, its own or the global one; True of one without such arguments."""
    import tensorflow as tf

    if not hasattr(stage, "_seed2"):
        return True
    return any(tf.get_static_value(seed) != 0 for seed in (stage._seed, stage._seed2))


def hidden_graphs(stage: Any) -> list[Any]:
    """Returns the graphs of datasets that only a graph shows: those that functions captured, and what has no class."""
    import tensorflow as tf

    variants = [t for function in _functions(stage) for t in function.captured_inputs if t.dtype.name == "variant"]
    if type(stage).__name__ == "_VariantDataset" or "Snapshot" in kind_of(stage):
        variants.append(stage._variant_tensor)
    if any(isinstance(spec, tf.data.DatasetSpec) for spec in tf.nest.flatten(stage.element_spec)):
        variants += [tensor for tensor in getattr(stage, "_tensors", ()) if tensor.dtype.name == "variant"]
    return [graphs.dataset_graph(variant) for variant in variants]


def function_graphs(stage: Any) -> list[Any]:
    """Returns the graphs of a stage's functions."""
    return [function.graph.as_graph_def() for function in _functions(stage)]


def local_copies(dataset: Any) -> list[Any]:
    """Plain datasets that draw the same seeds as the iterators of `dataset` on this worker."""
    return list(getattr(dataset, "_cloned_datasets", None) or [dataset])


def replicas_per_batch(dataset: Any) -> int:
    """Returns how many elements of a local copy are one of the dataset's: one for each replica of this worker."""
    workers = getattr(dataset, "_input_workers", None)
    return 1 if workers is None else len(workers.compute_devices_for_worker(0))


def shuffles(dataset: Any) -> int:
    """Returns how many shuffles it contains, those inside of its functions included."""
    return sum(
        _draws(stage) + sum(found.shuffles for found in function_operations(stage))
        for stage in stages(original(dataset))
    )


def caches_randomness(dataset: Any) -> bool:
    """Whether a shuffled order, or what a hidden random state made, is cached: its first pass decides all others."""
    return any(
        shuffles(source) or any(found.writes for stage in stages(source) for found in function_operations(stage))
        for source in _cached(dataset)
    )


def cached_reads(dataset: Any) -> list[graphs.Resource]:
    """Returns the variables that are used for what is cached: their values in the first pass decide all others."""
    return graphs.distinct(r for source in _cached(dataset) for stage in stages(source) for r in captured(stage))


def caches(dataset: Any) -> bool:
    """Returns whether it keeps what its first pass has read."""
    return bool(_cached(dataset))


def _cached(dataset: Any) -> list[Any]:
    caches = [stage for stage in stages(original(dataset)) if kind_of(stage) in _KEEPERS]
    return [source for stage in caches for source in _inputs(stage)]


_KEEPERS = ("Cache", "Snapshot", "LegacySnapshot")


def is_before_a_cache(stage: Any, dataset: Any) -> bool:
    """Returns whether a cache of the dataset keeps what a stage makes: a restart fills it again in a later epoch."""
    return any(stage is found for source in _cached(dataset) for found in stages(source))


def shared_before_files(datasets: Sequence[Any]) -> list[Any]:
    """Returns the stages that keep a pass in files, if what they keep draws from what is also read around them.

    Once the files are complete, a pass does not draw what it drew while they were written: orders, and the state of
    random layers.

    Args:
        datasets: All that one fit reads.
    """
    found = {id(stage): stage for dataset in datasets for stage in stages(original(dataset)) if _keeps_files(stage)}
    around = {key: {k for data in datasets for k in _drawn_by(original(data), without=found[key])} for key in found}
    return [stage for key, stage in found.items() if _drawn_by(stage) & around[key]]


def _keeps_files(stage: Any) -> bool:
    """Returns whether a stage keeps what its first pass has read in a file or directory, and not in memory."""
    path: Any = getattr(stage, "_filename", getattr(stage, "_path", None))
    return kind_of(stage) in _KEEPERS and bool(path.numpy() if hasattr(path, "numpy") else path)


def _drawn_by(dataset: Any, without: Any = None) -> set[int]:
    """The keys of the orders and variables that a dataset draws from."""
    if dataset is without:
        return set()
    own = {resource.key for resource in written(dataset)}
    if _draws(dataset) and getattr(dataset, "_reshuffle_each_iteration", True):
        own.add(id(dataset))
    return own.union(*(_drawn_by(source, without) for source in _inputs(dataset)))


def draws_during_pass(dataset: Any) -> bool:
    """Returns whether a pass makes iterators, each with a draw of its own, only when it gets to them.

    Those of the later parts of `concatenate`, of each pass of a `repeat`, of the parts that `sample_from_datasets` and
    `choose_from_datasets` take from, and of datasets that a function captured. The choices of the latter cannot be
    looked into.
    """
    return any(_is_late(stage) for stage in stages(original(dataset)))


def _is_late(stage: Any) -> bool:
    inputs, kind = _inputs(stage), type(stage).__name__
    if kind == "_VariantDataset":
        return True
    late = inputs[1:] if "Concatenate" in kind or "Directed" in kind else inputs if "Repeat" in kind else []
    return any(_draws(part) for source in late for part in stages(source)) or _captures_datasets(stage)


def mid_pass_draw_paths(dataset: Any) -> list[tuple[int, ...]]:
    """Returns where in `occurrences` the stages are that draw late and not the same again."""
    found = [(path, stage) for path, stage in occurrences(original(dataset)) if _is_late(stage)]
    return [path for path, stage in found if reshuffling_stages(stage)]


def early_termination_paths(dataset: Any) -> list[tuple[tuple[int, ...], Any]]:
    """Stages whose pass may be over before their input's, with where in `occurrences` that input is."""
    found = []
    for path, stage in occurrences(original(dataset)):
        inputs, kind = _inputs(stage), type(stage).__name__.strip("_")
        sizes = [int(source.cardinality()) if hasattr(source, "cardinality") else _UNKNOWN for source in inputs]
        if kind in ("TakeDataset", "TakeWhileDataset"):
            own = int(stage.cardinality())
            if own < 0 or own != sizes[0]:
                found.append(((*path, 0), stage))
        elif kind == "ZipDataset":
            for number, size in enumerate(sizes):
                if any(other != size and (other == _UNKNOWN or size < 0 or 0 <= other < size) for other in sizes):
                    found.append(((*path, number), stage))
    return found


def is_endless(dataset: Any) -> bool:
    """Returns whether a pass over it never ends."""
    import tensorflow as tf

    return bool(int(original(dataset).cardinality()) == tf.data.INFINITE_CARDINALITY)


def _draws(stage: Any) -> bool:
    """Whether each iterator of a stage draws a seed from the dataset object, which its elements depend on."""
    return "Shuffle" in type(stage).__name__ or bool(getattr(stage, "_rerandomize", False)) or _captures_datasets(stage)


def python_functions(dataset: Any) -> list[Any]:
    """Returns the Python functions that the stages were given, such as that of `map`."""
    found = [function for stage in stages(original(dataset)) for function in functions_of(stage)]
    return list({id(function): function for function in found}.values())


def functions_of(stage: Any) -> list[Any]:
    """Returns the Python functions that a stage was given."""
    return [wrapper._func for wrapper in _wrappers(stage) if callable(getattr(wrapper, "_func", None))]


def _captures_datasets(stage: Any) -> bool:
    import tensorflow as tf

    return any(t.dtype == tf.variant for function in _functions(stage) for t in function.captured_inputs)


def reshuffling_stages(dataset: Any) -> list[Any]:
    """Returns the shuffles that draw a new order for each iterator."""
    return [
        stage
        for stage in stages(original(dataset))
        if _draws(stage) and getattr(stage, "_reshuffle_each_iteration", True)
    ]


def stages(dataset: Any) -> Iterator[Any]:
    """The dataset and everything upstream of it."""
    yield dataset
    for source in _inputs(dataset):
        yield from stages(source)


def _inputs(stage: Any) -> list[Any]:
    """Returns the datasets that a stage reads; none of the function of a distributed dataset."""
    return list(stage._inputs()) if hasattr(stage, "_inputs") else []


def occurrences(dataset: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Each stage as often as it is run, with where it is: a dataset that is used twice has two iterators."""
    yield path, dataset
    for number, source in enumerate(_inputs(dataset)):
        yield from occurrences(source, (*path, number))


def captured(stage: Any) -> list[graphs.Resource]:
    """Returns the variables that functions of the stage hold on to."""
    return [resource for function in _functions(stage) for resource in graphs.resources(function)]


def written(stage: Any) -> list[graphs.Resource]:
    """Returns those of them that the functions may change."""
    return [
        resource
        for function in _functions(stage)
        if _looked_through(function).writes
        for resource in graphs.resources(function)
        if resource.key not in graphs.only_read(function)
    ]


def seed_states(datasets: Sequence[Any]) -> set[int]:
    """Returns the keys of the states of Keras' seed generators that functions of datasets change."""
    found = [
        resource for data in datasets if static.has(data, "_inputs") for s in stages(data) for resource in written(s)
    ]
    return {resource.key for resource in found if "seed_generator_state" in resource.name}


def function_stages(stage: Any) -> list[str]:
    """Returns the kinds of datasets that functions of the stage make."""
    ops = (op.type for function in _functions(stage) for op in function.graph.get_operations())
    return [op for op in ops if "Dataset" in op]


def function_operations(stage: Any) -> list[graphs.Operations]:
    """Returns what each function of the stage does."""
    return [_looked_through(function) for function in _functions(stage)]


def _functions(stage: Any) -> list[Any]:
    """Returns what was traced of the functions of a stage."""
    return [wrapper.function for wrapper in _wrappers(stage)]


def _wrappers(stage: Any) -> list[Any]:
    """Returns what TensorFlow puts around the functions of a stage, those that were traced."""
    wrappers = stage._functions() if hasattr(stage, "_functions") else []
    return [wrapper for wrapper in wrappers if hasattr(getattr(wrapper, "function", None), "graph")]


def _looked_through(function: Any) -> graphs.Operations:
    known = shared(_Functions).operations
    found = known.get(function)
    if found is None:
        found = graphs.operations(function.graph)
        within = [graphs.operations_of_dataset(t) for t in function.captured_inputs if t.dtype.name == "variant"]
        found = known[function] = dataclasses.replace(
            found,
            random=(*found.random, *(label for operations in within for label in operations.random)),
            python=(*found.python, *(label for operations in within for label in operations.python)),
            orders=(*found.orders, *(order for operations in within for order in operations.orders)),
        )
    return found


_WITHOUT_CHOICE = (
    *("TensorSlice", "Tensor", "Range", "Random", "SparseTensorSlice", "Generator", "TextLine", "FixedLengthRecord"),
    *("Csv", "Map", "MapAndBatch", "FlatMap", "Filter", "Take", "TakeWhile", "Skip", "Repeat", "Prefetch", "Zip"),
    *("Concatenate", "Cache", "Options", "Window", "Shard", "Shuffle", "ShuffleAndRepeat", "Batch", "PaddedBatch"),
    *("GroupByWindow", "GroupByReducer", "Scan", "Unbatch", "Unique", "DirectedInterleave", "AssertCardinality"),
    *("Rebatch", "Restructured", "Interleave", "DenseToRagged", "DataService", "GlobalShuffle"),
)
"""Stages that never choose an order by themselves: that of another one may be in its graph only."""
_LARGEST_GRAPH = 2**26  # bytes of data, which TensorFlow writes into the graph: a second


def orders(stage: Any, *, loose: bool) -> list[tuple[str, bool]] | None:
    """Returns which datasets of a stage, those in its functions included, run in parallel, and whether in order.

    TensorFlow keeps the argument `deterministic` of `interleave` in the graph of a dataset only.

    Args:
        stage: The stage.
        loose: Whether the options of the pipeline leave the order open where the arguments do not say.

    Returns:
        Operations, each with whether its order is fixed; None if the graph cannot be read.
    """
    found = [order for operations in function_operations(stage) for order in operations.orders]
    kind = kind_of(stage)
    if hasattr(stage, "_deterministic"):
        found += [] if calls_one(stage) else [(kind, stage._deterministic)]
    elif (
        hasattr(stage, "_inputs")  # the function of a distributed dataset has none, and is a condition already
        and kind not in _WITHOUT_CHOICE
        and not (kind == "ParallelInterleave" and int(stage._cycle_length) == 1)
    ):
        is_large = bytes_held(stage) > _LARGEST_GRAPH
        own = None if is_large else graphs.orders_of_dataset(stage._variant_tensor, is_source=is_source(stage))
        if own is None:
            return None
        found += own
    return [(op, value == "true" or (value == "default" and not loose)) for op, value in found]


def kind_of(stage: Any) -> str:
    """Returns the name of a stage's class without what all of them have in common."""
    return type(stage).__name__.strip("_").rstrip("V12").removesuffix("Dataset")


_CALLS = {
    "TensorSlice": "Dataset.from_tensor_slices",
    "Tensor": "Dataset.from_tensors",
    "DenseToRagged": "Dataset.ragged_batch",
    "ParseExample": "parse_example_dataset",
    **{kind: f"{kind}Dataset" for kind in ("TFRecord", "TextLine", "FixedLengthRecord", "Csv")},
}
_SIZES = {"Shuffle": "_buffer_size", "Batch": "_batch_size", "Take": "_count", "Skip": "_count", "Repeat": "_count"}


def method_of(kind: str) -> str:
    """Returns what users call to make a stage, or an operation of a graph, of this kind, such as `Dataset.flat_map`."""
    kind = kind.rstrip("V1234").removesuffix("Dataset").removeprefix("Legacy").removeprefix("Parallel")
    return _CALLS.get(kind) or f"Dataset.{re.sub('(?<=[a-z])(?=[A-Z])', '_', kind).lower()}"


def call_of(stage: Any) -> str:
    """Returns a stage as users wrote it, as far as it tells, such as `Dataset.shuffle(100)`.

    TensorFlow keeps no line of a call, but that of a function: `Dataset.map(augment, train.py:12)`.
    """
    import tensorflow as tf

    kind = kind_of(stage)
    if kind == "FlatMap" and any("Generator" in op for op in function_stages(stage)):
        return "Dataset.from_generator"
    given = functions_of(stage)
    size = tf.get_static_value(getattr(stage, _SIZES.get(kind, ""), None))
    arguments = static.place_in_script(given[0]) if given else [] if size is None or size < 0 else [str(size)]
    return f"{method_of(kind)}({', '.join(arguments)})" if arguments else method_of(kind)


def _size(value: Any) -> int:
    """The bytes of a tensor, or of a list of them."""
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    size, dtype = getattr(getattr(value, "shape", None), "num_elements", lambda: None)(), getattr(value, "dtype", None)
    return int(size or 0) * int(getattr(dtype, "size", 0) or 0)


def calls_one(stage: Any) -> bool:
    """Returns whether a stage was told to make one call of its function at a time."""
    calls = getattr(stage, "_num_parallel_calls", None)
    return calls is not None and int(calls) == 1


@dataclass
class _Functions(Shared):
    """What the graphs of a pipeline's functions hold, by function."""

    operations: WeakKeyDictionary[Any, graphs.Operations] = field(default_factory=WeakKeyDictionary)


_ASYNCHRONOUS = ("Prefetch", "Parallel", "MapAndBatch")


def reads_ahead(stage: Any, whole: Any) -> bool:
    """Returns whether another thread than its consumer's asks for what lies before a stage.

    TensorFlow makes a serial map without a state parallel where it tunes, and joins a map with the batch after it,
    which then runs by itself; neither where operations are deterministic, or options say no.
    """
    kind = type(stage).__name__.strip("_")
    if kind.startswith(_ASYNCHRONOUS):
        return True
    if rng.is_deterministic() or _option(whole, "apply_default_optimizations") is False:
        return False
    if kind == "MapDataset":
        state = any(found.random or found.writes or found.python for found in function_operations(stage))
        return not state and _tunes(whole) and _option(whole, "map_parallelization") is not False
    feeds_on_map = any(type(source).__name__.strip("_") == "MapDataset" for source in _inputs(stage))
    if "Ragged" in kind:
        return True
    return kind == "BatchDataset" and feeds_on_map and _option(whole, "map_and_batch_fusion") is not False


def reads_past_last_element(dataset: Any) -> bool:
    """Returns whether the end of what a dataset caches is read, though its consumer asks for no element after the last.

    Only then a cache is intact before a stage that leaves elements over, such as a batch that drops the remainder;
    otherwise the next pass fills it again. TensorFlow adds a prefetch at the end of a pipeline unless options say no.
    """
    every = occurrences(original(dataset))
    return _is_read_whole(dataset, [path for path, stage in every if kind_of(stage) in _KEEPERS])


def draws_at_end_of_pass(dataset: Any) -> bool:
    """As `reads_past_last_element`, of stages that draw within a pass: a `repeat` draws once more at its last end."""
    return _is_read_whole(dataset, mid_pass_draw_paths(dataset))


def reads_variables_ahead(dataset: Any, keys: Collection[int]) -> bool:
    """Returns whether functions of a dataset may read these variables long before training asks for the batch.

    Other threads do, and so does a stage that keeps elements back, such as a shuffle.
    """
    every = list(occurrences(original(dataset)))
    places = [path for path, stage in every if any(r.key in keys for r in captured(stage))]
    later = [stage for path, stage in every if any(path == place[: len(path)] != place for place in places)]
    kept_back = [stage for stage in later if type(stage).__name__.strip("_") not in _PASS_ON]
    return bool(kept_back) or _is_read_whole(dataset, places)


_PASS_ON = (
    "MapDataset",
    "BatchDataset",
    "FilterDataset",
    "TakeDataset",
    "SkipDataset",
    "RepeatDataset",
    "OptionsDataset",
)


def _is_read_whole(dataset: Any, places: list[tuple[int, ...]]) -> bool:
    if is_distributed(dataset):
        return True  # they are read ahead for their devices
    whole = original(dataset)
    later = [s for path, s in occurrences(whole) if any(path == place[: len(path)] != place for place in places)]
    if rng.is_deterministic() and any(function_stages(stage) for stage in later):
        return False  # TensorFlow takes the asynchronous parts out then
    allowed = all(_option(whole, name) is not False for name in ("apply_default_optimizations", "inject_prefetch"))
    alone = [stage for stage in later if "Ragged" not in type(stage).__name__]
    return (allowed and _tunes(whole)) or any(reads_ahead(stage, whole) for stage in alone)


def _tunes(dataset: Any) -> bool:
    return not hasattr(dataset, "options") or dataset.options().autotune.enabled is not False


def _option(dataset: Any, name: str) -> Any:
    options = dataset.options() if hasattr(dataset, "options") else None
    return None if options is None else getattr(options.experimental_optimization, name)
