"""How a walk looks at code: functions with what they read, methods, classes and modules."""

from __future__ import annotations

import functools
import logging
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_dist_callbacks._compat import library_state, rng
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.user_state import nodes as n
from keras_dist_callbacks.state.user_state.libraries import is_compiled_function, is_library
from keras_dist_callbacks.state.user_state.nodes import Slot, join
from keras_dist_callbacks.state.user_state.reads import Reads, code_digest, draws_from_shared_state, reads_of
from keras_dist_callbacks.state.user_state.walker import Walker, name_of


def look_at_function(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a function; one of the user's with a digest of its code, and with what the code reads."""
    if _is_of_library(value):
        walk.add_named(path, slot, value, "constant", is_traced)
        _push_wrapped(walk, path, value, is_traced)
        return
    if walk.is_asserted(value):
        walk.add_named(path, slot, value, "asserted", is_traced)
        return
    walk.add_named(path, slot, value, "function", is_traced)
    reads = _note_code(walk, path, value, is_traced)
    for index, default in enumerate(value.__defaults__ or ()):
        walk.push(join(path, f"default {_argument(value, index)}"), Slot("default", value, index), default, is_traced)
    for name, default in (value.__kwdefaults__ or {}).items():
        walk.push(join(path, f"default {name}"), Slot("keyword", value.__kwdefaults__, name), default, is_traced)
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        _push_cell(walk, join(path, f"closure {name}"), cell, is_traced)
    for name, item in vars(value).items():
        walk.push(join(path, name), Slot("attribute", value, name), item, is_traced)
    _push_globals(walk, path, value, reads, is_traced)


_MAKING = ("__init__", "__post_init__", "build", "compile", "adapt", "from_config", "set_model", "set_params")
"""Methods that set what an object or a training consists of, before the first trace."""


def _note_code(walk: Walker, path: str, value: types.FunctionType, is_traced: bool) -> Reads:
    reads = reads_of(value.__code__)
    walk.found.names |= reads.names
    walk.found.iterated |= reads.iterates
    name = f"{Path(value.__code__.co_filename).name}: {value.__qualname__}"
    others = walk.found.code.get(name, "").split()  # a file's lambdas have the same name
    walk.found.code[name] = " ".join(sorted({*others, code_digest(value.__code__)}))
    if draws_from_shared_state(value):
        walk.found.drawing[path] = value
    if value.__name__ not in _MAKING:
        walk.found.stored |= reads.stores
        walk.found.filled |= reads.fills
    if is_traced:
        walk.found.traced_names |= reads.names
        walk.found.traced_functions.add(value)
    return reads


def _argument(function: types.FunctionType, index: int) -> str:
    code, count = function.__code__, len(function.__defaults__ or ())
    return code.co_varnames[code.co_argcount - count + index]


def _push_cell(walk: Walker, path: str, cell: Any, is_traced: bool) -> None:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return
    walk.push(path, Slot("cell", cell), value, is_traced)


def _push_wrapped(walk: Walker, path: str, function: Any, is_traced: bool) -> None:
    """A library's wrapper around a function of the user's holds it in a cell, or as `__wrapped__`."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if static.is_a(value, types.FunctionType | types.MethodType | functools.partial) or is_of_the_user(value):
            walk.push(join(path, f"closure {name}"), None, value, is_traced)


def is_of_the_user(value: Any) -> bool:
    """Returns whether an object is of a class of the user's, or compiled from the user's code."""
    module = value.__module__ if is_compiled_function(value) else type(value).__module__
    return not static.is_a(value, type) and not is_library(module)


def _push_globals(walk: Walker, path: str, function: types.FunctionType, reads: Reads, is_traced: bool) -> None:
    namespace = function.__globals__
    module = str(namespace.get("__name__", "?"))
    if why := _why_unknown(reads, namespace, is_traced):
        walk.found.code_conditions[path] = why
    for name in sorted(reads.global_names & namespace.keys()):
        value = namespace[name]
        if static.is_a(value, types.ModuleType):
            _push_used(walk, value, reads, is_traced)
        else:
            walk.push(join(f"module {module}", name), Slot("global", namespace, name), value, is_traced)
            _push_used_of_class(walk, value, reads, is_traced)
    for name in sorted(reads.imports):
        found: Any = sys.modules.get(name)
        if static.is_a(found, types.ModuleType):
            _push_used(walk, found, reads, is_traced)
        elif found is not None:  # an object that a module has put in its own place
            walk.push(f"module {name}", None, found, is_traced)
    if reads.names & {"handlers", "filters"}:
        _push_of_loggers(walk, is_traced)


def _push_of_loggers(walk: Walker, is_traced: bool) -> None:
    """Handlers and filters of the user's, which a function reaches through any logger."""
    named = [found for found in logging.root.manager.loggerDict.values() if isinstance(found, logging.Logger)]
    for logger in (logging.root, *named):
        for kind in ("handlers", "filters"):
            for index, item in enumerate(getattr(logger, kind)):
                if is_of_the_user(item):
                    walk.push(f"logger {logger.name}/{kind}/{index}", None, item, is_traced)


def _why_unknown(reads: Reads, namespace: dict[str, Any], is_traced: bool) -> str | None:
    """Returns what a function does that cannot be inspected."""
    name = reads.dynamic or ("sys.modules" if "sys" in namespace and "modules" in reads.names else None)
    if name is not None and not (name in namespace and not is_library(_module_of(namespace[name]))):
        return f"it uses {name}"
    if "init_scope" in reads.names:
        return "it may read values when TensorFlow traces it (init_scope), which a restart does again"
    if is_traced:
        return None
    if reads.names & _AVERAGING:
        return "train_on_batch returns averages since the metrics of its model were reset"
    if reads.draws_seeded:
        return "it draws by TensorFlow's operations with seeds of their own, and these count calls"
    if reads.draws_unseeded and rng.global_seed() is None:
        return (
            "it may draw without a seed (by TensorFlow's operations, a dataset or a fit() of its own); call "
            "keras.utils.set_random_seed first"
        )
    if reads.reads_files is not None:
        return f"it may read a file that training has changed ({reads.reads_files})"
    return None


def _module_of(value: Any) -> str | None:
    found: str | None = static.attribute(value, "__module__") or static.attribute(value, "__name__")
    return found


def _push_used(walk: Walker, module: types.ModuleType, reads: Reads, is_traced: bool) -> None:
    """The names of a module of the user's that a function uses."""
    own, called = static.instance_dict(module), str(_module_of(module))
    if is_library(called):
        _push_used_of_library(walk, module, reads, is_traced)
        return
    used = reads.names & own.keys()
    if reads.names & _BY_NAME:
        used |= {name for name, item in own.items() if _may_be_setting(name, item)}
    for name in sorted(used):
        value = own[name]
        if static.is_a(value, types.ModuleType):
            _push_used(walk, value, reads, is_traced)
        else:
            walk.push(join(f"module {called}", name), Slot("attribute", module, name), value, is_traced)


_AVERAGING = frozenset(["train_on_batch", "test_on_batch"])
_BY_NAME = frozenset(["getattr", "setattr", "delattr", "vars", "__dict__"])
"""What reaches names of a module that are not in the code."""


def _may_be_setting(name: str, item: Any) -> bool:
    return not name.startswith("__") and not static.is_a(item, types.ModuleType | types.FunctionType | type)


def _push_used_of_library(walk: Walker, module: types.ModuleType, reads: Reads, is_traced: bool) -> None:
    """What the user may have put into a library's module, or into the environment of the process."""
    own, called = static.instance_dict(module), str(_module_of(module))
    path = f"module {called}"
    for name in sorted(reads.names & own.keys()):
        value = own[name]
        is_other = static.is_a(value, types.ModuleType) and value is not module
        if is_other and is_library(_module_of(value)):
            _push_classes_of_library(walk, value, reads, is_traced)
        if _is_plain(value) or is_of_the_user(value):
            walk.push(join(path, name), Slot("attribute", module, name), value, is_traced)
        _push_used_of_class(walk, value, reads, is_traced)
    if called == "os" and reads.names & {"environ", "getenv", "putenv"}:
        look_at_environment(walk, join(path, "environ"), is_traced)


def look_at_environment(walk: Walker, path: str, is_traced: bool) -> None:
    """Whether variables of the process' environment change: not their values, which may be credentials."""
    if path not in walk.found.nodes:
        walk.add(path, None, os.environ, "constant", is_traced)
        for name, value in os.environ.items():
            token = ("environment", hash(value))
            walk.add(join(path, name), Slot("item", os.environ, name), token, "environment", is_traced, token)


def _push_classes_of_library(walk: Walker, module: types.ModuleType, reads: Reads, is_traced: bool) -> None:
    """Those of a module within a module, such as `keras.layers`."""
    own = static.instance_dict(module)
    for name in sorted(reads.names & own.keys()):
        _push_used_of_class(walk, own[name], reads, is_traced)


def _push_used_of_class(walk: Walker, cls: Any, reads: Reads, is_traced: bool) -> None:
    """What the user may have put into a library's class."""
    if not static.is_a(cls, type) or not is_library(cls.__module__):
        return
    for name in sorted(reads.names & vars(cls).keys()):
        value = vars(cls)[name]
        if _is_plain(value) or is_of_the_user(value):
            walk.push(join(f"class {name_of(cls)}", name), Slot("attribute", cls, name), value, is_traced)


def _is_plain(value: Any) -> bool:
    return n.is_immutable(value) or (static.is_a(value, list | dict | set) and n.is_flat(_items(value)))


def _items(value: Any) -> list[Any]:
    values = [item for _, item in static.pairs(value)] if static.is_a(value, dict) else []
    return static.contents(value) + values


def look_at_module(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a module; of one of the user's, visits what may be a setting."""
    walk.add_named(path, slot, value, "constant", is_traced)
    called = str(_module_of(value))
    if is_library(called):
        return
    for name, item in static.instance_dict(value).items():
        if _may_be_setting(name, item):
            walk.push(join(f"module {called}", name), Slot("attribute", value, name), item, is_traced)


def _is_of_library(function: types.FunctionType) -> bool:
    defined_in = function.__globals__.get("__name__")  # functools.wraps copies the module's name, but not this
    return is_library(function.__module__) and (is_library(defined_in) or defined_in not in sys.modules)


def replaced_methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yields the user's functions that stand in for methods of a library's class, with their paths."""
    for base in cls.__mro__:
        if not is_library(base.__module__):
            continue
        for name, value in vars(base).items():
            if type(value) is types.FunctionType and not _is_of_library(value):
                yield join(f"class {name_of(base)}", name), value


def look_at_class(walk: Walker, path: str, slot: Slot | None, value: type, is_traced: bool) -> None:
    """Notes a class; of one of the user's, visits the attributes and the classes that it extends."""
    if is_library(value.__module__):
        walk.add_named(path, slot, value, "constant", is_traced)
        return
    if walk.is_asserted(value):
        walk.add_named(path, slot, value, "asserted", is_traced)
        return
    walk.add_named(path, slot, value, "class", is_traced)
    if library_state.is_traced_class(value):  # a call of another model is traced too
        methods = [item for item in vars(value).values() if type(item) is types.FunctionType]
        walk.found.traced_names.update(*(reads_of(method.__code__).names for method in methods))
        walk.found.traced_functions.update(methods)
    for name, item in vars(value).items():
        if static.is_a(item, types.MemberDescriptorType | types.GetSetDescriptorType) or _is_private(name, item):
            continue
        walk.push(join(path, name), Slot("attribute", value, name), item, is_traced)
    for base in (*value.__bases__, type(value)):
        if not is_library(base.__module__):
            walk.push(f"class {name_of(base)}", None, base, is_traced)


_NOT_CALLED = frozenset(
    [
        *("__repr__", "__str__", "__format__", "__del__", "__dir__", "__sizeof__", "__init_subclass__", "__copy__"),
        *("__class_getitem__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__"),
    ]
)
"""Special methods that training does not depend on."""
_GENERATED = ("<string>", "<namedtuple")


def _is_private(name: str, item: Any) -> bool:
    """Returns whether it belongs to how classes work, and is not a method of the user's."""
    if not (name.startswith("__") and name.endswith("__")):
        return name.startswith("_abc_")
    function = item.__func__ if type(item) in (staticmethod, classmethod) else item
    code = function.__code__ if type(function) is types.FunctionType else None
    return code is None or name in _NOT_CALLED or code.co_filename.startswith(_GENERATED)


def look_at_wrapper(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """A static method, class method, property, cached function: what it holds."""
    if walk.is_asserted(value):
        walk.add(path, slot, value, "asserted", is_traced)
        return
    if static.is_a(value, functools._lru_cache_wrapper) and not is_library(value.__module__):
        look_at_cached_function(walk, path, slot, value, is_traced)
    else:
        walk.add(path, slot, value, "constant", is_traced)
    for name in ("__func__", "fget", "fset", "func", "__wrapped__"):
        inner = static.attribute(value, name)
        if type(inner) is types.FunctionType:
            walk.push(join(path, name), None, inner, is_traced)


def look_at_cached_function(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """A function that remembers its results: they cannot be compared, but it counts those that it has computed."""
    info = value.cache_info()
    token = ("cached", info.misses, info.currsize)
    if walk.token_at_start(path, token) == token:
        walk.add(path, slot, value, "constant", is_traced, token)
    else:
        walk.add_unknown(path, slot, value, is_traced, "a function that remembers its results")


def look_at_method(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a method, and visits its object and its function."""
    owner, function = value.__self__, value.__func__ if type(value) is types.MethodType else None
    name = str(static.attribute(value if function is None else function, "__name__"))
    walk.found.names.add(name)  # who holds it may call it
    walk.add(path, slot, value, "method", is_traced, ("method", name))
    walk.push(join(path, "self"), None, owner, is_traced)
    if function is not None:
        walk.push(join(path, "function"), None, function, is_traced)


def look_at_builtin(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a function of C; of a method, visits the object."""
    if value.__self__ is None or static.is_a(value.__self__, types.ModuleType | type):
        walk.add_named(path, slot, value, "constant", is_traced)
    else:
        look_at_method(walk, path, slot, value, is_traced)


def look_at_partial(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Visits the function and the arguments of a `functools.partial`."""
    walk.add(path, slot, value, "object", is_traced)
    walk.push(join(path, "func"), None, value.func, is_traced)
    for index, item in enumerate(value.args):
        walk.push(join(path, f"argument {index}"), None, item, is_traced)
    for name, item in value.keywords.items():
        walk.push(join(path, name), Slot("item", value.keywords, name), item, is_traced)


def look_at_ufunc(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """One of numpy's, or one that `numpy.frompyfunc` has made of a function and does not show."""
    if value.types == [f"{'O' * value.nin}->{'O' * value.nout}"]:
        walk.add_unknown(path, slot, value, is_traced)
    else:
        look_at_constant(walk, path, slot, value, is_traced)


def look_at_constant(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes what never changes."""
    walk.add_named(path, slot, value, "constant", is_traced, repr(value))
