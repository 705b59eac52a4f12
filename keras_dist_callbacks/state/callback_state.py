"""The state of every callback in fit's list, by identity instead of position.

State is what a registered function or `get_state()` returns, or what is known of Keras' own callbacks. It
becomes JSON; arrays in it become tensors of the snapshot.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import keras_callbacks, library_state
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, Saved, SharedTensor
from keras_dist_callbacks.base import static, validation
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError, ConfigError
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.state.inputs.sources import is_stateless
from keras_dist_callbacks.state.own_values import from_json, to_json
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival

GetState = Callable[[Any], dict[str, Any]]
SetState = Callable[[Any, dict[str, Any]], None]
Prepare = Callable[[Any, dict[str, Any]], keras_callbacks.Prepared]


@dataclass(frozen=True)
class _Entry:
    get: GetState
    set: SetState
    identity: tuple[str, ...] = ()
    finer: tuple[str, ...] = ()
    prepare: Prepare | None = None


@dataclass(frozen=True)
class _Member:
    """A callback of the list, looked into; `entry` is None if it has no state on this worker."""

    callback: Any
    entry: _Entry | None
    runs_here: bool


@dataclass(frozen=True)
class Preparation:
    """What was done to callbacks before their `on_train_begin`.

    Attributes:
        after: To be called after all `on_train_begin`, or when fit() does not get there; takes back what must not
            outlive it. Does nothing when called again.
        found: What could not be prepared.
    """

    after: Callable[[], None]
    found: tuple[Finding, ...]


@dataclass
class Classes(Shared):
    """What is known of classes of callbacks.

    Attributes:
        registered: How their state is got and set; None: they have no state.
    """

    registered: dict[type, _Entry | None] = field(default_factory=dict)


def register_callback_state(
    callback_class: type, get: GetState | None, set: SetState | None = None, *, identity: Iterable[str] = ()
) -> None:
    """Registers what `BackupAndRestore` saves of a callback class that has no `get_state` and `set_state`.

    For classes of other packages; a class of your own gets the two methods instead. What is registered wins
    over the methods of that class and over what is known of Keras' callbacks. Registering again replaces. Without
    either, what training changes in an instance is found, saved and restored; what cannot be inspected is a condition
    of the verdict. Any class that such a condition names may be registered, not only one of callbacks.

    Example:
        ```python
        kdc.advanced.register_callback_state(
            GradualUnfreezing,
            get=lambda callback: {"unfrozen": callback.unfrozen},
            set=lambda callback, state: setattr(callback, "unfrozen", state["unfrozen"]),
        )
        ```

    Args:
        callback_class: The class. `get` and `set` count for subclasses that are not
            registered themselves, too; None for both counts for this class only.
        get: Gets a callback; returns its state as a dict of numbers, strings, lists, dicts and numeric arrays. None
            asserts that the class keeps no state: its attributes are neither inspected nor saved.
        set: Gets a callback and what `get` returned, after all `on_train_begin`; puts it back.
        identity: Names of attributes that distinguish two callbacks of this class, such as `("monitor",)`.
            A callback class of your own names them in an attribute `state_identity`.

    Raises:
        ConfigError: An argument is of the wrong type.
    """
    given: object = callback_class
    if not isinstance(given, type):
        raise ConfigError(
            f"callback_class: register_callback_state needs a class, got {validation.format_value(given)}"
        )
    names = validation.check("identity", identity, tuple[str, ...], "a tuple of attribute names")
    if get is None and set is None:
        shared(Classes).registered[callback_class] = None
        return
    if not callable(get) or not callable(set):
        both = f"{validation.format_value(get)} and {validation.format_value(set)}"
        raise ConfigError(
            f"get and set must be functions, got {both}; None for both asserts that the class has no state"
        )
    shared(Classes).registered[callback_class] = _Entry(get, set, names)


def walked_callbacks(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Callbacks whose attributes are inspected, by the names of `capture_callbacks`."""
    return {
        name: member.callback
        for name, member in _members(callbacks).items()
        if member.runs_here and not _is_ours(type(member.callback)) and not is_asserted(member.callback)
    }


def listed_callbacks(callbacks: Iterable[Any]) -> list[Any]:
    """Returns all callbacks, those within wrappers included."""
    return [member.callback for member in _members(callbacks).values()]


def is_asserted(value: Any) -> bool:
    """Returns whether the user has asserted that an object, a function or a class keeps no state."""
    registered, cls = shared(Classes).registered, value if static.is_a(value, type) else type(value)
    return is_stateless(value) or (cls in registered and registered[cls] is None)


def own_state(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """Returns how the state of an object that is not a callback is got and set, if it or the user says so."""
    if library_state.is_rich_progress(value):
        return (lambda: library_state.task_numbers(value), lambda state: library_state.renumber_tasks(value, state))
    if static.is_a(value, type) or not _says_itself(value):
        return None
    entry = _entry(value)
    return None if entry is None else (lambda: entry.get(value), lambda state: entry.set(value, state))


def may_keep_state(callback: Any) -> bool:
    """Returns whether a callback has a state to be saved, or may have one that is not seen."""
    if _entry(callback) is not None:
        return True
    declared = any(base in shared(Classes).registered for base in type(callback).__mro__)
    return not declared and not _is_ours(type(callback)) and type(callback).__module__.partition(".")[0] != "keras"


def _has_own_state(value: Any) -> bool:
    """Returns whether it has `get_state` and `set_state`; a `__getattr__` that answers to any name is not asked."""
    found = (static.attribute(value, name) for name in ("get_state", "set_state"))
    return all(callable(method) or isinstance(method, classmethod) for method in found)


def _says_itself(value: Any) -> bool:
    registered = any(base in shared(Classes).registered for base in type(value).__mro__)
    return registered or _has_own_state(value)


class CallbackStates(Part):
    """The state of all callbacks of a fit.

    Args:
        callbacks: All whose state belongs to training.

    Attributes:
        all: As given.
        missed: What they did not do around the last batch, because of an exception.
    """

    name = "callbacks"

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.all = callbacks
        self._saved: Saved | None = None
        self._found: list[Finding] = []
        self.missed: Sequence[Finding] = ()

    def capture(self, position: Position) -> Piece:
        """Returns a topic for each callback that has a state."""
        state, tensors = capture_callbacks(self.all)
        return Piece(state, tensors, tuple(self.missed))

    def check(self, saved: Saved) -> None:
        """Notes what `put_back` puts back."""
        self._saved = saved

    def put_back(self) -> None:
        """Gives each callback its state back; amid the restore of its other attributes, by the part that does that."""
        if self._saved is not None:
            piece = self._saved.mine
            self._found = restore_callbacks(self.all, piece.state, piece.tensors)

    def put_back_of_keras(self) -> None:
        """Likewise those of Keras' own that write no files, such as the History; they may be given it twice."""
        state, tensors = (self._saved.mine.state, self._saved.mine.tensors) if self._saved is not None else ({}, {})
        for name, member in _members(self.all).items():
            known = keras_callbacks.known(member.callback)
            if known and known.prepare is None and member.entry and member.entry.set is known.set and name in state:
                known.set(member.callback, from_json(state[name], tensors))

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Returns what did not match."""
        return self._found if moment is moment_of_arrival(saved.position) else []


def capture_callbacks(callbacks: Iterable[Any]) -> tuple[dict[str, JSON], dict[str, SharedTensor]]:
    """Returns the state of each callback that has one, and the arrays it contains.

    Raises:
        BackupError: A state cannot be had, or holds something that cannot be stored; the message says where.
    """
    state: dict[str, JSON] = {}
    tensors: dict[str, SharedTensor] = {}
    for name, member in _members(callbacks).items():
        if member.entry is None:
            continue
        copy = not type(member.callback).__module__.startswith("keras.")  # Keras replaces arrays, and writes to none
        found = _get(name, member.callback, member.entry)
        try:
            state[name] = to_json(found, name, tensors, copy=copy)
        except BackupError as error:
            raise BackupError(f"the state of a callback cannot be saved: callbacks/{error}") from None
    return state, tensors


def prepare_callbacks(callbacks: Iterable[Any], saved: Saved) -> Preparation:
    """Saves from their own `on_train_begin` what callbacks need to continue: files that it would overwrite."""
    done: dict[str, keras_callbacks.Prepared] = {}
    with contextlib.ExitStack() as prepared:
        for name, member in _members(callbacks).items():
            if member.entry is not None and member.entry.prepare is not None and name in saved.mine.state:
                try:
                    state = from_json(saved.mine.state[name], saved.mine.tensors)
                    done[name] = member.entry.prepare(member.callback, state)
                except (KeyError, TypeError, ValueError) as error:
                    raise _not_accepted(name, error) from error
                prepared.callback(done[name].after)
        after = prepared.pop_all()
    return Preparation(
        after.close, tuple(Finding(p.found[0], name, p.found[1:]) for name, p in done.items() if p.found)
    )


def restore_callbacks(
    callbacks: Iterable[Any], state: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]]
) -> list[Finding]:
    """Gives each callback its state back.

    Returns:
        What did not match: callbacks that are new, and ones that are gone.

    Raises:
        BackupMismatchError: A callback does not accept its saved state.
    """
    members = _members(callbacks)
    for name, member in members.items():
        if name not in state or member.entry is None:
            continue
        try:
            member.entry.set(member.callback, from_json(state[name], tensors))
        except BackupError:
            raise
        except Exception as error:
            raise _not_accepted(name, error) from error
    new = [name for name, member in members.items() if member.entry is not None and name not in state]
    gone = [name for name in state if name not in members]
    differing = {"callback-new": new, "callback-gone": gone}
    return [Finding(code, detail=(n,)) for code, names in differing.items() for n in names if _is_announced(n)]


def _not_accepted(name: str, error: Exception) -> BackupMismatchError:
    return BackupMismatchError(
        f"the callback {name} does not accept its saved state ({type(error).__name__}: {error}); the backup is "
        "unchanged. Remove the callback or fix its set_state"
    )


def _members(callbacks: Iterable[Any]) -> dict[str, _Member]:
    """Returns each callback by a name made of its class, identifying arguments and, where these repeat, a number."""
    looked_into = [_inspect(callback) for callback in callbacks]
    coarse = [_name(callback) for callback, _ in looked_into]
    repeated = {name for name, count in collections.Counter(coarse).items() if count > 1}
    named: dict[str, _Member] = {}
    counts: collections.Counter[str] = collections.Counter()
    for (callback, runs_here), name in zip(looked_into, coarse, strict=True):
        base = _name(callback, finer=True) if name in repeated else name
        counts[base] += 1
        unique = base if counts[base] == 1 else f"{base}#{counts[base] - 1}"
        named[unique] = _Member(callback, _entry(callback) if runs_here else None, runs_here)
    return named


def _inspect(callback: Any) -> tuple[Any, bool]:
    """A callback, or the one that it wraps, and whether that runs on this worker."""
    runs_here: bool | None = static.attribute(callback, "_kdc_runs_here")  # of a ChiefOnly
    return (callback, True) if runs_here is None else (callback.callback, runs_here)


def _name(callback: Any, *, finer: bool = False) -> str:
    cls, entry = type(callback), _entry(callback)
    names = entry.identity + entry.finer * finer if entry is not None else ()
    return f"{'kdc.' if _is_ours(cls) else ''}{cls.__name__}({keras_callbacks.describe(callback, names)})"


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("keras_dist_callbacks.")


def _entry(callback: Any) -> _Entry | None:
    """How to save a callback; of what is registered and the class' own methods, the nearer to its class wins."""
    mro = type(callback).__mro__
    registered = next((cls for cls in mro if cls in shared(Classes).registered), None)
    if registered is not None and not any("get_state" in vars(cls) for cls in mro[: mro.index(registered)]):
        return shared(Classes).registered[registered]
    known = keras_callbacks.known(callback)
    identity, finer = (known.identity, known.finer) if known else ((), ())
    identity = tuple(static.attribute(callback, "state_identity", identity))
    if _has_own_state(callback):
        prepare = known.prepare if known and _is_ours(type(callback)) else None
        return _Entry(lambda c: c.get_state(), lambda c, state: c.set_state(state), identity, finer, prepare)
    return _Entry(known.get, known.set, identity, finer, known.prepare) if known else None


def _get(name: str, callback: Any, entry: _Entry) -> dict[str, Any]:
    try:
        found = entry.get(callback)
    except BackupError:
        raise
    except Exception as error:
        raise BackupError(
            f"cannot get the state of the callback {name}: get_state() raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Mapping):
        raise BackupError(f"the callback {name}: get_state() must return a dict, got {type(found).__name__}")
    return dict(found)


def _is_announced(name: str) -> bool:
    return name.partition("(")[0] not in keras_callbacks.UNANNOUNCED
