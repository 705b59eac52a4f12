"""What a function's bytecode refers to: globals, attributes of modules, and what cannot be followed."""

from __future__ import annotations

import collections
import dis
import functools
import itertools
import random
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_objects.libraries import is_library

_DYNAMIC = frozenset(
    [
        *("eval", "exec", "globals", "__import__", "_getframe", "currentframe", "import_module", "cache_clear"),
        *("get_objects", "get_referrers", "set_step", "get_uid", "get_global_generator", "get_or_create_global_step"),
        *("getrecursionlimit", "geterr", "seterr", "get_printoptions", "getcontext", "get_threshold", "getsignal"),
        *("isEnabledFor", "getEffectiveLevel"),
    ]
)
"""What reaches anything, counts, or returns a setting of the process."""
_FILE_READS = frozenset(
    [
        *("load_weights", "load_model", "load", "loads", "loadtxt", "genfromtxt", "fromfile"),
        *("read_text", "read_bytes"),
        *("read_csv", "read_json", "read_parquet", "read_pickle", "urlopen", "read_file", "latest_checkpoint"),
        *("fetchone", "fetchall", "fetchmany", "shelve"),
        *("popen", "check_output", "getoutput", "getstatusoutput", "communicate", "PIPE"),
    ]
)
_DRAWING = ("rand", "shuffle", "rvs", "dropout", "initializer", "secrets", "uuid")
SEEDED = frozenset(["default_rng", "RandomState", "Generator", "SeedSequence", "PCG64", "Philox"])
"""Names of what makes a random generator of one's own."""
_KEYWORDS = frozenset(["capture_output"])
_IN_MEMORY = frozenset(["loads"])
_ASKS_FOR_FILES = frozenset(["exists", "isfile", "is_file", "isdir", "is_dir"])
_MAKES_DIRECTORIES = frozenset(["makedirs", "mkdir"])
"""What a function that asks for files mostly does if there are none."""
_LOOKS_FOR_FILES = _ASKS_FOR_FILES | frozenset(
    [
        *("getmtime", "getsize", "stat", "lstat", "tell"),
        *("listdir", "scandir", "iterdir", "glob", "rglob", "walk"),
    ]
)
_DELETES_FILES = frozenset(["unlink", "rmtree", "removedirs"])
"""What a function that looks for files mostly does with them: old output is deleted; `remove` is of lists, too."""
_OPENERS = frozenset(["open", "GFile", "File", "ZipFile"])
_WRITING_MODE = re.compile("[wx][bt+]*|a[bt]*")


@dataclass(frozen=True)
class Reads:
    """What the code of one function refers to, functions within it included.

    Attributes:
        global_names: Module-level names that it reads or writes.
        stores: Names of attributes, globals and variables of outer functions that it assigns.
        fills: All names that it uses, if it changes items of anything.
        names: All names of globals and attributes.
        imports: Modules that it imports.
        dynamic: A name by which it can reach anything, such as `eval`; None if it uses no such name.
        draws_seeded: Whether it draws from TensorFlow's operations with seeds of their own, which count their calls.
        draws_unseeded: Whether it may draw by what only a global seed makes repeatable: TensorFlow's operations without
            a seed of their own, a shuffled dataset, a `fit()` of its own, which shuffles arrays.
        draws: Whether it may draw from a random state that all code shares, such as that of `np.random`.
        iterates: Names over which it iterates, other than in sorted order.
        reads_files: A name by which it reads a file that may have changed, such as `load_weights`; None likewise.
    """

    global_names: frozenset[str]
    stores: frozenset[str]
    fills: frozenset[str]
    names: frozenset[str]
    imports: frozenset[str]
    dynamic: str | None
    reads_files: str | None
    draws: bool
    draws_seeded: bool
    draws_unseeded: bool
    iterates: frozenset[str]


@functools.lru_cache(maxsize=4096)
def reads_of(code: types.CodeType) -> Reads:
    """Looks through the bytecode of a function."""
    global_names: set[str] = set()
    stores: set[str] = set()
    fills: set[str] = set()
    names: set[str] = set()
    imports: set[str] = set()
    opened = False
    for part in _codes(code):
        names.update(part.co_names)
        fills.update(_fills(part))
        if "setattr" in part.co_names:
            stores.update(constant for constant in part.co_consts if isinstance(constant, str))
        opened = opened or _opens_to_read(part)
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"):
                global_names.add(instruction.argval)
            elif instruction.opname == "IMPORT_NAME":
                imports.add(instruction.argval)
            if instruction.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
                stores.add(instruction.argval)
    dynamic = next(iter(sorted(names & _DYNAMIC)), None)
    of_keywords = {name for part in _codes(code) for item in part.co_consts if isinstance(item, tuple) for name in item}
    files = (names & _FILE_READS) - _IN_MEMORY | of_keywords & _KEYWORDS
    if all(map(_loads_by_itself, _codes(code))):
        files -= {"load"}
    found = next(iter(sorted(files)), "open" if opened else None)
    if found is None:
        found = _looks_for_files(names)
    draws = any(_may_draw(part) for part in _codes(code))
    seeded = any(_draws_seeded(part) for part in _codes(code))
    known = (frozenset(global_names), frozenset(stores), frozenset(fills), frozenset(names), frozenset(imports))
    unseeded = any(_draws_unseeded(part) for part in _codes(code))
    iterates = frozenset(name for part in _codes(code) for name in _iterated(part))
    return Reads(*known, dynamic, found, draws, seeded, unseeded, iterates)


def _loads_by_itself(code: types.CodeType) -> bool:
    """Returns whether each `load` is called on `self`: it is a method of the user's, which is looked at by itself."""
    found = [i for i in dis.get_instructions(code) if i.opname not in _WITHOUT_NAME]
    owners = [before for before, this in itertools.pairwise(found) if this.argval == "load"]
    return all(owner.opname.startswith("LOAD_FAST") and owner.argval == "self" for owner in owners)


def _iterated(code: types.CodeType) -> Iterator[str]:
    """Yields names that a loop begins with, also within `enumerate()` or the like; in `sorted()` order is no matter."""
    found = [i for i in dis.get_instructions(code) if i.opname not in _WITHOUT_NAME]
    for place, instruction in enumerate(found):
        if instruction.opname == "GET_ITER":
            before = list(
                itertools.takewhile(lambda i: i.opname.startswith((*_NAMED, "LOAD_FAST", "CALL")), found[:place][::-1])
            )
            names = [str(i.argval) for i in before if i.opname.startswith(_NAMED)]
            yield from () if "sorted" in names else names


def _looks_for_files(names: set[str]) -> str | None:
    if names & _DELETES_FILES or ("remove" in names and names & {"os", "gfile"}):
        return None
    hidden = _ASKS_FOR_FILES if names & _MAKES_DIRECTORIES else frozenset()
    hidden |= frozenset() if names & _OPENERS else frozenset(["tell"])  # a method of the user's
    return next(iter(sorted(names & (_LOOKS_FOR_FILES - hidden))), None)


def _fills(code: types.CodeType) -> tuple[str, ...]:
    changes = any(i.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for i in dis.get_instructions(code))
    return (*code.co_names, *code.co_freevars) if changes or not _CHANGING.isdisjoint(code.co_names) else ()


_CHANGING = frozenset(
    [
        *("append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault", "popitem", "add", "discard"),
        *("fill", "put", "sort", "reverse", "rotate"),
    ]
)
"""Methods that change what is in a container."""


def names_reached(names: Iterable[str], functions: Mapping[str, Sequence[types.FunctionType]]) -> set[str]:
    """Names, those that functions of these names use, and so on."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [other for function in functions.get(name, ()) for other in reads_of(function.__code__).names]
    return found


def _opens_to_read(code: types.CodeType) -> bool:
    """Returns whether it opens a file other than to write it, or in a mode that its code does not show."""
    found = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    places = [n for n, i in enumerate(found) if i.argval in _OPENERS and i.opname.startswith(_NAMED)]
    return any(not _only_writes(found[n], _arguments_of_call(found[n + 1 :], code.co_consts)) for n in places)


def _only_writes(opener: dis.Instruction, arguments: Mapping[int | str, Any]) -> bool:
    """Returns whether a call has a mode that reads nothing, or opens what the machine says of itself."""
    first, mode = arguments.get(0), arguments.get("mode", arguments.get(1))
    if mode is None and opener.opname != "LOAD_GLOBAL":
        mode = first  # `Path.open`
    is_mode = isinstance(mode, str) and _WRITING_MODE.fullmatch(mode)
    return bool(is_mode) or (isinstance(first, str) and first.startswith("/proc/"))


def _arguments_of_call(following: Sequence[dis.Instruction], constants: Sequence[Any]) -> dict[int | str, Any]:
    """Returns the constants among the arguments of the function that was just loaded, by place or name."""
    found: dict[int, Any] = {}
    depth, keywords = 0, ()  # of the call's arguments, those that were loaded so far
    for this in following[1:] if following[0].opname == "PUSH_NULL" else following:
        is_call = this.opname.startswith(_CALL)
        count = int(this.arg or 0)
        if is_call and depth - (this.opname == "CALL_KW") == count:
            keywords = found.get(count, keywords)
            names = dict(enumerate(keywords, count - len(keywords)))
            return {names.get(place, place): value for place, value in found.items() if place < count}
        has_argument = this.opcode >= dis.HAVE_ARGUMENT
        after = depth + dis.stack_effect(this.opcode, this.arg if has_argument else None)
        if this.opcode in _JUMPS or after < 0:
            return {}
        if is_call:
            keywords = ()
        elif this.opname == "KW_NAMES":
            keywords = constants[count]
        found = {place: value for place, value in found.items() if place < min(depth, after - 1)}
        if this.opname == "LOAD_CONST":
            found[depth] = this.argval
        depth = after
    return {}


_CALL = "PRECALL" if "PRECALL" in dis.opmap else "CALL"  # Python 3.11 has both
_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])


def _draws_seeded(code: types.CodeType) -> bool:
    """Returns whether it calls something like `tf.random.normal(shape, seed=1)`."""
    has_seed = any("seed" in item for item in code.co_consts if isinstance(item, tuple))
    return has_seed and any(map(_is_of_tensorflow, _triples(code)))


def _draws_unseeded(code: types.CodeType) -> bool:
    """Returns whether it calls something like `tf.random.normal(shape)`, `dataset.shuffle(9)` or `model.fit(x, y)`."""
    return any(
        (_is_of_tensorflow(three) and any("random" in name or "dropout" in name for name in three[1:]))
        or three[1] == "fit"
        or (three[1] == "shuffle" and three[0] != "random")
        for three in _triples(code)
    )


def _triples(code: types.CodeType) -> Iterator[tuple[str, str, str]]:
    """Yields each name that a function uses, with the one before and the one after it."""
    found = [str(i.argval) for i in dis.get_instructions(code) if i.opname.startswith(_NAMED)]
    return zip(["", *found], found, [*found[1:], ""], strict=False)


def _is_of_tensorflow(names: tuple[str, str, str]) -> bool:
    before, this, after = names
    is_module = before in ("tf", "tensorflow") and this in ("random", "image", "nn")
    return is_module and not after.startswith(_NOT_COUNTED)


_NOT_COUNTED = ("stateless_", "set_seed", "Generator", "create_rng_state", "get_global_generator")


def _may_draw(code: types.CodeType) -> bool:
    """Returns whether it uses a name of what draws, other than to make a generator of its own from a seed."""
    found = [i for i in dis.get_instructions(code) if i.opname not in _WITHOUT_NAME]
    before, after = [found[0], *found], [*found[1:], found[-1]]
    return any(_is_drawing(*three) for three in zip(before, found, after, strict=False))


def _is_drawing(before: dis.Instruction, this: dis.Instruction, after: dis.Instruction) -> bool:
    name = str(this.argval)
    if not this.opname.startswith(_NAMED):
        return False
    if name in SEEDED:
        return after.opname.startswith("CALL") and after.arg == 0
    if name.startswith("stateless_") or (name == "random" and after.argval in SEEDED):
        return False
    # A generator in a local variable was made there, or comes from what is looked at elsewhere; a module may be in one.
    is_method_of_a_local = before.opname.startswith("LOAD_FAST") and _loads_method(this)
    return not is_method_of_a_local and any(word in name.lower() for word in _DRAWING)


@functools.lru_cache(maxsize=4096)
def draws_from_shared_state(function: types.FunctionType) -> bool:
    """Returns whether a function draws from the random state that all code shares: Python's, or that of `np.random`."""
    reads = reads_of(function.__code__)
    if reads.imports & {"random", "numpy.random"} or ("numpy" in reads.imports and "random" in reads.names):
        return True
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
    namespace = collections.ChainMap(held, function.__globals__)
    return any(_is_shared_draw(chain, namespace) for chain in _chains(function.__code__))


def _chains(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Yields each name that is loaded, but no attribute, with the three loaded next, mostly its attributes."""
    for part in _codes(code):
        found = [i for i in dis.get_instructions(part) if i.opname not in _WITHOUT_NAME]
        names = [str(i.argval) if i.opname.startswith(_NAMED) else "" for i in found]
        for place, name in enumerate(names):
            if name and not found[place].opname.startswith(_OF_ATTRIBUTES):
                yield (name, *itertools.takewhile(bool, [*names[place + 1 : place + 4], ""]))


def _is_shared_draw(chain: tuple[str, ...], namespace: Mapping[str, Any]) -> bool:
    value, names = namespace.get(chain[0]), [*chain[1:], ""]
    if value is np and names[0] == "random":
        value, names = np.random, names[1:]
    if value is random or value is np.random:
        return names[0] not in SEEDED | {"Random", "SystemRandom"}
    if any(static.attribute(value, "__self__") is state for state in _SHARED_STATES):
        return True
    module = str(static.attribute(value, "__module__") or static.attribute(value, "__name__", ""))
    if module.partition(".")[0] == "keras":
        return "initializers" in (*chain, *module.split("."))
    is_other = static.is_a(value, types.ModuleType | types.FunctionType) and is_library(module)
    return is_other and not module.startswith(_OWN_STATES) and any(w in name for w in _DRAWING for name in chain)


_OWN_STATES = ("tensorflow", "numpy")
"""Modules of which it is known what they draw from."""
_SHARED_STATES = (random.random.__self__, np.random.random.__self__)  # type: ignore[attr-defined]


def _loads_method(this: dis.Instruction) -> bool:
    """Returns whether what is loaded is called next; since Python 3.12, only the argument of LOAD_ATTR says it."""
    return this.opname == "LOAD_METHOD" or "NULL|self" in this.argrepr


_NAMED = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF", "IMPORT_")
_OF_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_WITHOUT_NAME = ("PUSH_NULL", "PRECALL", "CACHE", "KW_NAMES", "RESUME")


@functools.lru_cache(maxsize=4096)
def code_digest(code: types.CodeType) -> str:
    """A hash of what a function does: neither comments, docstrings, formatting nor its place in the file change it."""
    digest = xxhash.xxh3_64()
    for part in _codes(code):
        digest.update(repr((part.co_varnames[: part.co_argcount + part.co_kwonlyargcount], part.co_flags)).encode())
        for instruction in dis.get_instructions(part):
            digest.update(f"{instruction.opname} {_shown(instruction.argval)};".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _shown(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return value.co_name
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)
