"""The graphs of a dataset and of a train function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from keras_dist_callbacks._compat import model_parts
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks._compat.variables import SharedRead, hold_resource, in_files, missing_in_files
from keras_dist_callbacks.base import static

_RANDOM = (
    *("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "SampleDistortedBoundingBox"),
    *("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler"),
    *("FixedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler", "AllCandidateSampler", "FractionalM"),
)
_NO_RANDOM_NUMBERS = ("RandomDataset", "RandomShuffleQueue", "RandomIndexShuffle")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_WRITES = (
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "RngReadAndSkip",
    "RngSkip",
    "StatefulUniform",
    "StatefulStandard",
)
_QUEUES = ("QueueEnqueue", "QueueDequeue", "Barrier", "Stage", "Unstage", "MapStage", "OrderedMapStage", "Stack")
_TABLE_WRITES = ("LookupTableInsert", "LookupTableRemove")
_UNORDERED_SUMS = {
    "ResourceScatter": "sparse updates, as of an Embedding",
    "Bincount": "a weighted bincount",
    "DenseBincount": "a weighted bincount",
    "CropAndResizeGradImage": "the gradient of crop_and_resize",
}
"""Operations that several threads of a CPU add up as they finish: measured with TensorFlow 2.21, of some hundred."""
_ORDERED_SCATTERS = ("ResourceScatterNd", "ResourceScatterUpdate", "ResourceScatterMax", "ResourceScatterMin")


@dataclass(frozen=True)
class Resource:
    """A variable as a graph knows it.

    Attributes:
        name: The variable's name, without the numbering that depends on what was made before.
        handle: Its resource.
        dtype: Its TensorFlow type.
    """

    name: str
    handle: Any
    dtype: Any

    def hold(self) -> SharedRead:
        """Returns its value now, as `VariableSet.hold` reads it."""
        return hold_resource(self.handle, self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, also before the first step has given it a value: a trace may only note what that value will be."""
        fixed = self.handle._handle_data.shape_and_type[0].shape
        if fixed.unknown_rank or any(dim.size < 0 for dim in fixed.dim):
            return tuple(self.hold().array().shape)
        return tuple(int(dim.size) for dim in fixed.dim)

    def assign(self, value: np.ndarray[Any, Any]) -> None:
        """Writes it."""
        import tensorflow as tf

        tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.convert_to_tensor(np.array(value), self.dtype))

    @property
    def key(self) -> int:
        """The same for all captures of one variable."""
        return id(self.handle)


def resources(function: Any) -> list[Resource]:
    """Returns the variables that a concrete function captured, in the order in which its trace met them.

    What TensorFlow captured for itself does not count: the token that orders collective operations is a resource
    without a variable that the graph knows.
    """
    import tensorflow as tf

    names = {id(variable.handle): variable.name for variable in function.graph.variables}
    found = []
    for tensor in function.captured_inputs:
        data = getattr(tensor, "_handle_data", None)
        if id(tensor) in names and data is not None and data.is_set and data.shape_and_type:
            dtype = tf.as_dtype(data.shape_and_type[0].dtype)
            if dtype not in (tf.string, tf.resource, tf.variant):
                found.append(Resource(names[id(tensor)], tensor, dtype))
    return found


_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


def only_read(function: Any) -> set[int]:
    """Returns the keys of the captured variables that a concrete function itself reads and does nothing else with."""
    inside = {id(outer): inner for outer, inner in function.graph.captures}
    found = {resource.key: inside.get(id(resource.handle)) for resource in resources(function)}
    return {
        key for key, inner in found.items() if inner is not None and all(op.type in _READS for op in inner.consumers())
    }


def missing_in_files_of_step(model: Any) -> list[str]:
    """Returns the names of variables that the train step changes and that Keras writes into no file."""
    functions = traces(model)
    if not functions:
        return [name for name, _ in missing_in_files(model)]
    held = in_files(model)
    kept = set.intersection(*(only_read(function) for function in functions))
    return [found.name for found in captured(functions) if found.key not in held | kept]


@dataclass(frozen=True)
class Operations:
    """What a graph does that a backup must know of.

    Attributes:
        random: Operations of TensorFlow that keep a random state in their kernel, as `type (name)`.
        python: Calls of Python functions, the same way.
        writes: Whether it changes variables.
        tables: Whether it changes lookup tables.
        shuffles: How many datasets within it shuffle.
        queues: Operations on queues and the like, the same way.
        unordered: What it adds up in no fixed order on several threads of a CPU, unless operations are deterministic.
        orders: Of the datasets that it makes and that may run in parallel: the operation, and "true", "false" or
            "default", which says whether their order is the same in each pass.
    """

    random: tuple[str, ...]
    python: tuple[str, ...]
    writes: bool
    tables: bool
    shuffles: int
    queues: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    orders: tuple[tuple[str, str], ...] = ()


def operations(graph: Any) -> Operations:
    """Looks through a graph and the functions that it calls."""
    return operations_of(graph.as_graph_def())


def is_random(op: str) -> bool:
    """Returns whether operations of a type keep a random state in their kernel."""
    return op.startswith(_RANDOM) and not op.startswith(_NO_RANDOM_NUMBERS)


def operations_of_dataset(variant: Any) -> Operations:
    """Looks through a dataset of which only the tensor is known, as a function holds it that captured one."""
    definition = dataset_graph(variant)
    if definition is None:
        return Operations((), ("a dataset that cannot be inspected",), False, False, 0)
    return operations_of(definition)


def dataset_graph(variant: Any) -> Any:
    """Returns the graph of a dataset, with the data that it holds; None of one that has none, or a too large one."""
    import tensorflow as tf

    ignores_state = 1
    try:
        text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignores_state).numpy()
        return tf.compat.v1.GraphDef.FromString(text)
    except Exception:  # noqa: BLE001 - more than a GraphDef can hold, or an operation that has no graph
        return None


def orders_of_dataset(variant: Any, *, is_source: bool) -> list[tuple[str, str]] | None:
    """Returns the `orders` of a dataset and of its functions, of all that precedes it too if that cannot be seen.

    Args:
        variant: The dataset's tensor.
        is_source: Whether no other stage precedes it, as far as Python knows.
    """
    definition = dataset_graph(variant)
    if definition is None:
        return None
    ends = {name for node in definition.node if node.op == "_Retval" for name in node.input}
    own = [node for node in definition.node if is_source or node.name in ends]
    return _orders([*own, *(node for inner in definition.library.function for node in inner.node_def)])


def _orders(nodes: Iterable[Any]) -> list[tuple[str, str]]:
    return [(node.op, node.attr["deterministic"].s.decode()) for node in nodes if "deterministic" in node.attr]


def operations_of(definition: Any) -> Operations:
    """Looks through a GraphDef and the functions in it."""
    found = [*definition.node, *(node for inner in definition.library.function for node in inner.node_def)]
    nodes = [(node.op, node.name) for node in found]
    return Operations(
        tuple(_label(op, name) for op, name in nodes if is_random(op)),
        tuple(_label(op, name) for op, name in nodes if op in _PYTHON),
        any(op.startswith(_WRITES) for op, _ in nodes),
        any(op.startswith(_TABLE_WRITES) for op, _ in nodes),
        sum(op.startswith("Shuffle") for op, _ in nodes),
        tuple(_label(op, name) for op, name in nodes if op.startswith(_QUEUES)),
        tuple(label for node in found if (label := _unordered_sum(node))),
        tuple(_orders(found)),
    )


def _unordered_sum(node: Any) -> str | None:
    import tensorflow as tf

    name = next((name for name in _UNORDERED_SUMS if node.op.startswith(name)), None)
    if name is None or node.op.startswith(_ORDERED_SCATTERS):
        return None
    types = [node.attr[key].type for key in ("dtype", "T") if key in node.attr]
    is_integer = any(tf.as_dtype(number).is_integer for number in types if number)
    is_multi_hot = "binary_output" in node.attr and node.attr["binary_output"].b  # nothing is added up
    return None if is_integer or is_multi_hot else _UNORDERED_SUMS[name]  # the order of integers does not matter


def seeds(graph: Any) -> dict[str, str]:
    """Returns the seeds of a graph's own random operations, by their names."""
    return {
        op.name: f"{op.get_attr('seed')}, {op.get_attr('seed2')}"
        for op in graph.get_operations()
        if "seed" in op.node_def.attr and "seed2" in op.node_def.attr
    }


def random_operations(function: Any) -> list[str]:
    """Those with a random state of their own in what was traced of a `tf.function`, as `type (name)`."""
    return [label for traced in concrete_functions(function) for label in operations(traced.graph).random]


def _label(op: str, name: str) -> str:
    return f"{op} ({name})"


def distinct(found: Iterable[Resource]) -> list[Resource]:
    """Returns each variable once."""
    return list({resource.key: resource for resource in found}.values())


def traces(model: Any, name: str = "train_function") -> list[Any]:
    """The concrete functions of training steps, or other ones; empty before the first step, and in eager mode."""
    return concrete_functions(getattr(model, name, None))


def has_other_traces(model: Any) -> bool:
    """Whether `evaluate` or `predict` of a model was traced, which a restart traces later."""
    return any(traces(model, name) for name in ("test_function", "predict_function"))


class TraceCounter:
    """Tells how often train and test steps of a model were traced; asked after each step, so it looks once for each."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._train: Any = None
        self._test: Any = None
        self._counts: list[Callable[[], int]] = [_never, _never]

    def count(self) -> tuple[int, ...]:
        """Returns how often, until now: train steps, test steps."""
        train, test = getattr(self._model, "train_function", None), getattr(self._model, "test_function", None)
        if train is not self._train or test is not self._test:
            self._train, self._test = train, test
            compiled = [None if function is None else _compiled(function) for function in (train, test)]
            self._counts = [_never if f is None else f.experimental_get_tracing_count for f in compiled]
        return tuple([count() for count in self._counts])


def _never() -> int:
    return 0


def is_opaque(model: Any) -> bool:
    """Returns whether there is a train function, into which cannot be looked: one that the user's class made."""
    function = getattr(model, "train_function", None)
    return function is not None and not model.run_eagerly and _compiled(function) is None


def table_content(table: Any) -> tuple[Any, Any]:
    """The keys of a `MutableHashTable` and their values, in the order of the keys: arrays, and lists of texts."""
    keys, values = (np.asarray(tensor.numpy()) for tensor in table.export())
    order = np.argsort(keys, kind="stable")
    keys, values = (part.tolist() if part.dtype.hasobject else part for part in (keys[order], values[order]))
    return keys, values


def table_digest(table: Any) -> str | None:
    """Returns a hash of what a static lookup table holds; None of anything else."""
    import tensorflow as tf

    if not isinstance(table, tf.lookup.StaticHashTable):
        return None
    keys, values = (np.asarray(tensor.numpy()).reshape(-1).tolist() for tensor in table.export())
    return xxhash.xxh3_64_hexdigest(repr(sorted(zip(keys, values, strict=True))).encode(errors="surrogatepass"))


def captured(functions: list[Any]) -> list[Resource]:
    """Returns the variables that concrete functions captured, in the order of their traces."""
    return distinct(resource for function in functions for resource in resources(function))


def trace(fit: RunningFit) -> bool:
    """Traces the train function before the first step, so that what it captures and creates is there.

    The input is not touched: shapes and types do, or an empty dataset that is distributed as the input is. `fit()`
    does not trace again.

    Returns:
        Whether it could be traced.
    """
    model = fit.model
    model.make_train_function()
    function = _compiled(model.train_function)
    if function is None:
        return False
    try:
        function.get_concrete_function(_stand_in(fit))
    except (TypeError, ValueError):
        if function is model.train_function or not model_parts.makes_own_train_function(model):
            raise
        return False  # it is part of the user's own train function, and does not take the iterator
    return True


def _stand_in(fit: RunningFit) -> Any:
    import tensorflow as tf

    data = fit.data
    if isinstance(data, tf.data.Dataset):
        return tf.data.IteratorSpec(data.element_spec)
    spec = getattr(data, "_original_dataset", None)
    spec = data.element_spec if spec is None else spec.element_spec
    empty = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return iter(fit.model.distribute_strategy.experimental_distribute_dataset(empty.with_options(options)))


def concrete_functions(function: Any) -> list[Any]:
    """What was traced of a `tf.function`, or of those that it is for instances of a class."""
    compiled = None if function is None else _compiled(function)
    bound = getattr(compiled, "_descriptor_cache", None) or {}  # of a method: a function for each instance
    traced = [f for f in (compiled, *bound.values()) if f is not None and f.experimental_get_tracing_count()]
    return [concrete for f in traced for concrete in f._list_all_concrete_functions()]


def _compiled(function: Callable[..., Any]) -> Any:
    """Returns the `tf.function` that a train function of Keras calls, or is."""
    if static.has(function, "_list_all_concrete_functions"):
        return function
    enclosed = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    return next((item for item in enclosed if static.has(item, "_list_all_concrete_functions")), None)
