"""Exact reads and writes of every component of a variable, under any strategy.

A distributed variable has one component per replica of this process, and components may differ (metrics,
statistics of non-synchronized BatchNormalization): a global read would aggregate them, and a global assign of
a metric is wrong. So every component is read and written on its own. A read shares the variable's buffer and
TensorFlow copies on the next write, so holding the result is a snapshot without a copy (measured on CPU for
Keras' optimizers in graph, jit and eager mode).
"""

from __future__ import annotations

import collections
import functools
import operator
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from keras_dist_callbacks._compat import model_parts
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.errors import BackupError
from keras_dist_callbacks.base.process import Shared, shared

GLOBAL_SEED_GENERATOR = "global_seed_generator"
"""The name of Keras' global seed state, which is made by its first use, maybe within a step."""


@dataclass(frozen=True)
class SharedRead:
    """A tensor that was read from a variable's component."""

    tensor: Any

    def array(self) -> np.ndarray[Any, Any]:
        """Returns the value; shares TensorFlow's memory where it lies on the host, so it is read-only."""
        view: np.ndarray[Any, Any] = np.asarray(self.tensor._numpy()).view()
        view.flags.writeable = False
        return view


def components(variable: Any) -> tuple[Any, ...]:
    """Returns the resource variables of a Keras or TensorFlow variable, one per local replica."""
    raw = getattr(variable, "_value", None)
    raw = getattr(variable, "value", variable) if raw is None else raw
    if callable(raw):  # a bare tf.Variable: `value` is a method there
        raw = variable
    return tuple(getattr(raw, "values", None) or (raw,))


def path_of(variable: Any) -> str:
    """Returns the path of a variable of Keras', and the name of one of TensorFlow's, which has no path."""
    return str(getattr(variable, "path", None) or variable.name)


def attributes_of_the_user(variable: Any) -> list[tuple[str, Any, str]]:
    """What user code has put on a variable: name, value, and the kind of place it is bound in.

    Such as an average of it: names of Keras' and TensorFlow's are private. Its constraint and regularizer are options,
    which a layer gives it, and a callback may.
    """
    held = static.own_dict(variable)
    options = [(name, held[name], "option") for name in _OPTIONS if held.get(name) is not None]
    return [*((name, held[name], "attribute") for name in _public(tuple(held))), *options]


_OPTIONS = ("_constraint", "_regularizer")


@functools.lru_cache(maxsize=1024)
def _public(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if type(name) is str and not name.startswith("_"))


def aggregation(variable: Any) -> str:
    """Returns how the values that replicas have of their own become one.

    `"sum"` (of variables that are added up when read, as metrics are), `"mean"`, `"only_first_replica"` or
    `"none"`.
    """
    found = _lower_name(variable, "aggregation")
    return "none" if found == "sum" and _lower_name(variable, "synchronization") != "on_read" else found


def _lower_name(variable: Any, attribute: str) -> str:
    value = getattr(variable, attribute, None)
    return str(getattr(value, "name", value) or "none").lower()


@dataclass(frozen=True)
class VariableSet:
    """The variables of a model and what it takes to read all of them quickly.

    Attributes:
        named: The variables by unique name.
        labels: `name@replica` of each component, in order.
    """

    named: Mapping[str, Any]
    labels: tuple[str, ...]
    _reads: tuple[tuple[Any, Any, bool], ...]  # of each component: handle, type, whether it is on the host

    @functools.cached_property
    def keys(self) -> frozenset[int]:
        """The `key` of every component."""
        return frozenset(id(handle) for handle, _, _ in self._reads)

    def hold(self) -> list[SharedRead]:
        """Reads every component, in the order of `labels`; the results do not change when variables are assigned."""
        return [_hold(handle, dtype, on_host) for handle, dtype, on_host in self._reads]


def key(component: Any) -> int:
    """Returns what distinguishes one component from another, for as long as it lives."""
    return id(component.handle)


def setting(variable: Any) -> float | None:
    """Returns the value of a variable that is one number and that no optimizer trains; None of any other."""
    import keras
    import tensorflow as tf

    if not isinstance(variable, keras.Variable | tf.Variable) or len(variable.shape) or not variable.dtype:
        return None
    if isinstance(variable, keras.Variable) and variable.trainable:
        return None
    value = read(components(variable)[0])
    return float(str(value[()])) if value.dtype.kind == "f" else None  # 0.1, and not 0.10000000149


def hold_resource(handle: Any, dtype: Any) -> SharedRead:
    """Reads one component; the result does not change when it is assigned."""
    return _hold(handle, dtype, _on_host(handle.device))


def read(component: Any) -> np.ndarray[Any, Any]:
    """One component's value, which does not change when it is assigned."""
    return hold_resource(component.handle, component.dtype).array()


def _hold(handle: Any, dtype: Any, on_host: bool) -> SharedRead:
    import tensorflow as tf

    tensor = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)  # runs where the resource is
    if not on_host:
        with tf.device("CPU:0"):  # training on that device must not overwrite what is not copied yet
            tensor = tf.identity(tensor)
    return SharedRead(tensor)


def assign(component: Any, value: np.ndarray[Any, Any]) -> None:
    """Writes one component, locally: no other replica or worker takes part.

    Args:
        component: The resource variable.
        value: Memory from `empty` is taken over without a copy; any other is copied.
    """
    import tensorflow as tf

    tensor = getattr(value, "tensor", None)
    if tensor is None:
        # TensorFlow may adopt an array's memory and later write to it: give it a copy of its own.
        tensor = tf.convert_to_tensor(np.array(value, copy=True), dtype=component.dtype)
    tf.raw_ops.AssignVariableOp(resource=component.handle, value=tensor)


class _Adoptable(np.ndarray[Any, Any]):
    """A view of a tensor's memory that knows the tensor."""

    tensor: Any = None


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns an array in TensorFlow's own memory, for values that variables will take over without a copy.

    A variable that is assigned from it shares the memory; TensorFlow copies on the next write for as long as the
    array is referred to, and writes in place after that. Of a type that TensorFlow does not know, it is a plain
    array.
    """
    import tensorflow as tf

    try:
        with tf.device("CPU:0"):
            tensor = tf.raw_ops.Empty(shape=shape, dtype=tf.as_dtype(dtype), init=False)
    except (TypeError, tf.errors.OpError):
        return np.empty(shape, dtype)
    if not np.shares_memory(tensor._numpy(), tensor._numpy()):
        return np.empty(shape, dtype)  # what is written there would not reach the tensor
    array: _Adoptable = tensor._numpy().view(_Adoptable)
    array.tensor = tensor
    return array


@dataclass
class _KnownVariables(Shared):
    """By model: its variables as they were, and what was found of them."""

    sets: WeakKeyDictionary[Any, tuple[list[Any], VariableSet]] = field(default_factory=WeakKeyDictionary)


def variable_set(model: Any) -> VariableSet:
    """Returns every variable of training, as `named_variables` finds it; remembered until a variable comes or goes."""
    present = list(_all_variables(model))
    known = shared(_KnownVariables).sets.get(model)
    if known is not None and len(known[0]) == len(present) and all(map(operator.is_, known[0], present)):
        return known[1]
    named = named_variables(model)
    parts = [(name, replica, c) for name, v in named.items() for replica, c in enumerate(components(v))]
    reads = tuple((c.handle, c.dtype, _on_host(c.handle.device)) for _, _, c in parts)
    found = VariableSet(named, tuple(f"{name}@{replica}" for name, replica, _ in parts), reads)
    shared(_KnownVariables).sets[model] = (present, found)
    return found


def forget(model: Any) -> None:
    """Lets go of what `variable_set` remembers of a model."""
    shared(_KnownVariables).sets.pop(model, None)


@functools.cache
def _on_host(device: str) -> bool:
    return not device or "CPU" in device.upper()


def named_variables(model: Any) -> dict[str, Any]:
    """Returns every variable of training by a unique name: weights, optimizer, metrics, seed generators.

    Names are the variables' paths; `#1`, `#2`, ... are appended where paths repeat.
    """
    named: dict[str, Any] = {}
    seen: set[int] = set()
    generator = _global_seed_generator()
    for variable in _all_variables(model):
        if id(variable) in seen:
            continue
        seen.add(id(variable))
        path = path_of(variable)
        if generator is not None and variable is generator.state:
            path = GLOBAL_SEED_GENERATOR
        name, count = path, 0
        while name in named:
            count += 1
            name = f"{path}#{count}"
        if components(variable)[0].dtype.name in {"string", "resource", "variant"}:
            raise BackupError(
                f"variable {path!r} has the type {variable.dtype}, which backups do not support: keep such a value in "
                "a Python attribute or a lookup layer"
            )
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


def arrays_of(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Returns weights and variables of the optimizer by name, as far as this process has them."""
    own = [*model.weights, *getattr(getattr(model, "optimizer", None), "variables", ())]
    held = [(str(variable.path), component) for variable in own for component in components(variable)]
    return {f"{path}@{number}": read(component) for number, (path, component) in enumerate(held)}


def untracked_variables(model: Any, held: Collection[int] = ()) -> list[tuple[str, Any]]:
    """TensorFlow variables that belong to the model's objects, but not to what a backup holds, with their names.

    Args:
        model: The model.
        held: Keys of variables that are saved in another way.
    """
    import keras
    import tensorflow as tf

    known = (
        variable_set(model).keys | set(held) | {key(v) for _, own in model_parts.vocabulary_layers(model) for v in own}
    )
    parts = descendants(model)
    known |= {key(c) for item in parts for v in model_parts.idle_variables(item) for c in components(v)}
    found = []
    for item in parts:
        own: list[Any] = list(item.variables) if isinstance(item, keras.optimizers.Optimizer) else [item]
        for variable in own:
            raw = static.attribute(variable, "_value", variable)
            if isinstance(raw, tf.Variable) and not known & {key(c) for c in components(variable)}:
                found.append((str(variable.path if isinstance(variable, keras.Variable) else raw.name), variable))
                known = known | {key(c) for c in components(variable)}
    return found


def optimizers_within(model: Any) -> list[Any]:
    """Every optimizer that belongs to the model's objects, `model.optimizer` first, but none within another one."""
    import keras

    compiled = getattr(model, "optimizer", None)
    found = [item for item in [compiled, *descendants(model)] if isinstance(item, keras.optimizers.Optimizer)]
    inner = {id(item) for optimizer in found for item in descendants(optimizer)[1:]}  # the first is itself
    return list({id(optimizer): optimizer for optimizer in found if id(optimizer) not in inner}.values())


def missing_in_files(model: Any) -> list[tuple[str, Any]]:
    """Returns the variables of a model's objects that Keras writes into no file, and their names.

    Random states and metrics do not count: a file is not meant to continue them.
    """
    held = in_files(model)
    others = [(str(v.path), v) for v in model.variables]
    found = [*others, *untracked_variables(model)]
    return [(name, v) for name, v in found if not held & {key(c) for c in components(v)}]


def in_files(model: Any) -> set[int]:
    """Returns the keys of the variables that Keras writes into files, and of random states and metrics."""
    import keras
    from keras.src.saving import saving_lib

    class NoStore(saving_lib.NpzIOStore):
        """Keras only walks if a store is false; Keras 3.10 takes no None."""

        def __init__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return False

    visited: set[int] = set()
    saving_lib._save_state(model, NoStore(), None, "", visited)
    parts = {id(part): part for part in [*descendants(model), *model_parts.all_layers(model)]}
    seeds = [p.state for p in parts.values() if isinstance(p, keras.random.SeedGenerator)]
    for part in parts.values():  # static: any other look at a metric's distributed variable reads it on all workers
        seeds += [seed.state for seed in static.attribute(part, "_seed_generators", ())]
    own = [v for name, part in parts.items() if name in visited for v in _written(part)]
    metrics = [v for metric in model.metrics for v in metric.variables]
    found = {key(c) for variable in [*own, *seeds, *metrics] for c in components(variable)}
    return found | global_seed_keys()


def _written(part: Any) -> list[Any]:
    """What one object writes: all that it has, if the user's class decides."""
    import keras
    import tensorflow as tf

    if not isinstance(part, keras.Layer):
        return list(getattr(part, "variables", ()))
    if not type(part).save_own_variables.__module__.startswith("keras."):
        return [*part.variables, *(item for item in descendants(part) if isinstance(item, tf.Variable))]
    return [*part._trainable_variables, *part._non_trainable_variables]


def steps_trained(model: Any) -> int:
    """Returns how many steps an optimizer of the model has taken: of several without a `model.optimizer`, the most.

    That of a model within the model, such as a teacher, does not count.
    """
    compiled = getattr(model, "optimizer", None)
    steps = model_parts.steps_taken(compiled) if compiled is not None else 0
    others = {id(optimizer) for optimizer, _ in model_parts.steps_of_submodels(model)}
    return steps or max([0, *(model_parts.steps_taken(o) for o in optimizers_within(model) if id(o) not in others)])


def descendants(root: Any) -> list[Any]:
    """Returns all that TensorFlow tracks of an object, itself first."""
    found = {id(root): root}
    queue = collections.deque([root])
    while queue:
        new = {id(child): child for child in _tracked(queue.popleft()) if id(child) not in found}
        found.update(new)
        queue.extend(new.values())
    return list(found.values())


def _tracked(parent: Any) -> Iterable[Any]:
    import tensorflow as tf

    try:
        return list(tf.train.TrackableView.children(parent).values())
    except ValueError:  # a list of the user's, of which items were replaced: TensorFlow refuses to save it
        of_dict = static.is_a(parent, dict)
        items = [item for _, item in static.pairs(parent)] if of_dict else static.contents(parent)
        return [item for item in items if static.has(item, "_trackable_children")]


def create_global_seed_generator() -> None:
    """Creates Keras' seed generator for `keras.random` calls without a seed, as its first use would.

    It gets its seed from Python's random state, which stays as it is.
    """
    from keras.src.random import seed_generator

    state = random.getstate()
    seed_generator.global_seed_generator()
    random.setstate(state)


def drop_global_seed_generator() -> None:
    """Lets the next `keras.random` call without a seed be the first one."""
    from keras.src.backend.common import global_state

    global_state.set_global_attribute("global_seed_generator", None)


def global_seed_keys() -> set[int]:
    """Returns the keys of Keras' global seed state; none before its first use."""
    generator = _global_seed_generator()
    return set() if generator is None else {key(component) for component in components(generator.state)}


def _global_seed_generator() -> Any:
    """Keras' seed generator for `keras.random` calls without a seed, if it exists already."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("global_seed_generator")
