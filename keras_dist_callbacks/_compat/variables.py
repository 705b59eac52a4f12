"""Exact reads and writes of every component of a variable, under any strategy.

A distributed variable has one component per replica of this process, and components may differ (metrics,
statistics of non-synchronized BatchNormalization): a global read would aggregate them, and a global assign of
a metric is wrong. So every component is read and written on its own. A read shares the variable's buffer and
TensorFlow copies on the next write, so holding the result is a snapshot without a copy (measured on CPU for
Keras' optimizers in graph, jit and eager mode).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_dist_callbacks.errors import BackupError

GLOBAL_SEED_GENERATOR = "global_seed_generator"
"""The name of Keras' global seed state, which is made by its first use, maybe within a step."""


@dataclass(frozen=True)
class HeldRead:
    """A tensor that was read from a variable's component."""

    tensor: Any

    def array(self) -> np.ndarray[Any, Any]:
        """The value; shares TensorFlow's memory where it lies on the host, so it is read-only."""
        view: np.ndarray[Any, Any] = np.asarray(self.tensor._numpy()).view()
        view.flags.writeable = False
        return view


def components(variable: Any) -> tuple[Any, ...]:
    """The resource variables behind a Keras or TensorFlow variable, one per local replica."""
    raw = getattr(variable, "_value", None)
    raw = getattr(variable, "value", variable) if raw is None else raw
    if callable(raw):  # a bare tf.Variable: `value` is a method there
        raw = variable
    return tuple(getattr(raw, "values", None) or (raw,))


def aggregation(variable: Any) -> str:
    """How the values that replicas have of their own become one.

    `"sum"` (of variables that are added up when read, as metrics are), `"mean"`, `"only_first_replica"` or
    `"none"`.
    """
    found = _lower_name(variable, "aggregation")
    return "none" if found == "sum" and _lower_name(variable, "synchronization") != "on_read" else found


def _lower_name(variable: Any, attribute: str) -> str:
    value = getattr(variable, attribute, None)
    return str(getattr(value, "name", value) or "none").lower()


def hold(component: Any) -> HeldRead:
    """Reads one component; the result does not change when the variable is assigned."""
    import tensorflow as tf

    with tf.device(component.handle.device):
        tensor = tf.raw_ops.ReadVariableOp(resource=component.handle, dtype=component.dtype)
    if "CPU" not in str(tensor.backing_device or "CPU").upper():
        with tf.device("CPU:0"):  # training on this device must not overwrite what is not copied yet
            tensor = tf.identity(tensor)
    return HeldRead(tensor)


def assign(component: Any, value: np.ndarray[Any, Any]) -> None:
    """Writes one component, locally: no other replica or worker takes part."""
    import tensorflow as tf

    with tf.device(component.handle.device):
        # TensorFlow may adopt the array's memory and later write to it: give it a copy of its own.
        tensor = tf.constant(np.array(value, copy=True), dtype=component.dtype)
        tf.raw_ops.AssignVariableOp(resource=component.handle, value=tensor)


def named_variables(model: Any) -> dict[str, Any]:
    """Every variable of training by a unique name: weights, optimizer, metrics, seed generators.

    Names are the variables' paths; `#1`, `#2`, ... are appended where paths repeat.
    """
    named: dict[str, Any] = {}
    seen: set[int] = set()
    generator = _global_seed_generator()
    for variable in _all_variables(model):
        if id(variable) in seen:
            continue
        seen.add(id(variable))
        path = str(getattr(variable, "path", None) or variable.name)
        if generator is not None and variable is generator.state:
            path = GLOBAL_SEED_GENERATOR
        name, count = path, 0
        while name in named:
            count += 1
            name = f"{path}#{count}"
        if components(variable)[0].dtype.name in {"string", "resource", "variant"}:
            raise BackupError(f"variable {path!r} has the type {variable.dtype}, which a backup cannot hold")
        named[name] = variable
    return named


def _all_variables(model: Any) -> Iterable[Any]:
    yield from model.variables
    optimizer = getattr(model, "optimizer", None)  # Keras models have none before compile()
    if optimizer is not None:
        yield from optimizer.variables
    for metric in model.metrics:
        yield from metric.variables
    generator = _global_seed_generator()
    if generator is not None:
        yield generator.state


def untracked_variables(model: Any) -> list[str]:
    """Names of TensorFlow variables that belong to the model's objects, but not to what a backup holds."""
    import keras
    import tensorflow as tf

    held = {id(c) for variable in named_variables(model).values() for c in _raw_and_components(variable)}
    found = []
    for item in tf.train.TrackableView(model).descendants():
        own: list[Any] = list(item.variables) if isinstance(item, keras.optimizers.Optimizer) else [item]
        for variable in own:
            raw = getattr(variable, "_value", variable)
            if isinstance(raw, tf.Variable) and not held & {id(c) for c in _raw_and_components(variable)}:
                found.append(str(getattr(variable, "path", None) or raw.name))
    return sorted(set(found))


def _raw_and_components(variable: Any) -> tuple[Any, ...]:
    return (variable, getattr(variable, "_value", variable), *components(variable))


def create_global_seed_generator() -> None:
    """Creates Keras' seed generator for `keras.random` calls without a seed, as its first use would."""
    from keras.src.random import seed_generator

    seed_generator.global_seed_generator()


def _global_seed_generator() -> Any:
    """Keras' seed generator for `keras.random` calls without a seed, if it exists already."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("global_seed_generator")
