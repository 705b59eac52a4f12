"""How code is looked at: functions with what they read, methods, classes and modules."""

from __future__ import annotations

import functools
import logging
import operator
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_dist_callbacks._compat import library_state, rng
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state import own_values
from keras_dist_callbacks.state.own_objects import plain
from keras_dist_callbacks.state.own_objects.libraries import is_compiled_function, is_library
from keras_dist_callbacks.state.own_objects.look import Look
from keras_dist_callbacks.state.own_objects.places import Place, join
from keras_dist_callbacks.state.own_objects.reads import Reads, code_digest, draws_from_shared_state, reads_of

_MAKING = ("__init__", "__post_init__", "build", "compile", "adapt", "from_config", "set_model", "set_params")
"""Methods that set what an object or a training consists of, before the first trace."""


def visit_function(look: Look, path: str, value: types.FunctionType) -> None:
    """Visits what a function of the user's reads; of a library's, a function of the user's that it wraps."""
    look.name(plain.label_of(value), value)
    cells = list(_cells(value))
    if _is_of_library(value):
        for name, cell in cells:
            item = cell.cell_contents
            if static.is_a(item, types.FunctionType | types.MethodType | functools.partial) or is_of_the_user(item):
                look.reach(join(path, f"closure {name}"), item)
        return
    if look.policy.is_asserted(value):
        return
    reads = _note_code(look, path, value)
    look.doubt_if_changed(path, code_digest(value.__code__), "a function whose code training has replaced")
    defaults = value.__defaults__ or ()
    first = value.__code__.co_argcount - len(defaults)  # the last arguments have the defaults
    for index, default in enumerate(defaults):
        name = value.__code__.co_varnames[first + index]
        look.slot(join(path, f"default {name}"), Place("default", value, index), default)
    for name, default in (value.__kwdefaults__ or {}).items():
        look.slot(join(path, f"default {name}"), Place("item", value.__kwdefaults__, name), default)
    for name, cell in cells:
        look.slot(join(path, f"closure {name}"), Place("cell", cell), cell.cell_contents)
    for name, item in vars(value).items():
        if not library_state.is_mark(name):
            look.slot(join(path, name), Place("attribute", value, name), item)
    _visit_globals(look, path, value, reads)


def _cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return ((name, cell) for name, cell in cells if cell != types.CellType())  # one that is not assigned yet


def _note_code(look: Look, path: str, value: types.FunctionType) -> Reads:
    reads = reads_of(value.__code__)
    look.code.names |= reads.names
    look.code.iterated |= reads.iterates
    name = f"{Path(value.__code__.co_filename).name}: {value.__qualname__}"
    others = look.code.digests.get(name, "").split()  # a file's lambdas have the same name
    look.code.digests[name] = " ".join(sorted({*others, code_digest(value.__code__)}))
    if draws_from_shared_state(value):
        look.code.drawing[path] = value
    if value.__name__ not in _MAKING:
        look.code.stored |= reads.stores
        look.code.filled |= reads.fills
    if look.is_traced:
        look.code.traced_names |= reads.names
        look.code.traced_functions.add(value)
    return reads


def _is_of_library(function: types.FunctionType) -> bool:
    defined_in = function.__globals__.get("__name__")  # functools.wraps copies the module's name, but not this
    return is_library(function.__module__) and (is_library(defined_in) or defined_in not in sys.modules)


def is_of_the_user(value: Any) -> bool:
    """Returns whether an object is of a class of the user's, or compiled from the user's code."""
    module = value.__module__ if is_compiled_function(value) else type(value).__module__
    return not static.is_a(value, type) and not is_library(module)


# --- what a function names


def _visit_globals(look: Look, path: str, function: types.FunctionType, reads: Reads) -> None:
    namespace = function.__globals__
    module = str(namespace.get("__name__", "?"))
    look.namespaces[f"module {module}"] = namespace
    if why := _why_unknown(reads, namespace, is_traced=look.is_traced):
        look.code.conditions[path] = why
    for name in sorted(reads.global_names & namespace.keys()):
        value = namespace[name]
        if static.is_a(value, types.ModuleType):
            _visit_used(look, value, reads)
        else:
            look.slot(join(f"module {module}", name), Place("global", namespace, name), value)
            _visit_used_of_class(look, value, reads)
    for name in sorted(reads.imports):
        found: Any = sys.modules.get(name)
        if static.is_a(found, types.ModuleType):
            _visit_used(look, found, reads)
        elif found is not None:  # an object that a module has put in its own place
            look.reach(f"module {name}", found)
    if reads.names & {"handlers", "filters"}:
        _visit_loggers(look)


def _visit_loggers(look: Look) -> None:
    """Handlers and filters of the user's, which a function reaches through any logger."""
    named = [found for found in logging.root.manager.loggerDict.values() if isinstance(found, logging.Logger)]
    for logger in (logging.root, *named):
        for kind in ("handlers", "filters"):
            for index, item in enumerate(getattr(logger, kind)):
                if is_of_the_user(item):
                    look.reach(f"logger {logger.name}/{kind}/{index}", item)


def _why_unknown(reads: Reads, namespace: dict[str, Any], *, is_traced: bool) -> str | None:
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


_AVERAGING = frozenset(["train_on_batch", "test_on_batch"])
_BY_NAME = frozenset(["getattr", "setattr", "delattr", "vars", "__dict__"])
"""What reaches names of a module that are not in the code."""


def _module_of(value: Any) -> str | None:
    found: str | None = static.attribute(value, "__module__") or static.attribute(value, "__name__")
    return found


def _visit_used(look: Look, module: types.ModuleType, reads: Reads) -> None:
    """The names of a module that a function uses; of a library's, what the user may have put there."""
    own, called = static.instance_dict(module), str(_module_of(module))
    of_library = is_library(called)
    used = reads.names & own.keys()
    if reads.names & _BY_NAME and not of_library:
        used |= {name for name, item in own.items() if _may_be_setting(name, item)}
    for name in sorted(used):
        value = own[name]
        if static.is_a(value, types.ModuleType):
            if not of_library:
                _visit_used(look, value, reads)
            elif value is not module and is_library(_module_of(value)):  # such as `keras.layers`
                classes = static.instance_dict(value)
                for inner in sorted(reads.names & classes.keys()):
                    _visit_used_of_class(look, classes[inner], reads)
        elif not of_library or _is_plain(value) or is_of_the_user(value):
            look.slot(join(f"module {called}", name), Place("attribute", module, name), value)
        if of_library:
            _visit_used_of_class(look, value, reads)
    if called == "os" and reads.names & {"environ", "getenv", "putenv"}:
        # Whether variables of the process' environment change: not their values, which may be credentials.
        look.uncompared.append("module os/environ")
        look.environment = {name: hash(value) for name, value in os.environ.items()}


def _may_be_setting(name: str, item: Any) -> bool:
    return not name.startswith("__") and not static.is_a(item, types.ModuleType | types.FunctionType | type)


def _visit_used_of_class(look: Look, cls: Any, reads: Reads) -> None:
    """What the user may have put into a library's class."""
    if not static.is_a(cls, type) or not is_library(cls.__module__):
        return
    for name in sorted(reads.names & vars(cls).keys()):
        value = vars(cls)[name]
        if _is_plain(value) or is_of_the_user(value):
            look.slot(join(f"class {plain.name_of(cls)}", name), Place("attribute", cls, name), value)


def _is_plain(value: Any) -> bool:
    return plain.is_immutable(value) or (static.is_a(value, list | dict | set) and plain.is_flat(plain.items_of(value)))


# --- modules, classes, methods and what wraps functions


def visit_module(look: Look, path: str, value: Any) -> None:
    """Visits what may be a setting in a module of the user's that an object holds."""
    look.uncompared.append(path)
    called = str(_module_of(value))
    look.name(called, value)
    for name, item in static.instance_dict(value).items() if not is_library(called) else ():
        if _may_be_setting(name, item):
            look.slot(join(f"module {called}", name), Place("attribute", value, name), item)


def replaced_methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yields the user's functions that stand in for methods of a library's class, with their paths."""
    for base in cls.__mro__:
        if is_library(base.__module__):
            yield from _methods(base).replaced(base)


class _Methods:
    """What a class held when it was last looked at, and which of it are functions of the user's."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._replaced: list[tuple[str, types.FunctionType]] = []

    def replaced(self, cls: type) -> list[tuple[str, types.FunctionType]]:
        held = list(vars(cls).values())
        if len(held) != len(self._held) or not all(map(operator.is_, held, self._held)):
            of_users = {n: f for n, f in vars(cls).items() if type(f) is types.FunctionType and not _is_of_library(f)}
            self._replaced = [(join(f"class {plain.name_of(cls)}", name), f) for name, f in of_users.items()]
            self._held = held
        return self._replaced


@functools.lru_cache(maxsize=4096)
def _methods(cls: type) -> _Methods:
    return _Methods()  # each save looks at each class, and hardly ever one has changed


def visit_class(look: Look, path: str, value: type) -> None:
    """Visits the attributes of a class of the user's, and the classes that it extends."""
    look.name(plain.name_of(value), value)
    if is_library(value.__module__) or look.policy.is_asserted(value):
        return
    if library_state.is_traced_class(value):  # a call of another model is traced too
        methods = [item for item in vars(value).values() if type(item) is types.FunctionType]
        look.code.traced_names.update(*(reads_of(method.__code__).names for method in methods))
        look.code.traced_functions.update(methods)
    for name, item in vars(value).items():
        if not (static.is_a(item, types.MemberDescriptorType | types.GetSetDescriptorType) or _is_private(name, item)):
            look.slot(join(path, name), Place("attribute", value, name), item)
    for base in (*value.__bases__, type(value)):
        if not is_library(base.__module__):
            look.reach(f"class {plain.name_of(base)}", base)


_NOT_CALLED = frozenset(
    [
        *("__repr__", "__str__", "__format__", "__del__", "__dir__", "__sizeof__", "__init_subclass__", "__copy__"),
        *("__class_getitem__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__"),
    ]
)
"""Special methods that training does not depend on."""


def _is_private(name: str, item: Any) -> bool:
    """Returns whether it belongs to how classes work, and is not a method of the user's."""
    if not (name.startswith("__") and name.endswith("__")):
        return name.startswith("_abc_")
    function = item.__func__ if type(item) in (staticmethod, classmethod) else item
    code = function.__code__ if type(function) is types.FunctionType else None
    return code is None or name in _NOT_CALLED or code.co_filename.startswith(("<string>", "<namedtuple"))


def visit_wrapper(look: Look, path: str, value: Any) -> None:
    """A static method, class method, property, cached function: what it holds."""
    if look.policy.is_asserted(value):
        return
    if static.is_a(value, functools._lru_cache_wrapper) and not is_library(value.__module__):
        info = value.cache_info()  # the results cannot be compared, but it counts those that it has computed
        look.doubt_if_changed(path, (info.misses, info.currsize), "a function that remembers its results")
    for name in ("__func__", "fget", "fset", "func", "__wrapped__"):
        inner = static.attribute(value, name)
        if type(inner) is types.FunctionType:
            look.reach(join(path, name), inner)


def visit_partial(look: Look, path: str, value: functools.partial[Any]) -> None:
    """Visits the function and the arguments of a `functools.partial`."""
    look.reach(join(path, "func"), value.func)
    for index, item in enumerate(value.args):
        look.slot(join(path, f"argument {index}"), None, item)
    for name, item in value.keywords.items():
        look.slot(join(path, name), Place("item", value.keywords, name), item)


def method(look: Look, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON:
    """What stands for a method: its object and its function; for a function of C, its name."""
    owner, function = value.__self__, value.__func__ if type(value) is types.MethodType else None
    if function is None and (owner is None or static.is_a(owner, types.ModuleType | type)):
        look.name(plain.name_of(value), value)
        return {"$named": plain.name_of(value)}
    name = str(static.attribute(value if function is None else function, "__name__"))
    look.code.names.add(name)  # who holds it may call it
    bound = own_values.encode(owner, join(path, "self"), tensors, look)
    if type(function) is not types.FunctionType:
        return {"$bound": [bound, name]}
    in_class = static.attribute(owner, name)
    in_class = in_class.__func__ if isinstance(in_class, classmethod) else in_class
    by_hand = own_values.encode(function, join(path, "function"), tensors, look)
    return {"$bound": [bound, name] if in_class is function else [bound, name, by_hand]}
