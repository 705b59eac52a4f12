"""What functions that TensorFlow has traced may have read, before it changed or as they were traced."""

from __future__ import annotations

import types

import keras

from keras_dist_callbacks._compat import graphs, library_state
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.user_state import changes
from keras_dist_callbacks.state.user_state.libraries import is_library
from keras_dist_callbacks.state.user_state.nodes import Node
from keras_dist_callbacks.state.user_state.reads import names_reached, reads_of
from keras_dist_callbacks.state.user_state.walker import Found

LOSSES = ("loss", "metrics", "weighted metrics")
"""The roots of what a model was compiled with."""


def changed_since_traced(now: Found, found: changes.Changes) -> list[str]:
    """Values that functions other than the step may have read when they were traced: `predict`, or the user's own."""
    in_functions = _names_with_callees(now)
    is_step_alone = not _has_other_traces(now)
    unlike = []
    read = in_functions if is_step_alone else in_functions | now.traced_names
    set_in_between = [path for path, node in now.nodes.items() if _may_be_set(path, node, now)] if read else []
    for path in dict.fromkeys([*found.records, *found.lost, *set_in_between]):
        names = {segment.rpartition(" ")[2] for segment in path.split("/")[1:]}
        node = now.node(path)
        if (node is not None and node.kind not in _READ_BY_TRACES) or "_trainable" in names:
            continue
        is_read = bool(names & in_functions)
        if not is_step_alone and not path.startswith(("callback ", "optimizer")):
            is_read = is_read or bool(names & now.traced_names) or _is_setting_of_users_layer(node)
        unlike += [path] if is_read else []
    return unlike


def _may_be_set(path: str, node: Node, now: Found) -> bool:
    """Returns whether code may give a place another value for a while, around a call of `predict`."""
    if node.kind not in ("value", "container", "array", "texts", "tensor"):
        return False
    name = path.rpartition("/")[2].rpartition(" ")[2]
    return name in now.stored or (node.kind in ("container", "array") and name in now.filled)


def _has_other_traces(now: Found) -> bool:
    models = {id(n.value): n.value for n in now.nodes.values() if static.is_a(n.value, keras.Model)}
    return bool(now.names_in_functions) or any(map(graphs.has_other_traces, models.values()))


def drawing_in_traces(now: Found, *, traces_step: bool) -> list[str]:
    """Returns the functions whose random numbers are constants of what TensorFlow traces; a restart traces it again."""
    if not now.drawing or not (traces_step or _has_other_traces(now)):
        return []
    traced = [function for function in now.traced_functions if function.__name__ not in _NOT_TRACED]
    names = names_reached({name for function in traced for name in reads_of(function.__code__).names}, _callees(now))
    return [path for path, function in now.drawing.items() if function in traced or function.__name__ in names]


def _names_with_callees(now: Found) -> set[str]:
    """Names in functions that were traced, and in whatever has the name of what these call."""
    return names_reached(now.names_in_functions, _callees(now))


def _callees(now: Found) -> dict[str, list[types.FunctionType]]:
    """Returns the user's functions by name."""
    functions: dict[str, list[types.FunctionType]] = {}
    for found in now.labels.values():
        if type(found) is types.FunctionType and not is_library(found.__module__):
            functions.setdefault(found.__name__, []).append(found)
    return functions


def _is_setting_of_users_layer(node: Node | None) -> bool:
    """Returns whether it is a number that a layer of the user's has from a layer of Keras', whose methods read it."""
    slot = None if node is None else node.slot
    if node is None or slot is None or type(node.value) is bool or not static.is_a(node.value, int | float):
        return False
    is_of_keras = library_state.is_library_layer(slot.owner) or not library_state.is_layer(slot.owner)
    return not is_of_keras and library_state.is_set_by_library(slot.owner, slot.key)


_READ_BY_TRACES = ("value", "container", "array", "texts", "tensor", "layer", "random", "iterator", "own_state")
_NOT_TRACED = ("__init__", "build", "adapt", "get_config", "from_config", "compile", "fit", "evaluate", "predict")
DRAWN = "it draws random numbers when TensorFlow traces it, which a restart does again"


def may_be_traced(path: str, now: Found) -> bool:
    """Returns whether a function that TensorFlow traces may read what is at a path."""
    root, *segments = path.split("/")
    if root not in LOSSES and root.partition(" ")[0] not in ("model", "optimizer"):
        return True
    node = now.node(path)
    slot = None if node is None else node.slot
    if slot is not None and slot.kind == "attribute" and library_state.is_set_by_library(slot.owner, slot.key):
        return True
    return any(segment in now.traced_names for segment in segments)
