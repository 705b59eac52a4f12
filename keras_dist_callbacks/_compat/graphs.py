"""What a traced function holds on to: variables that it captured, and operations with a state of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_dist_callbacks._compat.variables import HeldRead, hold_resource

_RANDOM = (
    *("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "SampleDistortedBoundingBox"),
    *("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler"),
    *("FixedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler", "AllCandidateSampler", "FractionalM"),
)
_NO_RANDOM_NUMBERS = ("RandomDataset", "RandomShuffleQueue")
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
_TABLE_WRITES = ("LookupTableInsert", "LookupTableRemove")


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

    def hold(self) -> HeldRead:
        """Its value now, as `VariableSet.hold` reads it."""
        return hold_resource(self.handle, self.dtype)

    def assign(self, value: np.ndarray[Any, Any]) -> None:
        """Writes it."""
        import tensorflow as tf

        tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.convert_to_tensor(np.array(value), self.dtype))

    @property
    def key(self) -> int:
        """The same for all captures of one variable."""
        return id(self.handle)


def of_component(name: str, component: Any) -> Resource:
    """One component of a variable."""
    return Resource(name, component.handle, component.dtype)


def resources(function: Any) -> list[Resource]:
    """The variables that a concrete function captured, in the order in which its trace met them.

    What TensorFlow captured for itself is none: the token that orders collective operations is a resource without a
    variable that the graph knows.
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


@dataclass(frozen=True)
class Operations:
    """What a graph does that a backup must know of.

    Attributes:
        random: Operations of TensorFlow that keep a random state in their kernel, as `type (name)`.
        python: Calls of Python functions, the same way.
        writes: Whether it changes variables.
        tables: Whether it changes lookup tables.
        shuffles: How many datasets within it shuffle.
    """

    random: tuple[str, ...]
    python: tuple[str, ...]
    writes: bool
    tables: bool
    shuffles: int


def operations(graph: Any) -> Operations:
    """Looks through a graph and the functions that it calls."""
    return _operations(graph.as_graph_def())


def operations_of_dataset(variant: Any) -> Operations:
    """Looks through a dataset of which only the tensor is known, as a function holds it that captured one."""
    import tensorflow as tf

    ignores_state = 1
    try:
        text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignores_state).numpy()
        return _operations(tf.compat.v1.GraphDef.FromString(text))
    except Exception:  # noqa: BLE001 - more than a GraphDef can hold, or an operation that has no graph
        return Operations((), ("a dataset that cannot be looked into",), False, False, 0)


def _operations(definition: Any) -> Operations:
    nodes = list(_nodes(definition))
    return Operations(
        tuple(_label(op, name) for op, name in nodes if is_random(op)),
        tuple(_label(op, name) for op, name in nodes if op in _PYTHON),
        any(op.startswith(_WRITES) for op, _ in nodes),
        any(op.startswith(_TABLE_WRITES) for op, _ in nodes),
        sum(op.startswith("Shuffle") for op, _ in nodes),
    )


def seeds(graph: Any) -> dict[str, str]:
    """The seeds of a graph's own random operations, by their names."""
    return {
        op.name: f"{op.get_attr('seed')}, {op.get_attr('seed2')}"
        for op in graph.get_operations()
        if "seed" in op.node_def.attr and "seed2" in op.node_def.attr
    }


def is_random(op: str) -> bool:
    """Whether an operation draws from a random state that its kernel keeps."""
    return op.startswith(_RANDOM) and not op.startswith(_NO_RANDOM_NUMBERS)


def _nodes(definition: Any) -> Iterator[tuple[str, str]]:
    yield from ((node.op, node.name) for node in definition.node)
    for inner in definition.library.function:
        yield from ((node.op, node.name) for node in inner.node_def)


def _label(op: str, name: str) -> str:
    return f"{op} ({name})"


def distinct(found: Iterable[Resource]) -> list[Resource]:
    """Each variable once."""
    return list({resource.key: resource for resource in found}.values())
