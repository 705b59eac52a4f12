"""The state of the user's Python code in one fit: taken when it begins, compared at each snapshot, restored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from keras_dist_callbacks._compat import graphs, input_inspection, library_state, model_config, pipeline, variables
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, Saved, SharedArray
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.process_runs import reference, runs_of
from keras_dist_callbacks.state.callback_state import (
    CallbackStates,
    is_asserted,
    listed_callbacks,
    own_state,
    walked_callbacks,
)
from keras_dist_callbacks.state.compiled_model import CompiledModel
from keras_dist_callbacks.state.facts.part import ScriptFacts
from keras_dist_callbacks.state.part import Moment, Part, arrived
from keras_dist_callbacks.state.step_variables import CapturedVariables
from keras_dist_callbacks.state.user_state import changes, edits, findings, restoring
from keras_dist_callbacks.state.user_state.input_state import InputState
from keras_dist_callbacks.state.user_state.libraries import is_library
from keras_dist_callbacks.state.user_state.nodes import Node, parent_of, recalled, remembered, with_parents, words
from keras_dist_callbacks.state.user_state.traced_reads import (
    DRAWN,
    changed_since_traced,
    drawing_in_traces,
    may_be_traced,
)
from keras_dist_callbacks.state.user_state.walk import walk
from keras_dist_callbacks.state.user_state.walker import Found, Policy, Root
from keras_dist_callbacks.state.variables import ModelVariables

_DESCRIPTION = "description"


class UserState(Part):
    """What the user's Python code holds, beginning with what it is now: after all `on_train_begin`.

    Args:
        fit: The running fit, before anything is built, traced or restored.
        callbacks: All callbacks whose state belongs to training.
        directory: The backup directory: what differs is reported by the first of several `fit()` calls with it.
        listed: The variables that Keras lists.
        step: Those that only the train step holds.
        compiled: The compiled model.
        facts: Those of the script, which report some edits.
        states: Those of callbacks, which have `set_state` called amid the restore of their other attributes.

    Attributes:
        input: The state of the Python code of the input.
        variable_keys: As of the last `capture`: the variables that only the user's code holds.
    """

    name = "objects"

    def __init__(
        self,
        fit: RunningFit,
        callbacks: Sequence[Any],
        directory: str,
        *,
        listed: ModelVariables,
        step: CapturedVariables,
        compiled: CompiledModel,
        facts: ScriptFacts,
        states: CallbackStates,
    ) -> None:
        self._fit = fit
        self._listed_variables, self._step, self._compiled = listed, step, compiled
        self._facts, self._states = facts, states
        self._callbacks = walked_callbacks(callbacks)
        self._listed = {id(callback) for callback in listed_callbacks(callbacks)}
        self._start = Found()
        self.input = InputState(fit, self._policy(), self._callbacks)
        self._start = self._walk()
        self._runs = runs_of(fit.model)
        self._changed_before = self._runs.changed.get(directory, {})
        self._changed: dict[str, Node] = {}
        self._runs.changed[directory] = self._changed
        layers = {p: node.value for p, node in self._start.nodes.items() if library_state.can_adapt(node.value)}
        self._adapted = {path: library_state.adapted(layer) for path, layer in layers.items()}
        names = [name for name, c in self._callbacks.items() if not is_library(type(c).__module__)]
        is_loaded = vars(fit.model).get("_kdc_origin") is not None  # from a checkpoint, with its variables
        described = edits.describe(self._start, self.input.start, names, is_loaded=is_loaded)
        first = self._runs.descriptions.setdefault(directory, described)
        self._description = edits.with_first(described, first)  # a restart begins with the first fit again
        self._tensor = SharedArray(np.frombuffer(json.dumps(self._description).encode(), np.uint8))
        self.variable_keys: set[int] = set()
        self._differing: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # by dataset
        self._counter = graphs.TraceCounter(fit.model)
        self._first_trace = getattr(fit.model, "train_function", None), self._counter.count()
        self._function, self._trace_count = self._first_trace
        self._traced: list[changes.Changes] = []  # as of each trace of the train function in use
        self._last_trace = Found()
        self._earlier = self._traces()

    def capture(self, position: Position) -> Piece:
        """Returns what has changed since the start."""
        self.note_trace()
        now = self._walk()
        found = changes.changes_between(self._start, now)
        traces_step = not self._fit.model.run_eagerly
        unknown, code, lost = (
            {path: why for path, why in places.items() if path in now.changed_sets or not now.is_below_own_state(path)}
            for places in (now.unknown, now.code_conditions, found.lost)
        )
        what_is_lost = [
            *(findings.unseen(path, why, now, found.records) for path, why in unknown.items()),
            *(findings.code(path, why) for path, why in code.items() if is_called(path, now)),
            *(findings.code(path, DRAWN) for path in drawing_in_traces(now, traces_step=traces_step)),
            *map(findings.traced, self._changed_after_a_trace(now, found)),
            *findings.not_restored(lost),
            *(findings.lost(path, _ADAPTED) for path in self._adapted_again(now)),
            *self._readers_of_the_input(now),
            *self._changed_after_a_copy(now, found),
        ]
        own = (node.value for node in now.nodes.values() if node.kind == "variable")
        self.variable_keys = {variables.key(c) for variable in own for c in variables.components(variable)}
        tensors = {**found.tensors, _DESCRIPTION: self._tensor}
        records, topics = found.records, dict[str, JSON]()
        if self._traced:
            last, since = self._traced[-1], changes.changes_between(*self._since_trace(now))
            topics["traced"] = last.records
            # What has its first value again, and had another one when it was traced, is put back after the trace.
            records = {**{path: since.records[path] for path in last.records.keys() & since.records}, **records}
            tensors = {**since.tensors, **last.tensors, **tensors}
        self._note_changed(records)
        topics.update({"changed": records} if records else {})
        return Piece(topics, tensors, tuple(what_is_lost))

    def note_earlier_fit(self, backup: Saved) -> None:
        """Compares what a backup holds with the start of the first fit of this process, if this is a later one."""
        saved = (backup.mine.state.get("changed") or {}).keys()
        before, now = self._changed_before, self._start.nodes
        holders = _holders(saved, before) & before.keys()
        if holders:
            nodes = {path: node for path, node in now.items() if holders.isdisjoint(with_parents(path))}
            self._start.nodes = {**nodes, **recalled(_below(holders, before), now)}
        self._note_changed(saved)

    def _note_changed(self, paths: Collection[str]) -> None:
        """Keeps how what a backup holds was at the start, for a later fit of this process."""
        holders = _holders(paths, self._start.nodes) - self._changed.keys()
        if holders:
            changed = _below(holders, self._start.nodes)
            self._changed.update({path: remembered(node) for path, node in changed.items()})

    def _since_trace(self, now: Found) -> tuple[Found, Found]:
        """Returns what had changed when the step was last traced: as it was then, and as it is now."""
        paths = self._traced[-1].records.keys()
        if not paths:
            return Found(), Found()
        then, present = (
            Found(nodes={p: node for p, node in found.nodes.items() if any(q in paths for q in with_parents(p))})
            for found in (self._last_trace, now)
        )
        return then, present

    def _trace_as_before(
        self,
        traced: Mapping[str, JSON] | None,
        saved: Mapping[str, JSON],
        tensors: Mapping[str, np.ndarray[Any, Any]],
    ) -> list[Finding]:
        """Traces the train step with the values that the interrupted run had when it traced its own.

        Args:
            traced: What had changed by then; None if it was never traced.
            saved: What had changed when the backup was taken, and is restored next.
            tensors: Of the backup.

        Returns:
            Conditions under which the trace is the same.
        """
        if self._fit.model.run_eagerly or traced is None:
            return []
        wanted = {path: record[1] for path, record in traced.items()}
        if not self._is_traced():
            if not wanted and not self._reads_any(saved):
                return []  # the first step will trace the same
            if not self._trace():
                return []  # a function that is opaque, which is a condition already
        self.note_trace()
        if self._traced[-1].digests != wanted:
            changed = changes.changes_between(self._start, self._walk()).records
            self._put_back_start(changed.keys() - wanted.keys())
            restoring.restore(traced, tensors, self._walk())
            self._trace()
            self._note_trace()
        now = self._traced[-1].digests
        differing = [path for path in dict.fromkeys([*wanted, *now]) if wanted.get(path) != now.get(path)]
        return list(map(findings.traced, differing))

    def _put_back_start(self, paths: Collection[str]) -> None:
        """Gives values that a callback has changed in this epoch already those of the start."""
        for path in paths:
            node = self._start.nodes.get(path)
            if node is not None and node.kind == "value" and node.slot is not None:
                node.slot.bind(node.value)

    def _trace(self) -> bool:
        self._fit.model.make_train_function(force=True)
        return graphs.trace(self._fit)

    def _is_traced(self) -> bool:
        """Returns whether the train function in use was traced since the start."""
        model = self._fit.model
        return bool(graphs.traces(model)) and self._first_trace != (model.train_function, self._counter.count())

    def _reads_any(self, saved: Mapping[str, JSON]) -> bool:
        nodes = self._walk(only_traced=True).nodes
        return any(path in nodes or parent_of(path)[0] in nodes for path in saved)

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts back what was saved, and compares what the script says with what it said then."""
        if moment is not arrived(saved.position):
            return []
        return self.adopt(saved) + self._edits(saved.mine.tensors)

    def adopt(self, saved: Saved) -> list[Finding]:
        """Puts back what was saved."""
        records, traced = saved.mine.state.get("changed") or {}, saved.mine.state.get("traced")
        if self._compiled.is_not_restored:  # then the script's optimizer has no variables for layers frozen in training
            records, traced = {path: r for path, r in records.items() if not path.endswith("/_trainable")}, None
        found = self._trace_as_before(traced, records, saved.mine.tensors)
        found += self._put_back(records, saved.mine.tensors)
        if self._start.with_own_state:  # their `set_state` may have changed what the model holds
            self._listed_variables.put_back()
        return found

    def _put_back(self, saved: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
        """Puts back what was saved, `set_state` of the callbacks included; returns what is not as it was."""
        set_states = self._states.put_back
        if not saved and not self._start.with_own_state:
            set_states()
            return []
        shared_with_input = self.input.shared_with(self._walk())
        failed, others = restoring.restore_and_compare(saved, tensors, self._walk, set_states)
        now = self._walk().nodes if shared_with_input else {}
        replaced = [path for path, value in shared_with_input.items() if path in now and now[path].value is not value]
        return [*findings.not_restored(failed), *findings.set_otherwise([*others, *replaced])]

    def _edits(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
        """Returns what the script says otherwise than in the interrupted run, and no other part reports."""
        if _DESCRIPTION not in tensors:
            return []
        differing = edits.compare(json.loads(bytes(tensors[_DESCRIPTION])), self._description)
        return findings.of_edits(differing, self._facts.names_that_differ)

    def note_trace(self) -> None:
        """A step was traced, or may have been: notes what it may have read, if so."""
        model = self._fit.model
        if model.run_eagerly:
            return
        if model.train_function is not self._function or self._counter.count() != self._trace_count:
            self._note_trace()

    def _note_trace(self) -> None:
        model = self._fit.model
        if model.train_function is not self._function:
            self._traced = []
        self._function, self._trace_count = model.train_function, self._counter.count()
        self._last_trace = self._walk(only_traced=True)
        digests = _digests(self._last_trace.nodes, self._last_trace.nodes)
        self._runs.traced = reference(self._function), (*self._traces(), digests)
        found = changes.changes_between(self._start, self._last_trace, "traced")
        self._traced.append(found)

    def _walk(self, *, only_traced: bool = False) -> Found:
        roots = _roots_of(self._fit, self._callbacks, compiled=not self._compiled.is_another)
        roots = {path: root for path, root in roots.items() if root.is_traced or not only_traced}
        policy = dataclasses.replace(self._policy(), is_asserted=self._is_asserted)
        return walk(roots, policy, start=self._start if self._start.nodes else None)

    def _is_asserted(self, value: Any) -> bool:
        return is_asserted(value) or self.input.holds(value)

    def _policy(self) -> Policy:
        return Policy(is_asserted, own_state, self._saved_keys, lambda value: id(value) in self._listed)

    def _saved_keys(self) -> set[int]:
        """Returns the keys of the variables that other parts save."""
        listed = variables.variable_set(self._fit.model).keys
        return {*listed, *self._step.keys} if self._start.nodes else {*listed}  # at the start, no step has made any

    def _readers_of_the_input(self, now: Found) -> list[Finding]:
        """Callbacks that could read a dataset whose passes differ; one of the input's would change its order too."""
        datasets = {path: node.value for path, node in now.nodes.items() if node.kind == "dataset"}
        shuffled = {id(stage) for stage in pipeline.seeded_reshuffles(self._fit.data)} if datasets else set()
        found = []
        for path, dataset in datasets.items():
            owner, place = words(path)
            if shuffled & set(map(id, pipeline.reshuffling_stages(dataset))):
                found.append(Finding("reshuffled-by-reader", owner, (place,)))
            elif self._passes_differ(dataset):
                found.append(Finding("passes-of-reader", owner, (place,)))
        return found

    def _changed_after_a_copy(self, now: Found, found: changes.Changes) -> list[Finding]:
        """Arrays that training has changed, of which a resumed fit would copy other values for its validation."""
        copied = self._fit.copied_by_validation
        changed = []
        for path in found.records if copied else ():
            node = now.node(path)
            array = None if node is None else node.value
            if static.is_a(array, np.ndarray) and any(np.may_share_memory(array, other) for other in copied):
                owner, place = words(path)
                changed.append(Finding("validation-copied", owner, (place,)))
        return changed

    def _passes_differ(self, dataset: Any) -> bool:
        if dataset not in self._differing:
            self._differing[dataset] = input_inspection.passes_differ(dataset)
        return self._differing[dataset]

    def _changed_after_a_trace(self, now: Found, found: changes.Changes) -> list[str]:
        """Values that a function of TensorFlow's may have read before they changed."""
        paths = [*self._unlike_in_traces(now), *changed_since_traced(now, found)]
        return list(dict.fromkeys(paths))

    def _unlike_in_traces(self, now: Found) -> list[str]:
        """Values that several traces of the step may have read, each another one."""
        if not self._traced:
            return self._unlike_since_an_earlier_fit(now)
        if len(self._traced) < 2:
            return [path for found in self._traced for path in found.lost if may_be_traced(path, now)]
        digests = [found.digests for found in self._traced]
        paths = dict.fromkeys(path for found in digests for path in found)
        unlike = [path for path in paths if len({found.get(path) for found in digests}) > 1]
        lost = [path for found in self._traced for path in found.lost]
        return [path for path in dict.fromkeys([*unlike, *lost]) if may_be_traced(path, now)]

    def _adapted_again(self, now: Found) -> list[str]:
        """The preprocessing layers of which training has called `adapt`: what they derive is not in their variables."""
        found = []
        for path, before in self._adapted.items():
            node = now.nodes.get(path)
            is_there = node is not None and library_state.can_adapt(node.value)
            if node is not None and is_there and library_state.is_adapted_otherwise(node.value, before):
                found.append(path)
        return found

    def _unlike_since_an_earlier_fit(self, now: Found) -> list[str]:
        """Values that the step read when it was traced in an earlier `fit()`, and that are others now."""
        if self._fit.model.run_eagerly or not graphs.traces(self._fit.model):
            return []
        traced = [path for path, node in now.nodes.items() if node.is_traced]
        then = self._earlier or [_digests(traced, self._start.nodes)]
        found = _digests(traced, now.nodes)
        unlike = [path for path in traced if any(known.get(path, found[path]) != found[path] for known in then)]
        return [path for path in unlike if may_be_traced(path, now)]

    def _traces(self) -> tuple[dict[str, str], ...]:
        """Returns what the traces of the train function, those of earlier fits included, may have read."""
        function, traces = self._runs.traced
        return traces if self._function is not None and function() is self._function else ()


def _roots_of(fit: RunningFit, callbacks: Mapping[str, Any], *, compiled: bool) -> dict[str, Root]:
    """Returns what a training runs: its model, what it was compiled with if a restart has that too, callbacks."""
    model = fit.model
    is_traced = not model.run_eagerly
    roots = {"model": Root(model, is_traced)}
    for name, value in {"optimizer": model.optimizer, **model_config.compiled_objects(model)}.items():
        if compiled and value is not None:
            roots[name] = Root(value, is_traced)
    for name, callback in callbacks.items():
        roots[f"callback {name}"] = Root(callback)
    for variable in model.variables:
        if variables.attributes_of_the_user(variable):
            roots[f"variable {variable.path.replace('/', '.')}"] = Root(variable)
    params = static.attribute(next(iter(callbacks.values()), None), "params")
    if params is not None:
        roots["fit/params"] = Root(params)
    return roots


_ADAPTED = "training has called adapt() of this layer; call it before fit()"


def is_called(path: str, now: Found) -> bool:
    """Returns whether a function may be called in training: of a plain class of the user's, other code names it."""
    above, name = parent_of(path)
    owner = now.nodes.get(above)
    if owner is None or not static.is_a(owner.value, type) or name.startswith("__"):
        return True
    extends_library = any(is_library(base.__module__) for base in owner.value.__mro__[:-1])
    return extends_library or name in now.names or "getattr" in now.names


def _holders(paths: Collection[str], nodes: Mapping[str, Node]) -> set[str]:
    """Returns what holds the values at paths: of what is not among nodes, what is above."""
    return {path if path in nodes else parent_of(path)[0] for path in paths}


def _digests(paths: Iterable[str], nodes: Mapping[str, Node]) -> dict[str, str]:
    return {path: changes.digest_of(nodes[path]) for path in paths if path in nodes}


def _below(holders: set[str], nodes: Mapping[str, Node]) -> dict[str, Node]:
    return {path: node for path, node in nodes.items() if not holders.isdisjoint(with_parents(path))}
