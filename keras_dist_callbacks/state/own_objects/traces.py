"""What functions that TensorFlow has traced may have read, before it changed or as they were traced."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dist_callbacks._compat import graphs, library_state
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_objects import plain
from keras_dist_callbacks.state.own_objects.libraries import is_library
from keras_dist_callbacks.state.own_objects.look import Look
from keras_dist_callbacks.state.own_objects.places import parent_of
from keras_dist_callbacks.state.own_objects.reads import names_reached, reads_of

LOSSES = ("loss", "metrics", "weighted metrics")
"""The roots of what a model was compiled with."""


def changed_since_traced(now: Look, changed: Iterable[str]) -> list[str]:
    """Values that functions other than the step may have read when they were traced: `predict`, or the user's own.

    Args:
        now: What is there.
        changed: Paths of what training has changed.
    """
    in_functions = names_reached(now.code.names_in_functions, _callees(now))
    is_step_alone = not _has_other_traces(now)
    unlike = []
    read = in_functions if is_step_alone else in_functions | now.code.traced_names
    set_in_between = [key for key in now.digests if _may_be_set(key, now)] if read else []
    for key in dict.fromkeys([*changed, *set_in_between]):
        names = {segment.rpartition(" ")[2] for segment in key.split("/")[1:]}
        if not _is_data(now.value_at(key)) or "_trainable" in names:
            continue
        is_read = bool(names & in_functions)
        if not is_step_alone and not key.startswith(("callback ", "optimizer")):
            is_read = is_read or bool(names & now.code.traced_names) or _is_setting_of_users_layer(key, now)
        unlike += [key] if is_read else []
    return unlike


def _is_data(value: Any) -> bool:
    """Returns whether a value is what functions read when they are traced: no object, variable or function."""
    kinds = (list, tuple, dict, set, frozenset, bytearray, np.ndarray, np.random.Generator, tf.Tensor)
    return plain.is_immutable(value) or static.is_a(value, kinds)


def _may_be_set(key: str, now: Look) -> bool:
    """Returns whether code may give a place another value for a while, around a call of `predict`."""
    name, place = parent_of(key)[1].rpartition(" ")[2], now.places.get(key)
    if place is not None and place.kind == "default":
        return False  # no code assigns one by its name
    return (name in now.code.stored or (key.endswith("/") and name in now.code.filled)) and _is_data(now.value_at(key))


def _has_other_traces(now: Look) -> bool:
    models = [value for value in now.objects.values() if static.is_a(value, keras.Model)]
    return bool(now.code.names_in_functions) or any(map(graphs.has_other_traces, models))


def drawing_in_traces(now: Look, *, traces_step: bool) -> list[str]:
    """Returns the functions whose random numbers are constants of what TensorFlow traces; a restart traces it again."""
    if not now.code.drawing or not (traces_step or _has_other_traces(now)):
        return []
    traced = [function for function in now.code.traced_functions if function.__name__ not in _NOT_TRACED]
    names = names_reached({name for function in traced for name in reads_of(function.__code__).names}, _callees(now))
    return [path for path, function in now.code.drawing.items() if function in traced or function.__name__ in names]


def _callees(now: Look) -> dict[str, list[types.FunctionType]]:
    """Returns the user's functions by name."""
    functions: dict[str, list[types.FunctionType]] = {}
    for found in now.labels.values():
        if type(found) is types.FunctionType and not is_library(found.__module__):
            functions.setdefault(found.__name__, []).append(found)
    return functions


def _is_setting_of_users_layer(key: str, now: Look) -> bool:
    """Returns whether it is a number that a layer of the user's has from a layer of Keras', whose methods read it."""
    place, value = now.places.get(key), now.value_at(key)
    if place is None or type(value) is bool or not static.is_a(value, int | float):
        return False
    is_of_keras = library_state.is_library_layer(place.owner) or not library_state.is_layer(place.owner)
    return not is_of_keras and library_state.is_set_by_library(place.owner, place.key)


_NOT_TRACED = ("__init__", "build", "adapt", "get_config", "from_config", "compile", "fit", "evaluate", "predict")
DRAWN = "it draws random numbers when TensorFlow traces it, which a restart does again"


def may_be_traced(key: str, now: Look) -> bool:
    """Returns whether a function that TensorFlow traces may read what is at a path."""
    root, *segments = key.split("/")
    if root not in LOSSES and root.partition(" ")[0] not in ("model", "optimizer"):
        return True
    above, name = parent_of(key)
    if name in now.settings.get(above, {}):
        return True
    place = now.places.get(key)
    if place is not None and place.kind == "attribute" and library_state.is_set_by_library(place.owner, place.key):
        return True
    return any(segment in now.code.traced_names for segment in segments)
