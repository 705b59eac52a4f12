"""The state of the input's Python code, as of when an epoch begins.

Within an epoch, the input is read ahead of training. A resumed run puts the state back as it was when the epoch began,
and reads the batches again that were trained already. It is all that the batches depend on if everything in it can be
compared, and if reading does not change it.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_dist_callbacks._compat import pipeline
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Piece, Position, Saved
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.inputs.sources import stateful_source_of
from keras_dist_callbacks.state.own_objects import changes, findings
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.libraries import is_library
from keras_dist_callbacks.state.own_objects.look import Limits, Look, Policy, Root
from keras_dist_callbacks.state.own_objects.places import words
from keras_dist_callbacks.state.own_objects.reads import SEEDED, names_reached, reads_of
from keras_dist_callbacks.state.part import Moment, Part, moment_of_entry

_LIMITS = Limits(bytes=2**26)  # of arrays, which are compared at each save: a few milliseconds
_READ = ("__getitem__", "__len__", "num_batches")
_WITHOUT_RANDOM_STATE = ("numpy", "scipy", "tensorflow", "keras", "PIL", "cv2", "skimage")
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_READING = ("open", "load", "read")
_WRAPPED = ("fget", "__func__", "__wrapped__", "func")


class InputState(Part):
    """What the PyDatasets of training and validation data hold.

    Args:
        fit: The running fit, before anything is restored.
        policy: What is not looked into.
        callbacks: By name, all whose state belongs to training.

    Attributes:
        start: What was found then in the Python code of all kinds of inputs.
    """

    name = "input_objects"

    def __init__(self, fit: RunningFit, policy: Policy, callbacks: Mapping[str, Any]) -> None:
        self._fit = fit
        self._policy = policy
        roots = _roots_of(fit)
        seeds = pipeline.seed_states([fit.input, fit.validation_source])  # which are restored with the input
        of_input = dataclasses.replace(policy, saved_keys=lambda: {*policy.saved_keys(), *seeds})
        self.start = look_at(roots, of_input)
        self._roots = {path: root for path, root in roots.items() if static.is_a(root.value, keras.utils.PyDataset)}
        self._held = [root.value for root in self._roots.values()]
        functions = {path: root for path, root in roots.items() if type(root.value) is types.FunctionType}
        self._functions = {p: root for p, root in functions.items() if not is_library(root.value.__module__)}
        self._functions_begun = self._look(self._functions)
        weights = fit.argument("class_weight")
        if "input" in self._roots and weights is not None:  # Keras looks them up for each batch
            self._roots["class_weight"] = Root(weights)
        self._begun = self._first = self._look(self._roots)
        self._writers = _run_in_an_epoch(fit, callbacks)
        source = stateful_source_of(fit.input, iterator_persists=bool(fit.steps_per_epoch))
        self._knows_position = {"input": Root(fit.input), "state": Root(source.get)} if source and source.is_all else {}
        self._callbacks = callbacks
        self._changing: list[str] = []  # paths of what could change an input that knows its position
        self._changes = changes.Changes()
        self._is_read = self._has_changed = False
        self._sharing: list[str] = []  # paths of what could change the input while it is read

    def holds(self, value: Any) -> bool:
        """Returns whether an object is saved here, and so is not part of the state of a callback that refers to it."""
        return not self._fit.steps_per_epoch and any(value is held for held in self._held)

    def shared_with(self, found: Look) -> dict[str, Any]:
        """Returns what callbacks and the like hold too, by the place where they do."""
        values = {path: found.value_at(path) for path in found.places}
        return {path: value for path, value in values.items() if id(value) in self.start.mutable}

    def note_epoch(self, *, is_read: bool) -> None:
        """An epoch begins or has ended, and no batch is being read.

        Args:
            is_read: Whether batches are read from now on.
        """
        if is_read and self._knows_position:
            held = self._look(self._knows_position).mutable
            roots = {f"callback {name}": Root(callback) for name, callback in self._callbacks.items()}
            self._changing = [path for path, root in roots.items() if held & self._look({path: root}).mutable]
        if not self._roots or self._fit.steps_per_epoch:
            return
        self._is_read = is_read
        self._begun = self._look_again()
        self._changes = changes.changes_between(self._first, self._begun)
        used = self._begun.mutable
        self._sharing = [path for path, root in self._writers.items() if used & self._look({path: root}).mutable]

    def note_begun(self) -> None:
        """The dataset's own `on_epoch_begin`, which a resumed run calls again, was called."""
        if self._is_read:
            self._begun = self._look_again()

    def note_read(self) -> None:
        """All batches of an epoch were read."""
        self._compare()
        self._is_read = False

    def _compare(self) -> None:
        if self._is_read and not self._has_changed:
            now = self._look_again()
            self._has_changed = _tokens(now) != _tokens(self._begun) or _uncompared_path(now) is not None

    def capture(self, position: Position) -> Piece:
        """Returns what had changed when the epoch began."""
        if position.kind != "within":
            self.note_epoch(is_read=False)
        # On what else it depends that the batches are the same:
        sharing = self._sharing if self.is_all else []
        found = [
            *(Finding("writer-of-input", words(path)[0]) for path in sharing),
            *(Finding("writer-of-position", words(path)[0]) for path in self._changing),
        ]
        records = self._changes.records
        return Piece({"changed": records} if records else {}, self._changes.tensors, tuple(found))

    @property
    def is_all(self) -> bool:
        """Whether that is all that the batches of a PyDataset depend on."""
        return bool(self._roots) and self.doubt is None

    @property
    def doubt(self) -> str | None:
        """Why the batches of a PyDataset may be others when an epoch is read again; None if nothing was found."""
        if self._fit.steps_per_epoch:
            return "with steps_per_epoch, it is read ahead of training across epochs"
        if not self._roots:
            return "it cannot be inspected"
        uncompared = next(iter(self._changes.lost), None) or _uncompared_path(self._begun)
        if uncompared is not None:
            return f"`{words(uncompared)[1] or uncompared}` cannot be inspected"
        self._compare()
        if self._has_changed:
            return "reading a batch changes its state"
        return _doubt_about_code(self._begun)

    def are_pure(self, functions: Sequence[Any]) -> bool:
        """Whether functions of a pipeline neither hold nor change nor draw anything, as far as can be seen."""
        known = [root.value for root in self._functions.values()]
        if not functions or any(all(function is not other for other in known) for function in functions):
            return False
        found = self._look(self._functions)
        holds = found.mutable or found.code.stored or found.code.filled or found.code.drawing
        is_same = found.digests == self._functions_begun.digests  # they may run ahead of what changes a number
        return not holds and is_same and _uncompared_path(found) is None and _doubt_about_code(found) is None

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts back what the input's Python code held when the epoch began; returns what differs."""
        if moment is not moment_of_entry(saved.position):
            return []
        found: list[Finding] = []
        records = saved.mine.state.get("changed") or {}
        if records or self._first.with_own_state:
            failed, others = changes.restore_and_compare(records, saved.mine.tensors, self._look_again)
            found = [*findings.not_restored(failed), *findings.set_otherwise(others)]
        if moment is Moment.ENTERED:
            self.note_epoch(is_read=True)
        return found

    def adopt(self, saved: Saved) -> list[Finding]:
        """The fit is complete already: the script goes on with what its input's code held."""
        return self.restore(saved, moment_of_entry(saved.position))

    def _look_again(self) -> Look:
        return self._look(self._roots, self._first)

    def _look(self, roots: Mapping[str, Root], start: Look | None = None) -> Look:
        return look_at(roots, self._policy, _LIMITS, start=start)


def _roots_of(fit: RunningFit) -> dict[str, Root]:
    """Returns the Python code of the input, which runs ahead of training: it is only compared between two runs."""
    roots = {}
    for name, source in {"input": fit.input, "validation data": fit.validation_source}.items():
        if static.has(source, "_inputs"):
            for number, function in enumerate(pipeline.python_functions(source)):
                roots[f"{name} function {number}"] = Root(function)
        elif static.is_a(source, keras.utils.PyDataset) or (
            static.has(type(source), "__getitem__") and not static.has(source, "dtype")  # not an array
        ):
            roots[name] = Root(source)
    return roots


def _run_in_an_epoch(fit: RunningFit, callbacks: Mapping[str, Any]) -> dict[str, Root]:
    """Returns the Python code that runs while the input is read ahead, and so must not change what the input uses."""
    roots = {f"callback {name}": Root(c) for name, c in callbacks.items() if _has_batch_hooks(c)}
    return {**roots, "model": Root(fit.model)} if fit.model.run_eagerly else roots


def _has_batch_hooks(callback: Any) -> bool:
    hooks = [static.attribute(callback, name) for name in _BATCH_HOOKS]
    return any(not is_library(static.attribute(hook, "__module__")) for hook in hooks)


def _uncompared_path(found: Look) -> str | None:
    """Returns the first path of what a look has reached and not compared; None if it has compared everything."""
    return next(itertools.chain(found.unknown, found.code.conditions, found.uncompared), None)


def _tokens(found: Look) -> dict[str, Any]:
    return {**found.digests, **found.tokens}


def _doubt_about_code(found: Look) -> str | None:
    """Why reading a batch again may give another one, by the functions that read it; None if nothing was found."""
    shared_states = (np.random.mtrand._rand, random._inst)
    has_shared_state = any(found.path_of(state) is not None for state in shared_states)
    functions = _functions(found)
    reading = list(_reading_functions(functions))
    if has_shared_state or any(_may_draw(function, functions) for function in reading):
        return "reading a batch may draw random numbers that others draw too"
    if any(_names_with(_READING, function, functions) for function in reading):
        return "reading a batch may read files, whose content is not compared"
    return None


def _functions(found: Look) -> dict[str, list[types.FunctionType]]:
    """Returns the functions of the user's, by the names under which they may be called."""
    functions: dict[str, list[types.FunctionType]] = {}
    for path, value in {**found.objects, **{path: found.value_at(path) for path in found.places}}.items():
        is_method = type(value) in (types.MethodType, staticmethod, classmethod)
        function = value.__func__ if is_method else value
        if type(function) is types.FunctionType:
            for name in _names(path, function):
                functions.setdefault(name, []).append(function)
    return functions


def _reading_functions(functions: Mapping[str, list[types.FunctionType]]) -> Iterator[types.FunctionType]:
    """The functions that may be called to read a batch: those of a class or module only if their name is used."""
    names = [name for name in functions if name in _READ or (name.startswith("__") and name != "__init__")]
    return (function for name in names_reached(names, functions) for function in functions.get(name, ()))


def _names(path: str, function: types.FunctionType) -> set[str]:
    root, *segments = path.split("/")
    if root.partition(" ")[0] not in ("class", "module") or len(segments) > 1 + (segments[-1] in _WRAPPED):
        return {_READ[0]}  # an object holds it, and may call it by another name
    if segments[0] == "__init__":
        return {root.rpartition(".")[2]}  # when its class is called
    return {segments[0], function.__name__}


def _may_draw(function: types.FunctionType, functions: Collection[str]) -> bool:
    """Whether a function may draw from a random state that is not its own, or calls what is not known."""
    reads = reads_of(function.__code__)
    if reads.draws or _names_with(("getattr",), function, functions):
        return True
    used = [function.__globals__.get(name) for name in reads.global_names - SEEDED]
    modules = [str(static.attribute(v, "__module__") or static.attribute(v, "__name__", "")) for v in used]
    return any(_has_random_state(module) for module in (*filter(None, modules), *reads.imports))


def _names_with(words: Sequence[str], function: types.FunctionType, functions: Collection[str]) -> bool:
    names = reads_of(function.__code__).names - {*functions}
    return any(word in name.lower() for name in names for word in words)


def _has_random_state(module: str) -> bool:
    root = module.partition(".")[0]
    if "random" in module:
        return True
    return is_library(module) and root not in _WITHOUT_RANDOM_STATE and root not in sys.stdlib_module_names
