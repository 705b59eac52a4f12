"""What a tf.data pipeline draws without a seed, and how its orders become repeatable.

A shuffle without a seed draws another order in each process. Where no other dataset of the script can share it, the
pipeline is made again from its serialized graph, in which the shuffle has a drawn seed and counts its passes itself.
From then on it is like a pipeline with seeds that was made when fit() began.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from keras_dist_callbacks._compat import graphs, pipeline, rng
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.base import static

LARGEST = 2**28
"""Bytes of rows that are copied into a graph: 100 MB take a second on two cores, and 400 MB of memory meanwhile."""

_LARGEST_CONSTANT = 2**16
_SHUFFLES = {"ShuffleDatasetV3": 2, "ShuffleAndRepeatDatasetV2": 2}
_NUMBERS = {"RandomDataset": 0, "RandomDatasetV2": 0}
_OTHERS = {
    **dict.fromkeys(("ShuffleDataset", "ShuffleAndRepeatDataset", "SamplingDataset"), 2),
    **{"ExperimentalRandomDataset": 0, "GlobalShuffleDataset": 1},
}
_PLACES: Mapping[str, int] = {**_SHUFFLES, **_NUMBERS, **_OTHERS}
"""Operations that draw by two seeds, and which of their inputs the first one is; both 0: none was given."""
_NAMES = {
    **dict.fromkeys(("ShuffleAndRepeatDatasetV2", "ShuffleAndRepeatDataset"), "shuffle_and_repeat"),
    **dict.fromkeys(("ShuffleDatasetV3", "ShuffleDataset"), "Dataset.shuffle"),
}
Why = Literal["fixed", "cache", "file", "function", "large", "distributed", "epoch", "loop", "other"]
"""Why what draws was not given a seed; a finding's code says it."""

_WITHOUT_PARTS = {
    *("Map", "ParallelMap", "Batch", "ParallelBatch", "PaddedBatch", "MapAndBatch", "DenseToRaggedBatch", "Prefetch"),
    *("Repeat", "Shuffle", "ShuffleAndRepeat", "Options", "Cache", "DirectedInterleave", "AssertCardinality"),
    "Unbatch",
}
"""Stages that leave no element to another dataset: where only these follow, no split shares an order with the rest."""


class _Call(NamedTuple):
    """How users call what draws.

    Attributes:
        name: Such as "Dataset.shuffle".
        arguments: As they would be written, without a seed.
        is_public: It is a call that users write, and not an operation of TensorFlow's.
    """

    name: str
    arguments: str = ""
    is_public: bool = True

    @property
    def text(self) -> str:
        """As it is."""
        return f"{self.name}({self.arguments})" if self.is_public else self.name

    def with_seed(self, seed: str) -> str:
        """As it should be."""
        return f"{self.name}({self.arguments}{', ' if self.arguments else ''}seed={seed})"


class Orders:
    """The orders that one dataset draws without a seed.

    Args:
        dataset: A `tf.data` pipeline, or a distributed one; anything else draws nothing here.
        of: What it is to users.
        never: Why it cannot be made again, if it cannot.

    Attributes:
        named: What is drawn again after a restart.
    """

    def __init__(self, dataset: Any, of: str, never: Why | None = None) -> None:
        self.named: list[Finding] = []
        self._dataset, self._of = dataset, of
        self._never = never
        self._graph: Any = None
        self._drawing: dict[_Call, list[Any]] = {}
        self._caches: list[Any] = []
        self._held: dict[str, Any] = {}
        if static.is_a(dataset, tf.data.Dataset):
            self._look(dataset)
        elif static.is_a(dataset, tf.distribute.DistributedDataset):
            self._never = "distributed"
            if pipeline.is_distributed(dataset):
                self._look(pipeline.original(dataset))
            else:
                self._name_hidden("the function that makes it on each worker")

    @property
    def are_own(self) -> bool:
        """Whether `made` returns another dataset."""
        return bool(self._drawing)

    def made(self, seed: int) -> Any:
        """Returns the dataset with the orders of a seed; the dataset itself if that gives it none.

        Args:
            seed: The same after each restart, and another one for each fit.
        """
        if not self._drawing:
            return self._dataset
        try:
            return self._made(seed)
        except Exception:  # noqa: BLE001 - an operation that TensorFlow cannot import: the script's dataset can be read
            for call in self._drawing:
                self._name(call, "other")
            self._drawing = {}
            return self._dataset

    def _made(self, seed: int) -> Any:
        graph, self._graph = self._graph, None
        for number, node in enumerate(itertools.chain(*self._drawing.values())):
            for place, value in enumerate(_two_seeds(seed, number), _PLACES[node.op]):
                node.input[place] = _constant(graph, f"kdc_seed_{number}_{place}", value)
            if node.op != "RandomDataset":  # which has no passes: each of them draws the same numbers
                node.input[len(node.input) - 1] = _operation(graph, f"kdc_passes_{number}", "DummySeedGenerator")
        for number, node in enumerate(self._caches):
            node.input[2] = _operation(graph, f"kdc_cache_{number}", "DummyMemoryCache")
        needed = _needed(graph)
        for node in [node for node in graph.node if node.name not in needed]:
            graph.node.remove(node)
        held = {name: tensor for name, tensor in self._held.items() if name in needed}
        return pipeline.made_from_graph(graph, {**held, **_rows_in(graph)}, self._dataset)

    def _look(self, dataset: Any) -> None:
        stages = list({id(stage): stage for stage in pipeline.stages(dataset)}.values())
        for definition in (definition for stage in stages for definition in pipeline.function_graphs(stage)):
            self._name_in_functions([definition, *definition.library.function])
        hidden = [graph for stage in stages for graph in pipeline.hidden_graphs(stage)]
        if None in hidden:
            self._name_hidden("a stage")
        if any(pipeline.kind_of(stage) == "DataService" for stage in stages):
            self._name_hidden("its tf.data service")
        calls = [_call_of_stage(stage) for stage in stages if not pipeline.has_seed(stage)]
        calls += [call for graph in hidden if graph is not None for _, call in _unseeded(graph.node)]
        why = self._plan() if calls else None  # a graph with all rows in it is not made for nothing
        if why is not None:
            for call in calls:
                self._name(call, why)

    def _plan(self) -> Why | None:
        """Finds what gets a seed, and names what does not; returns why none can be given, if so."""
        if self._never is not None:
            return self._never
        if pipeline.bytes_held(self._dataset) > LARGEST:
            return "large"
        graph = pipeline.graph_of(self._dataset)
        if graph is None:
            return "other"
        self._held = _share(graph, pipeline.captures_by_function(self._dataset))
        found = list(_unseeded(graph.node))
        if not found or not _is_of_datasets(graph):
            return "other"
        after, nodes = _following(graph), {node.name: node for node in graph.node}
        for node, call in found:
            later = after(node)
            why = _why_not(node, nodes, after)
            if why is not None:
                self._name(call, why)
                continue
            self._drawing[call] = [*self._drawing.get(call, ()), node]
            self._caches += [n for n in later if n.op == "CacheDatasetV2" and n not in self._caches]
        self._name_in_functions(graph.library.function)
        self._graph = graph if self._drawing else None
        return None

    def _name_hidden(self, what: str) -> None:
        if rng.global_seed() is None:
            self._add("hidden", what)

    def _name_in_functions(self, functions: Iterable[Any]) -> None:
        for function in functions:
            nodes = function.node_def if hasattr(function, "node_def") else function.node
            for _, call in _unseeded(nodes):
                self._name(call, "function")
            for node in nodes:
                seeds = [node.attr[name].i for name in ("seed", "seed2") if name in node.attr]
                if graphs.is_random(node.op) and seeds == [0, 0]:
                    self._add("numbers", f"TensorFlow's {node.op} ({node.name})")

    def _name(self, call: _Call, why: Why) -> None:
        if not call.is_public:
            self._add("operation", call.text)
        elif why in ("loop", "other"):
            self._add("", call.text, call.with_seed("1"))
        else:
            self._add(why, call.text, call.with_seed("epoch" if why == "epoch" else "1"))

    def _add(self, why: str, *detail: str) -> None:
        found = Finding(f"unseeded-{why}" if why else "unseeded", self._of, detail)
        if found not in self.named:
            self.named.append(found)


def _unseeded(nodes: Iterable[Any]) -> Iterator[tuple[Any, _Call]]:
    """Yields the operations that have two seeds of 0, each with what users call it."""
    known = {node.name: node for node in nodes}
    for node in list(known.values()):
        place = _PLACES.get(node.op)
        if place is None:
            continue
        seeds = [_value_of(node.input[place + number], known) for number in (0, 1)]
        if seeds == [0, 0]:
            yield node, _call(node, known)


def _value_of(name: str, nodes: Mapping[str, Any]) -> Any:
    """Returns a constant's value; None of anything else, such as a seed that a function is given."""
    node = nodes.get(name.split(":")[0].lstrip("^"))
    return tf.make_ndarray(node.attr["value"].tensor).item() if node is not None and node.op == "Const" else None


def _call(node: Any, nodes: Mapping[str, Any]) -> _Call:
    name = _NAMES.get(node.op)
    if name is not None:
        size = _value_of(node.input[1], nodes)
        is_fixed = not node.attr["reshuffle_each_iteration"].b
        size = "..." if size is None else size
        return _Call(name, f"{size}{', reshuffle_each_iteration=False' * is_fixed}")
    if node.op in _NUMBERS and any("DirectedInterleave" in other.op for other in nodes.values()):
        return _Call("Dataset.sample_from_datasets")
    return _Call("Dataset.random") if node.op in _NUMBERS else _Call(node.op, is_public=False)


def _call_of_stage(stage: Any) -> _Call:
    if pipeline.kind_of(stage) != "Shuffle":
        return _Call(f"Dataset.{pipeline.kind_of(stage).lower()}")
    return _Call("Dataset.shuffle", str(int(stage._buffer_size)))


def _share(graph: Any, captures: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Lets functions use the script's variables and tables, of which TensorFlow has put copies into a graph.

    Args:
        graph: It gets placeholders in the places of the copies.
        captures: What functions captured, by their names.

    Returns:
        What the placeholders stand for, by their names.
    """
    held: dict[str, Any] = {}
    for node in list(graph.node):
        functions = [attr.func.name for attr in node.attr.values() if attr.HasField("func")]
        if len(functions) != 1:
            continue
        tensors = captures.get(functions[0], ())
        states = len(node.attr["Tstate"].list.type) if "Tstate" in node.attr else 0  # scan() has them
        for place, tensor in enumerate(tensors, 1 + states):  # what a parallel map has too comes after them
            if tensor.dtype == tf.resource:
                name = f"kdc_held_{id(tensor)}"
                if held.setdefault(name, tensor) is tensor:
                    node.input[place] = _placeholder(graph, name, tf.resource)
    return held


def _is_of_datasets(graph: Any) -> bool:
    """Returns whether nothing in a graph is a copy of what the script has: a variable, a table."""
    needed = _needed(graph)
    kinds = {node.op for node in graph.node if node.name in needed}
    return all("Dataset" in op or op in ("Const", "Placeholder", "_Retval") for op in kinds)


def _rows_in(graph: Any) -> dict[str, Any]:
    """Takes large constants out of a graph, which would be copied with it; returns them by their names."""
    rows: dict[str, Any] = {}
    for node in graph.node:
        if node.op == "Const" and len(node.attr["value"].tensor.tensor_content) > _LARGEST_CONSTANT:
            rows[node.name] = tf.constant(tf.make_ndarray(node.attr["value"].tensor))
            dtype = node.attr["dtype"].type
            node.ClearField("attr")
            node.op = "Placeholder"
            node.attr["dtype"].type = dtype
    return rows


def _needed(graph: Any) -> set[str]:
    """Returns the names of the operations that a graph's result needs."""
    nodes = {node.name: node for node in graph.node}
    waiting = [node.name for node in graph.node if node.op == "_Retval"]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop().split(":")[0].lstrip("^")
        if name not in needed:
            needed.add(name)
            waiting += nodes[name].input
    return needed


def _following(graph: Any) -> Callable[[Any], list[Any]]:
    """Returns a function that gives what reads a node's elements, up to the end of the pipeline."""
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name.split(":")[0].lstrip("^"), []).append(node)

    def following(node: Any) -> list[Any]:
        found: dict[str, Any] = {}
        waiting = list(readers.get(node.name, ()))
        while waiting:
            reader = waiting.pop()
            if reader.name not in found:
                found[reader.name] = reader
                waiting += readers.get(reader.name, ())
        return list(found.values())

    return following


def _why_not(node: Any, nodes: Mapping[str, Any], after: Callable[[Any], list[Any]]) -> Why | None:
    """Returns why an operation without a seed keeps the script's order; None if nothing can share it.

    Args:
        node: The operation.
        nodes: All operations of the graph, by their names.
        after: Returns what reads the elements of an operation.
    """
    if node.op in _OTHERS:
        return "other"
    later = after(node)
    caches = [other for other in later if other.op.startswith("CacheDataset")]
    if any(_value_of(cache.input[1], nodes) != b"" for cache in caches) or any("Snapshot" in n.op for n in later):
        return "file"
    if node.op in _SHUFFLES and not node.attr["reshuffle_each_iteration"].b:
        return "fixed"  # such as take(n) and skip(n) of one shuffle: the other part keeps the script's order
    if node.op == "RandomDataset" and _may_be_part(later):
        return "fixed"
    return "cache" if any(_may_be_part(after(cache)) for cache in caches) else None


def _may_be_part(later: list[Any]) -> bool:
    """Returns whether other datasets may have what operations leave out of those before them."""
    kinds = {node.op.rstrip("V1234").removesuffix("Dataset") for node in later if "Dataset" in node.op}
    return not kinds <= _WITHOUT_PARTS


def _two_seeds(seed: int, number: int) -> tuple[int, int]:
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    first, second = (int.from_bytes(digest[n : n + 8], "big") >> 1 for n in (0, 8))
    return first, second | 1  # two zeros would be no seed


def _constant(graph: Any, name: str, value: int) -> str:
    node = graph.node.add(name=name, op="Const")
    node.attr["dtype"].type = tf.int64.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
    return name


def _placeholder(graph: Any, name: str, dtype: Any) -> str:
    if all(node.name != name for node in graph.node):
        node = graph.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = dtype.as_datatype_enum
    return name


def _operation(graph: Any, name: str, op: str) -> str:
    graph.node.add(name=name, op=op)
    return name
