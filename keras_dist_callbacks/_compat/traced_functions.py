"""The functions that TensorFlow has traced in this process, whoever calls them."""

from __future__ import annotations

import gc
from collections.abc import Collection
from dataclasses import dataclass

from keras_dist_callbacks._compat import graphs
from keras_dist_callbacks._compat.incompatible import incompatible

_OF_EAGER_OPERATIONS, _OF_DATASETS = "__wrapped__", "Dataset_"


@dataclass(frozen=True)
class RandomFunction:
    """A traced function that draws random numbers whose state is in kernels.

    Attributes:
        name: The Python function's.
        operations: Those that draw, as `type (name)`.
        trains: Whether it changes variables that are trained.
    """

    name: str
    operations: tuple[str, ...]
    trains: bool


class TracedFunctions:
    """Looks for functions that draw random numbers, again only when more were traced."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._found: list[RandomFunction] = []

    def random(self, keys: Collection[int]) -> list[RandomFunction]:
        """Returns those that draw, but for what only datasets or another function of them call.

        Args:
            keys: Of the variables that are trained.
        """
        from tensorflow.python.eager import context as eager

        context = eager.context()
        if not hasattr(context, "list_function_names"):
            raise incompatible("TensorFlow's eager context has no list_function_names")
        new = {name for name in context.list_function_names() if not name.startswith(_OF_EAGER_OPERATIONS)} - self._seen
        self._seen |= new
        if any(graphs.is_random(node.op) for name in new for node in context.get_function_def(name).node_def):
            self._found = _look(keys)
        return self._found


def _look(keys: Collection[int]) -> list[RandomFunction]:
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

    traced = [each for each in gc.get_objects() if type(each) is ConcreteFunction]
    inner: set[str] = set()
    drawing = []
    for function in traced:
        definition = function.graph.as_graph_def()
        inner |= {called.signature.name for called in definition.library.function}
        found = graphs.operations_of(definition)
        if found.random and not function.graph.name.startswith(_OF_DATASETS):
            drawing.append((function, found))
    return [
        RandomFunction(
            str(function.graph.name),
            found.random,
            found.writes and any(resource.key in keys for resource in graphs.resources(function)),
        )
        for function, found in drawing
        if function.name.decode() not in inner
    ]
