"""The state of the user's Python code in one fit: taken when it begins, compared at each snapshot, restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from keras_dist_callbacks._compat import graphs, library_state, variables
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.snapshot import JSON, SharedArray, SharedTensor
from keras_dist_callbacks.backups.state_schema import PYTHON
from keras_dist_callbacks.backups.verdict import Finding, group
from keras_dist_callbacks.process import Shared, shared
from keras_dist_callbacks.terminal import first_few
from keras_dist_callbacks.training.callback_state import is_asserted, own_state, walked_callbacks
from keras_dist_callbacks.training.user_state import changes, edits
from keras_dist_callbacks.training.user_state.libraries import is_library
from keras_dist_callbacks.training.user_state.roots import input_roots, roots_of, words
from keras_dist_callbacks.training.user_state.walk import walk
from keras_dist_callbacks.training.user_state.walker import Found, Policy

_DESCRIPTION = "description/python"


@dataclass
class _Descriptions(Shared):
    """By model and backup directory: how its first `fit()` in this process began, which a restart repeats."""

    of_models: WeakKeyDictionary[Any, dict[str, dict[str, Any]]] = field(default_factory=WeakKeyDictionary)


class UserState:
    """What the user's Python code holds, beginning with what it is now: after all `on_train_begin`.

    Args:
        fit: The running fit, before anything is built, traced or restored.
        callbacks: All callbacks whose state belongs to training.
        directory: The backup directory: what differs is told from the first of several `fit()` calls with it.

    Attributes:
        is_saved: Returns whether all variables of an object are saved in another way.
        conditions: As of the last `capture`: what could not be inspected, to be read after "exact if".
        lost: As of the last `capture`: what has changed and is not saved, a sentence each.
    """

    def __init__(self, fit: RunningFit, callbacks: Sequence[Any], directory: str = "") -> None:
        self._fit = fit
        self._callbacks = walked_callbacks(callbacks)
        self.is_saved: Callable[[Any], bool] = lambda value: _is_listed(fit.model, value)
        self._start = Found()
        self._start = self._walk()
        described = edits.describe(self._start, self._of_input(), self._names_of_the_user(), is_loaded=_is_loaded(fit))
        first = shared(_Descriptions).of_models.setdefault(fit.model, {}).setdefault(directory, described)
        self._description = edits.with_first(described, first)
        self._tensor = SharedArray(np.frombuffer(json.dumps(self._description).encode(), np.uint8))
        self.conditions: list[str] = []
        self.lost: list[str] = []
        self._function: Any = None
        self._trace_count = graphs.trace_count(fit.model)
        self._traced: list[Found] = []  # walks after each trace of the train function in use

    def capture(self) -> tuple[dict[str, JSON], dict[str, SharedTensor]]:
        """What has changed since the start, as a topic and tensors of a snapshot."""
        self.note_trace()
        now = self._walk()
        found = changes.changes_between(self._start, now)
        findings = [
            *(_finding("unknown", path, why, now) for path, why in now.unknown.items()),
            *(_finding("unknown", path, _TRACED, now) for path in self._read_while_traced(found, now)),
            *(_finding("lost", path, why, now) for path, why in found.lost.items()),
        ]
        self.conditions, self.lost = group(findings)
        return ({PYTHON: found.records} if found.records else {}), {**found.tensors, _DESCRIPTION: self._tensor}

    def restore(self, saved: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Puts back what was saved; returns what could not be, a sentence each."""
        if not saved:
            return []
        failed = changes.restore(saved, tensors, self._walk())
        now = self._walk()
        for path, (_, digest) in saved.items():
            if changes.has_root(path, now) and digest not in changes.digests(now, path):
                failed.setdefault(path, "it does not hold the saved value now")
        return group(_finding("lost", path, why, now) for path, why in failed.items())[1]

    def edits(self, tensors: Mapping[str, np.ndarray[Any, Any]], named: Collection[str]) -> tuple[list[str], list[str]]:
        """What the script says otherwise than in the interrupted run: settings of training, and conditions.

        Args:
            tensors: Of the backup.
            named: Settings that are reported already.
        """
        if _DESCRIPTION not in tensors:
            return [], []
        found = edits.compare(json.loads(bytes(tensors[_DESCRIPTION])), self._description)
        settings = [
            f"{place} of {owner} changed from {was} to {now}" if place else f"{owner} changed from {was} to {now}"
            for (owner, place), (was, now) in ((words(path), pair) for path, pair in found.settings.items())
            if place.rpartition(".")[2] not in named
        ]
        found.others[:] = [path for path in found.others if path.rpartition("/")[2] not in named]
        return first_few(settings), _edit_conditions(found)

    def note_trace(self) -> None:
        """A step was traced, or may have been: notes what it may have read, if so."""
        count = graphs.trace_count(self._fit.model)
        function = getattr(self._fit.model, "train_function", None)
        if function is not self._function:
            self._function, self._traced, self._trace_count = function, [], 0
        if count != self._trace_count:
            self._trace_count = count
            self._traced.append(self._walk(only_traced=True))

    def _names_of_the_user(self) -> list[str]:
        return [name for name, c in self._callbacks.items() if not is_library(type(c).__module__)]

    def _walk(self, *, only_traced: bool = False) -> Found:
        roots = roots_of(self._fit, self._callbacks)
        roots = {path: root for path, root in roots.items() if root.is_traced or not only_traced}
        return walk(roots, self._policy(), start=self._start if self._start.nodes else None)

    def _of_input(self) -> Found:
        """The Python code of the input, which runs ahead of training: it is only compared between two runs."""
        return walk(input_roots(self._fit), self._policy())

    def _policy(self) -> Policy:
        return Policy(is_asserted, own_state, self.is_saved)

    def _read_while_traced(self, found: changes.Changes, now: Found) -> list[str]:
        """Changed values of which TensorFlow may hold on to what they were when it traced the step."""
        if self._fit.model.run_eagerly:
            return []
        return [path for path in found.traced if _may_be_traced(path, now) and not self._has_value_of_traces(path, now)]

    def _has_value_of_traces(self, path: str, now: Found) -> bool:
        """Whether the value is what it was at each trace of the step in use: it is restored before the next."""
        node = now.node(path)
        then = [traced.node(path) for traced in self._traced]
        return bool(then) and node is not None and all(t is not None and t.token == node.token for t in then)


_TRACED = "training has changed it, and a step that TensorFlow traced may keep its earlier value"


def _may_be_traced(path: str, now: Found) -> bool:
    root, *segments = path.split("/")
    if root.partition(" ")[0] not in ("model", "optimizer", "loss", "metrics", "weighted metrics"):
        return True
    node = now.node(path)
    slot = None if node is None else node.slot
    if slot is not None and slot.kind == "attribute" and library_state.is_set_by_library(slot.owner, slot.key):
        return True
    return any(segment in now.traced_names for segment in segments)


def _is_loaded(fit: RunningFit) -> bool:
    """Whether the model came from a checkpoint, and so did the values of its variables."""
    return getattr(fit.model, "_kdc_origin", None) is not None


def _is_listed(model: Any, holder: Any) -> bool:
    listed = variables.variable_set(model).keys
    return all(variables.key(component) in listed for component in variables.components(holder))


def _finding(kind: str, path: str, why: str, now: Found) -> Finding:
    owner, place = words(path)
    return Finding(kind, owner, place, why, _assertion(path, now) if kind == "unknown" else "")


def _assertion(path: str, now: Found) -> str:
    """The line by which the user asserts that what is below a path keeps no state."""
    root = path.partition("/")[0]
    node = now.nodes.get(root) or now.nodes.get(path)
    if node is None or root.startswith(("model", "optimizer")):
        return ""
    if not isinstance(node.value, type) and hasattr(
        node.value, "__code__" if node.kind == "function" else "cache_info"
    ):
        return f"kdc.stateless_input({node.value.__name__})"
    cls = node.value if isinstance(node.value, type) else type(node.value)
    is_users = root.startswith("callback ") or not is_library(cls.__module__)
    return "" if not is_users else f"kdc.register_callback_state({cls.__name__}, None)"


def _edit_conditions(found: edits.Edits) -> list[str]:
    conditions = []
    files: dict[str, list[str]] = {}
    for name in found.code:
        file, _, function = name.partition(": ")
        files.setdefault(file, []).append(f"`{function.replace('<locals>.', '')}`")
    for file, functions in files.items():
        shown = ", ".join(functions[:3]) + (", ..." if len(functions) > 3 else "")
        conditions.append(f"the changes in {file} ({shown}) do not affect training")
    if found.callbacks:
        shown = ", ".join(found.callbacks[:3]) + (", ..." if len(found.callbacks) > 3 else "")
        conditions.append(f"callbacks that only one of the two runs has do not affect training: {shown}")
    if found.others:
        names = [f"{place} of {owner}" if place else owner for owner, place in map(words, found.others)]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        conditions.append(f"other values than in the interrupted run do not affect training: {shown}")
    return conditions
