"""How each kind of object is looked at: what it holds, and whether a restart can make one that training has made."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import random
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_dist_callbacks._compat import graphs, library_state, variables
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state import own_values
from keras_dist_callbacks.state.own_objects import code, plain
from keras_dist_callbacks.state.own_objects.libraries import is_compiled_function, is_library, is_output
from keras_dist_callbacks.state.own_objects.look import Kind, Limits, Look, Make, Policy, Root
from keras_dist_callbacks.state.own_objects.places import Place, join, parent_of
from keras_dist_callbacks.state.own_objects.reads import reads_of
from keras_dist_callbacks.state.own_values import Answer, UnstorableError

Tensors = dict[str, SharedTensor]


def look_at(
    roots: Mapping[str, Root], policy: Policy, limits: Limits | None = None, *, start: Look | None = None
) -> Look:
    """Looks at everything that the roots reach. See `Look`."""
    return Look(_kind_of, roots, policy, start, limits)


# --- containers


def _visit_container(look: Look, path: str, value: Any) -> None:
    look.mutable.add(id(value))
    if not _is_doubted(look, path, value):
        look.note(f"{path}/", _content, value)
        if (factory := _factory(value)) is not None:
            look.reach(join(path, "default_factory"), factory)


def _new_container(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    look.mutable.add(id(value))
    cls = type(value)
    if _is_doubted(look, path, value):
        return {"$unsaved": [id(value)]}
    content = _content(look, value, path, tensors)
    if not is_library(cls.__module__):
        if look.stores and (static.is_its_own_dict(value) or _has_own_new(cls)):
            raise _not_made(value)
        _reach_class(look, value)
        return {"$new": [plain.name_of(cls), _fields(look, value, path, tensors), content]}
    if (factory := _factory(value)) is not None:
        return {"$factory": [own_values.encode(factory, join(path, "default_factory"), tensors, look), content]}
    if not (cls in _PLAIN or own_values.kind_of_mapping(value) or cls.__module__.startswith(_WRAPPING)):
        raise _not_made(value)
    return content


def _not_made(value: Any) -> UnstorableError:
    return UnstorableError(f"a new {type(value).__qualname__} cannot be made again from a backup")


_PLAIN = frozenset([list, dict, set, collections.deque, bytearray])
_WRAPPING = ("keras.", "tensorflow.")
"""They put containers of their own in the place of those that are assigned to a model."""


def _content(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    is_flat = static.is_a(value, bytearray) or plain.is_flat(plain.items_of(value))
    return (
        {"$flat": plain.flat_token(value)}
        if is_flat and not look.stores
        else own_values.whole(value, path, tensors, look)
    )


def _visit_attributes_beside(look: Look, path: str, value: Any) -> None:
    """What an object holds by name besides its content, such as a counter that was set on a `functools.partial`."""
    _reach_class(look, value)
    for name, item in _attributes(value):
        look.slot(join(path, f".{name}"), Place("attribute", value, name), item)


def _with_attributes(visit: Callable[[Look, str, Any], None]) -> Callable[[Look, str, Any], None]:
    def visit_both(look: Look, path: str, value: Any) -> None:
        _visit_attributes_beside(look, path, value)
        visit(look, path, value)

    return visit_both


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Returns what an object holds by name that the user has put there."""
    if is_library(type(value).__module__):
        held = static.instance_dict(value)
        return [x for x in held.items() if not x[0].startswith("__") and library_state.may_be_state(value, *x)]
    return [(name, item) for name, item, kind in library_state.attributes(value, of_training=False) if kind]


def _fields(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    held = _attributes(value)
    return {"$dict": [[name, own_values.encode(item, join(path, name), tensors, look)] for name, item in held]}


def _has_own_new(cls: type) -> bool:
    return any("__new__" in vars(base) for base in cls.__mro__ if not is_library(base.__module__))


def _reach_class(look: Look, value: Any) -> None:
    cls = type(value)
    if not is_library(cls.__module__):
        look.reach(f"class {plain.name_of(cls)}", cls)


def _is_doubted(look: Look, path: str, value: Any) -> bool:
    """Notes a container of which it is not known how another process has the same."""
    why = None
    if static.is_a(value, set | frozenset):
        why = None if plain.is_flat(_members(value)) else "a set of objects"
    elif static.is_a(value, dict):
        why = _doubt_about_keys(value)
    if why is not None and look.stores:
        raise UnstorableError(why)
    if why is not None:
        look.doubt(path, why)
    elif static.is_a(value, set | frozenset):
        _note_set(look, path, value)
    return why is not None


def _members(value: Any) -> list[Any]:
    """Returns the items of a set; of tuples, such as pairs that were seen, what is in these."""
    items = static.contents(value)
    return [part for item in items for part in (item if type(item) is tuple else (item,))]


def _doubt_about_keys(value: Any) -> str | None:
    keys = static.contents(value)
    if set(map(type, keys)) <= {str}:
        return None  # each is its own text
    if any(type(key) is int and key > _SMALLEST_ADDRESS for key in keys):
        return "a dict whose keys may be the ids of objects"
    if plain.is_flat(keys):
        texts = [repr(key) if type(key) is not str else key for key in keys]
    else:
        texts = [own_values.key_text(key) for key in keys if _is_key(key)]
    if len(texts) < len(keys):
        return "a dict whose keys are objects"
    return "a dict with keys that have the same text" if len(set(texts)) < len(texts) else None


_SMALLEST_ADDRESS = 2**32


def _is_key(key: Any) -> bool:
    if plain.is_immutable(key) or (type(key) is tuple and all(map(plain.is_immutable, key))):
        return True
    return static.is_a(key, type | types.FunctionType)


def _note_set(look: Look, path: str, value: Any) -> None:
    items = static.contents(value)
    if len(items) > 1:
        look.sets[path], look.orders_of_sets[path] = value, items
        if sys.flags.hash_randomization and {str, bytes} & set(map(type, _members(value))):
            look.sets_of_texts.add(path)


def _factory(value: Any) -> Any:
    """Returns the function that makes the values of a defaultdict, if it is no class of Python's own."""
    if not static.is_a(value, collections.defaultdict):
        return None
    factory = vars(collections.defaultdict)["default_factory"].__get__(static.target(value))
    return None if own_values.kind_of_mapping(value) else factory


def _tuple(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    cls = type(value)
    if static.is_a(value, frozenset) and _is_doubted(look, path, value):
        return {"$unsaved": [id(value)]}
    fields = None if cls in (tuple, frozenset) else static.attribute(value, "_fields")
    if fields is not None:
        look.reach(f"class {plain.name_of(cls)}", cls)
        _visit_attributes_beside(look, path, value)
        items = [own_values.encode(item, join(path, n), tensors, look) for n, item in enumerate(static.contents(value))]
        return {"$new": [plain.name_of(cls), {"$dict": [[*pair] for pair in zip(fields, items, strict=True)]}]}
    if cls not in (tuple, frozenset) and not cls.__module__.startswith(_WRAPPING):
        _visit_attributes_beside(look, path, value)
        if look.stores:
            raise _not_made(value)
    if plain.is_flat(static.contents(value)) and not look.stores:
        return {"$flat": plain.flat_token(value)}
    return own_values.whole(value, path, tensors, look)


# --- arrays, random generators, tensors, variables


def _visit_array(look: Look, path: str, value: Any) -> None:
    look.mutable.add(id(value))
    if not _is_doubted_array(look, path, value):
        look.note(f"{path}/", _content_of_array, value)


def _new_array(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    if look.stores and type(value) is not np.ndarray:
        raise _not_made(value)
    look.mutable.add(id(value))
    if not look.stores and _is_doubted_array(look, path, value):
        return {"$unsaved": [id(value)]}
    if not value.flags.c_contiguous and not look.was_there(value):
        look.unknown[path] = "an array whose order in memory is not saved"
    return _content_of_array(look, value, path, tensors)


def _is_doubted_array(look: Look, path: str, value: Any) -> bool:
    kind = value.dtype.kind
    is_flat = kind in "USmM" or (value.dtype.hasobject and plain.is_flat(value.reshape(-1).tolist()))
    if type(value) not in (np.ndarray, np.memmap):  # one with a mask, for instance
        _doubt(look, path, value)
    elif not (plain.is_numeric(value) or is_flat):
        look.doubt(path, "a structured array" if value.dtype.names else "an array of objects")
    elif not look.allows(value.nbytes):
        look.doubt(path, "an array too large to compare")
    else:
        look.arrays.setdefault(id(plain.base_of(value)), []).append((path, value))
        return False
    return True


def _content_of_array(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    if look.stores:
        return own_values.whole(value, path, tensors, look)
    if plain.is_numeric(value):
        return {"$array": plain.array_token(value)}
    items = value.reshape(-1).tolist()
    return {"$array": [value.shape, plain.flat_token(items if value.dtype.hasobject else list(map(str, items)))]}


def _visit_random(look: Look, path: str, value: Any) -> None:
    look.note(f"{path}/", _content_of_random, value)


def _content_of_random(look: Look, value: Any, path: str, tensors: Tensors, *, seeds: bool = False) -> JSON:
    look.mutable.add(id(value))
    state = plain.random_state(value, seeds=seeds)
    if not look.stores:
        return {"$random": [type(value).__name__, repr(state)]}
    return {"$random": [type(value).__name__, own_values.encode(state, path, tensors, Answer())]}


def _new_random(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    return _content_of_random(look, value, path, tensors, seeds=True)


def _tensor(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    if not static.has(value, "numpy") or not value.dtype.is_numpy_compatible:
        look.uncompared.append(path)
        return {"$keep": [path, "tensor"]}
    array = np.asarray(value.numpy())
    if look.stores:
        if not plain.is_numeric(array):
            raise UnstorableError(_TEXTS)
        return {"$tensor": own_values.encode(array, path, tensors, Answer())}
    return {"$tensor": plain.array_token(array) if plain.is_numeric(array) else repr(array)}


_TEXTS = "texts in a tensor or variable are not saved"


def _visit_variable(look: Look, path: str, value: Any) -> None:
    for name, item, kind in variables.attributes_of_the_user(value):
        look.slot(join(path, name), Place(kind, value, name), item)
    component = variables.components(value)[0]
    if look.is_saved(value) or component.dtype.name in {"resource", "variant"}:
        look.uncompared.append(path)
    elif component.dtype.name == "string":
        look.note(f"{path}/", _unsaved(_TEXTS, lambda variable: repr(variable.numpy())), component)
    else:
        look.variables[path] = value
        look.note(f"{path}/", _content_of_variable, value)
        look.uncompared.append(path)


def _content_of_variable(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    arrays = [variables.read(component) for component in variables.components(value)]
    if not look.stores:
        return {"$variable": list(map(plain.array_token, arrays))}
    if not (look.start is None or path in look.start.objects or _is_of_known_optimizer(look.start, path)):
        raise UnstorableError("a variable that training has made, which is not there when training resumes")
    return {"$variable": own_values.encode(arrays, path, tensors, Answer())}


def _is_of_known_optimizer(start: Look, path: str) -> bool:
    """Returns whether a restart has the model, trained by a callback, whose optimizer a variable belongs to."""
    model, _, rest = path.rpartition("/optimizer/")
    return rest.startswith("variable ") and model in start.objects and f"{model}/optimizer" in start.objects


# --- what can be compared, and not made again


def _unsaved(why: str, token: Callable[[Any], Any]) -> Make:
    def make(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
        if look.stores:
            raise UnstorableError(why)
        return {"$unsaved": token(value)}

    return make


def _comparing(why: str, token: Callable[[Any], Any]) -> Kind:
    def visit(look: Look, path: str, value: Any) -> None:
        look.uncompared.append(path)
        look.note(f"{path}/", _unsaved(why, token), value)

    return Kind(visit)


def _doubting(why: str, token: Callable[[Any], Any]) -> Kind:
    return Kind(_with_attributes(lambda look, path, value: look.doubt_if_changed(path, token(value), why)))


def _doubt(look: Look, path: str, value: Any) -> None:
    look.doubt(path, _with_article(plain.name_of(type(value))))


def _with_article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeio" else f"a {name}"


def _visit_owned(look: Look, path: str, value: Any) -> None:
    look.uncompared.append(path)


def _visit_constant(look: Look, path: str, value: Any) -> None:
    """It has no state."""


def _visit_dataset(look: Look, path: str, value: Any) -> None:
    look.mutable.add(id(value))
    look.uncompared.append(path)
    look.datasets[path] = value


def _table_token(table: Any) -> Any:
    return [plain.flat_token(np.asarray(part).reshape(-1).tolist()) for part in graphs.table_content(table)]


def _visit_reference(look: Look, path: str, value: Any) -> None:
    look.reach(join(path, "referent"), weakref.ref.__call__(value))


def _visit_generator_of_tensorflow(look: Look, path: str, value: Any) -> None:
    look.reach(join(path, "state"), value.state)


def _visit_traced_function(look: Look, path: str, value: Any) -> None:
    """A `tf.function`, with the names that it read when it was traced."""
    if drawn := graphs.random_operations(value):
        look.doubt(path, f"it draws by TensorFlow's {drawn[0]}, whose state cannot be saved")
    function = value.python_function
    function = function.__func__ if type(function) is types.MethodType else function
    if type(function) is types.FunctionType:  # and not an object that can be called
        look.code.traced_functions.add(function)
        if graphs.concrete_functions(value):
            look.code.names_in_functions |= reads_of(function.__code__).names
            look.code.names_in_functions.update(function.__code__.co_freevars)
    look.reach(join(path, "python_function"), value.python_function)


def _visit_universal_function(look: Look, path: str, value: Any) -> None:
    """One of numpy's, or one that `numpy.frompyfunc` has made of a function and does not show."""
    if value.types == [f"{'O' * value.nin}->{'O' * value.nout}"]:
        _doubt(look, path, value)


def _constant(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    look.name(repr(value), value)
    return {"$named": repr(value)}


# --- instances


def _visit_instance(look: Look, path: str, value: Any) -> None:
    cls: Any = type(value)
    if cls not in look.classes:
        look.classes.add(cls)
        for at, function in code.replaced_methods(cls):
            look.reach(at, function)
    if library_state.is_library_layer(value):
        _visit_library_layer(look, path, value)
        return
    fixed = _fixed(look, value)
    if fixed == "constant":
        held = static.instance_dict(value).items()
        look.counted |= {join(path, name): item for name, item in held if type(item) in (int, float)}
    elif fixed is not None:
        look.uncompared.append(path)
    elif _only_writes(value) or library_state.is_opaque(value) or not _is_open(cls):
        _doubt(look, path, value)
    elif _has_known_state(look, path, value) and not library_state.is_rich_progress(value):
        look.mutable.add(id(value))
        _visit_attributes(look, path, value)


def _new_instance(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    look.mutable.add(id(value))
    _reach_class(look, value)
    return {"$new": [plain.name_of(type(value)), _fields(look, value, path, tensors)]}


def _consists_of_attributes(cls: type) -> bool:
    """Returns whether an object of a class of the user's is nothing but its attributes."""
    is_plain = not any(is_library(base.__module__) for base in cls.__mro__[:-1]) and not _has_own_new(cls)
    return is_plain and _is_open(cls)


def _fixed(look: Look, value: Any) -> Literal["constant", "asserted", "owned"] | None:
    """Returns why an instance is not looked into; None of any other."""
    if _only_writes(value) and is_library(type(value).__module__):  # the user's own may keep more
        return "constant"
    if is_compiled_function(value) and is_library(value.__module__):
        return "constant"
    if look.policy.is_asserted(value):
        return "asserted"
    return "owned" if library_state.is_owned(value) else None


def _only_writes(value: Any) -> bool:
    """Returns whether an object only writes output, and callbacks know nothing of it that a restore must put back."""
    return is_output(value) and not library_state.is_rich_progress(value)


def _has_known_state(look: Look, path: str, value: Any) -> bool:
    """Notes what an object says itself of its state, by `get_state` or the like; returns whether it could be asked."""
    own = look.policy.own_state(value)
    if own is None and not is_library(type(value).__module__):
        look.note(f"{path}/", _class, value)
    if own is None:
        return True
    if not look.policy.is_listed(value):  # the table of callbacks saves it
        try:
            answer = own[0]()
        except Exception as error:  # noqa: BLE001 - one of another meaning, with arguments say
            look.doubt(path, f"its get_state() raised {type(error).__name__}: {error}")
            return False
        look.note(f"{path}/", _answer, answer)
    look.holds_own_state(path, f"class {plain.name_of(type(value))}")
    return True


def _class(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    return {"$class": plain.name_of(type(value))}


def _answer(look: Look, value: Any, path: str, tensors: Tensors) -> JSON:
    """Without references: `set_state` may read all of it, before they are restored."""
    if look.stores:
        return {"$own": own_values.encode(value, path, tensors, Answer())}
    return {"$own": repr(_plain_answer(value))}


def _plain_answer(value: Any) -> Any:
    if static.is_a(value, dict):
        return {key: _plain_answer(item) for key, item in static.pairs(value)}
    if static.is_a(value, list | tuple):
        return [_plain_answer(item) for item in static.contents(value)]
    if static.is_a(value, np.ndarray):
        return _plain_answer(value.tolist()) if value.dtype.hasobject else plain.array_token(value)
    return value


def _visit_attributes(look: Look, path: str, value: Any) -> None:
    _reach_class(look, value)
    of_training = look.is_traced and library_state.is_layer(value) and _is_of_training(look, path)
    if not of_training:
        _note_metrics(look, path, value)
    is_listed = look.policy.is_listed(value) and look.policy.own_state(value) is None
    for name, item, kind in library_state.attributes(value, of_training=of_training, is_listed=is_listed):
        if static.is_a(item, list | dict) and library_state.are_slots(item, value):
            continue  # an optimizer's, of variables that it makes when it is built
        at = join(path, name)
        if kind:
            look.slot(at, Place(kind, value, name), item)
        else:
            look.reach(at, item)


def _note_metrics(look: Look, path: str, value: Any) -> None:
    """Notes what a model has measured that a callback trains: the next time, Keras sets that to zero first."""
    if library_state.is_model(value):
        found = [c for variable in library_state.compiled_metrics(value) for c in variables.components(variable)]
        look.metrics[path] = [plain.array_token(variables.read(component)) for component in found]


def _visit_library_layer(look: Look, path: str, value: Any) -> None:
    """A layer of Keras with its settings, and the layers within it."""
    look.uncompared.append(path)
    settings, others = library_state.settings_of_layer(value)
    look.settings[path] = settings
    for name, item in others:
        look.slot(join(path, name), Place("attribute", value, name), item)
    of_training = look.is_traced and _is_of_training(look, path)
    if not of_training:
        _note_metrics(look, path, value)
    for name, item, _ in library_state.parts(value, of_training=of_training):
        look.reach(join(path, name), item)


def _is_of_training(look: Look, path: str) -> bool:
    """Returns whether Keras lists the variables of what is at a path, as part of the model, its optimizer or metrics.

    A step may use other layers and models, in its loss say, of which callbacks change more than the step uses.
    """
    above = parent_of(path)[0]
    while above in look.objects and type(look.objects[above]).__module__ in _WRAPPERS:
        above = parent_of(above)[0]
    if path in _LISTED_ROOTS or above in look.of_training:
        look.of_training.add(path)
    return path in look.of_training


_WRAPPERS = ("keras.src.utils.tracking", "tensorflow.python.trackable.data_structures")
"""Where the containers are defined in which Keras and TensorFlow wrap those of a model."""
_LISTED_ROOTS = ("model", "optimizer", "metrics", "weighted metrics")


@functools.lru_cache(maxsize=4096)
def _is_open(cls: Any) -> bool:
    """Whether all that instances hold is in their `__dict__` and slots: nothing that a class of C keeps for itself."""
    items = [item for base in cls.__mro__ if "__slots__" in vars(base) for item in vars(base).values()]
    slots = [item for item in items if type(item) is types.MemberDescriptorType]
    pointers = len(slots) + bool(cls.__dictoffset__) + bool(cls.__weakrefoffset__)
    is_small = cls.__itemsize__ == 0 and cls.__basicsize__ <= object.__basicsize__ + pointers * _POINTER
    return is_small and not static.hides_dict(cls)


_POINTER = struct.calcsize("P")


# --- all of them

_ADVANCED = "was advanced, and its position is not saved"
_ITERATOR = _comparing(f"an iterator {_ADVANCED}; keep a number instead", plain.iterator_token)
_KINDS: list[tuple[tuple[type, ...], Kind]] = [
    ((list, dict, set, collections.deque, bytearray), Kind(_with_attributes(_visit_container), _new_container)),
    ((tuple, frozenset), Kind(None, _tuple)),
    ((np.ndarray,), Kind(_visit_array, _new_array)),
    ((random.SystemRandom,), Kind(_visit_constant)),
    (
        (random.Random, np.random.Generator, np.random.RandomState),
        Kind(_with_attributes(_visit_random), _new_random),
    ),
    ((keras.Variable, tf.Variable), Kind(_visit_variable)),
    ((tf.Tensor,), Kind(None, _tensor)),
    ((tf.random.Generator,), Kind(_visit_generator_of_tensorflow)),
    ((type(tf.function(lambda: None)),), Kind(_with_attributes(_visit_traced_function))),
    ((type(tf.custom_gradient(lambda x: x)),), Kind(code.visit_wrapper)),
    ((tf.data.Dataset,), Kind(_with_attributes(_visit_dataset))),
    ((keras.KerasTensor, tf.distribute.Strategy, tf.lookup.StaticHashTable), Kind(_visit_owned)),
    (
        (tf.lookup.experimental.MutableHashTable,),
        _comparing("a lookup table was changed, and its content is not saved", _table_token),
    ),
    ((types.FunctionType,), Kind(code.visit_function)),
    ((types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType), Kind(None, code.method)),
    ((functools.partial,), Kind(_with_attributes(code.visit_partial))),
    ((type,), Kind(code.visit_class)),
    ((types.ModuleType,), Kind(code.visit_module)),
    ((staticmethod, classmethod, property, functools.cached_property), Kind(code.visit_wrapper)),
    ((functools._lru_cache_wrapper,), Kind(_with_attributes(code.visit_wrapper))),
    ((type(iter([])), type(iter(())), type(iter(range(0))), type(iter(np.zeros(1))), type(reversed([]))), _ITERATOR),
    ((itertools.count,), _ITERATOR),
    ((types.GeneratorType,), _comparing(f"a Python generator {_ADVANCED}", plain.iterator_token)),
    (
        (threading.Event,),
        _doubting("an event that training has set or cleared", lambda event: bool(static.attribute(event, "_flag"))),
    ),
    ((type(threading.Lock()),), _doubting("a lock that training took or released", lambda lock: lock.locked())),
    ((threading.local, threading.Semaphore, threading.Barrier), Kind(_doubt)),
    ((np.ufunc,), Kind(_visit_universal_function)),
    ((weakref.ReferenceType,), Kind(_visit_reference)),
    (
        (
            *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, np.dtype),
            *(types.GenericAlias, tf.DType, tf.TensorShape, tf.TypeSpec),
            *(operator.itemgetter, operator.attrgetter, operator.methodcaller, type(Place.kind)),
        ),
        Kind(None, _constant),
    ),
]


@functools.lru_cache(maxsize=4096)
def _kind_of(cls: type) -> Kind:
    """The first that fits; not by `issubclass`, for which `tf.TypeSpec` asks hundreds of classes each time."""
    bases = set(cls.__mro__)
    found = next((kind for kinds, kind in _KINDS if not bases.isdisjoint(kinds)), None)
    return found or Kind(_visit_instance, _new_instance if _consists_of_attributes(cls) else None)
