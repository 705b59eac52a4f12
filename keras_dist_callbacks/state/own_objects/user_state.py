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
from keras_dist_callbacks.base.process_runs import fits_of, reference
from keras_dist_callbacks.state.callback_state import (
    CallbackStates,
    is_asserted,
    listed_callbacks,
    own_state,
    walked_callbacks,
)
from keras_dist_callbacks.state.compiled_model import CompiledModel
from keras_dist_callbacks.state.facts.script_facts import ScriptFacts
from keras_dist_callbacks.state.own_objects import changes, edits, findings
from keras_dist_callbacks.state.own_objects.input_objects import InputState
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.libraries import is_library
from keras_dist_callbacks.state.own_objects.look import Look, Policy, Remembered, Root
from keras_dist_callbacks.state.own_objects.places import parent_of, with_parents, words
from keras_dist_callbacks.state.own_objects.plain import is_immutable
from keras_dist_callbacks.state.own_objects.traces import (
    DRAWN,
    changed_since_traced,
    drawing_in_traces,
    may_be_traced,
)
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival
from keras_dist_callbacks.state.step_variables import CapturedVariables
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
        self._is_begun = False
        self.input = InputState(fit, self._policy(), self._callbacks)
        self._start = start = look_at(self._roots(), self._policy())
        self._is_begun = True
        self._early: dict[str, JSON] = {}  # what was put back for hooks, and no traced function reads
        self._runs = fits_of(fit.model)
        self._changed_before = self._runs.changed.get(directory, Remembered())
        self._changed = self._runs.changed[directory] = Remembered()
        layers = {path: value for path, value in start.objects.items() if library_state.can_adapt(value)}
        self._adapted = {path: library_state.adapted(layer) for path, layer in layers.items()}
        names = [name for name, c in self._callbacks.items() if not is_library(type(c).__module__)]
        is_loaded = vars(fit.model).get("_kdc_origin") is not None  # from a checkpoint, with its variables
        described = edits.describe(start, self.input.start, names, is_loaded=is_loaded)
        first = self._runs.descriptions.setdefault(directory, described)
        self._description = edits.with_first(described, first)  # a restart begins with the first fit again
        self._tensor = SharedArray(np.frombuffer(json.dumps(self._description).encode(), np.uint8))
        self.variable_keys: set[int] = set()
        self._differing: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # by dataset
        self._counter = graphs.TraceCounter(fit.model)
        self._function, self._trace_count = getattr(fit.model, "train_function", None), self._counter.count()
        self._first_trace = self._function, self._trace_count[0]
        self._traced: list[dict[str, str]] = []  # at each trace of a step, what had changed
        self._last_trace: JSON = None  # the same of the train step, and the numbers and the like of it as records
        self._earlier = self._traces()

    def capture(self, position: Position) -> Piece:
        """Returns what has changed since the start."""
        self.note_trace()
        now = self._look()
        found = changes.changes_between(self._start, now)
        unknown, code, lost = (
            {path: why for path, why in paths.items() if not now.is_below_own_state(path)}
            for paths in (now.unknown, now.code.conditions, found.lost)
        )
        unknown |= now.orders
        what_is_lost = [
            *(findings.unseen(path, why, now, found.records) for path, why in unknown.items()),
            *(findings.code(path, why) for path, why in code.items() if is_called(path, now)),
            *(
                findings.code(path, DRAWN)
                for path in drawing_in_traces(now, traces_step=not self._fit.model.run_eagerly)
            ),
            *map(findings.traced, self._changed_after_a_trace(now, [*found.records, *found.lost])),
            *findings.not_restored(lost),
            *(findings.lost(path, _ADAPTED) for path in self._adapted_again(now)),
            *self._readers_of_the_input(now),
            *self._changed_after_a_copy(now, found),
        ]
        own = now.variables.values()
        self.variable_keys = {variables.key(c) for variable in own for c in variables.components(variable)}
        topics = dict[str, JSON]({"changed": found.records} if found.records else {})
        if self._last_trace is not None:
            topics["traced"] = self._last_trace
        self._note_changed(found.records)
        return Piece(topics, {**found.tensors, _DESCRIPTION: self._tensor}, tuple(what_is_lost))

    def note_earlier_fit(self, backup: Saved) -> None:
        """Compares what a backup holds with the start of the first fit of this process, if this is a later one."""
        saved = (backup.mine.state.get("changed") or {}).keys()
        holders = _holders(saved, self._changed_before.digests) & {k.rstrip("/") for k in self._changed_before.digests}
        if holders:
            self._start.recall(holders, self._changed_before)
        self._note_changed(saved)

    def _note_changed(self, keys: Collection[str]) -> None:
        """Keeps how what a backup holds was at the start, for a later fit of this process."""
        holders = _holders(keys, self._start.digests) - {key.rstrip("/") for key in self._changed.digests}
        if holders:
            found = self._start.remembered(holders)
            self._changed.digests.update(found.digests)
            self._changed.objects.update(found.objects)

    def _trace_as_before(self, saved: Saved, records: Mapping[str, JSON]) -> list[Finding]:
        """Traces the train step, before what changed later is restored.

        Args:
            saved: What is restored; numbers and the like that had changed when the interrupted run traced its step are
                put back first as they were then.
            records: What had changed when the backup was taken.

        Returns:
            Conditions under which the trace is the same.
        """
        if self._fit.model.run_eagerly or "traced" not in saved.mine.state:
            return []
        traced, early = (saved.mine.state["traced"][name] for name in ("digests", "values"))
        if self._is_traced():
            self.note_trace()
            if self._last_trace is not None and self._last_trace["digests"] == traced:
                return []
        elif not traced and not self._reads_any(records):
            return []  # the first step will trace the same
        changed = changes.changed(self._start, self._look(only_traced=True))
        self._put_back_start(set(changed) - early.keys())
        changes.restore(early, {}, self._look)
        if not self._trace():
            return []  # a function that is opaque, which is a condition already
        self.note_trace()
        now = self._last_trace["digests"]
        self._put_back_start(early.keys() - records.keys())
        differing = [key for key in dict.fromkeys([*traced, *now]) if traced.get(key) != now.get(key)]
        differing = [key for key in differing if key not in self._early]
        return list(map(findings.traced, differing))

    def _put_back_start(self, keys: Collection[str]) -> None:
        """Gives places that hold numbers and the like the values that they had at the start."""
        for key in keys:
            place, value = self._start.place_at(key), self._start.value_at(key)
            if place is not None and is_immutable(value):
                place.bind(value)

    def _trace(self) -> bool:
        self._fit.model.make_train_function(force=True)
        return graphs.trace(self._fit)

    def _is_traced(self) -> bool:
        """Returns whether the train function in use was traced since the start."""
        model = self._fit.model
        return bool(graphs.traces(model)) and self._first_trace != (model.train_function, self._counter.count()[0])

    def _reads_any(self, records: Mapping[str, JSON]) -> bool:
        found = self._look(only_traced=True)
        return any(key in found.digests or parent_of(key)[0] in found.objects for key in records)

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts back what was saved, and compares what the script says with what it said then."""
        if moment is Moment.EPOCH_BEGIN and saved.position.kind == "within":
            self._put_back_for_hooks(saved)
        if moment is not moment_of_arrival(saved.position):
            return []
        return self._put_back_all(saved) + self._edits(saved.mine.tensors)

    def adopt(self, saved: Saved) -> list[Finding]:
        """See `Part`; what the script says otherwise now does not matter any more."""
        return self._put_back_all(saved)

    def _put_back_all(self, saved: Saved) -> list[Finding]:
        records = saved.mine.state.get("changed") or {}
        found: list[Finding] = []
        if saved.position.kind == "within":
            found += findings.not_restored(changes.undo(records, self._start, self._look()))
        if self._compiled.is_not_restored:  # then the script's optimizer has no variables for layers frozen in training
            records = {path: record for path, record in records.items() if not path.endswith("/_trainable")}
        else:
            found += self._trace_as_before(saved, records)
        found += self._put_back(records, saved.mine.tensors)
        if self._start.with_own_state:  # their `set_state` may have changed what the model holds
            self._listed_variables.put_back()
        return found

    def _put_back_for_hooks(self, saved: Saved) -> None:
        """Puts back what hooks of the interrupted epoch's begin may read, such as a list of the epochs before.

        Keras calls them again before training has arrived; all that they change is put back once more then. What the
        step reads when it is traced waits until it was, and `set_state` of the user's is called once, at the end.
        """
        records = saved.mine.state.get("changed") or {}
        traced = {key for key in records if not self._start.traced.isdisjoint(with_parents(key)[:2])}
        waiting = {key for key in traced if may_be_traced(key, self._start)}
        self._early = changes.by_value({key: record for key, record in records.items() if key not in waiting})
        changes.restore(self._early, saved.mine.tensors, self._look)
        self._states.put_back_of_keras()

    def _put_back(self, saved: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
        """Puts back what was saved, `set_state` of the callbacks included; returns what is not as it was."""
        set_states = self._states.put_back
        if not saved and not self._start.with_own_state:
            set_states()
            return []
        shared_with_input = self.input.shared_with(self._look())
        failed, others = changes.restore_and_compare(saved, tensors, self._look, set_states)
        now = self._look() if shared_with_input else None
        replaced = [path for path, value in shared_with_input.items() if now and now.value_at(path) is not value]
        return [*findings.not_restored(failed), *findings.set_otherwise([*others, *replaced])]

    def _edits(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
        """Returns what the script says otherwise than in the interrupted run, and no other part reports."""
        if _DESCRIPTION not in tensors:
            return []
        differing = edits.compare(json.loads(bytes(tensors[_DESCRIPTION])), self._description)
        return findings.of_edits(differing, self._facts.names_that_differ)

    def note_trace(self) -> None:
        """A step was traced, or may have been: notes what it may have read, if so."""
        if self._fit.model.train_function is self._function and self._counter.count() == self._trace_count:
            return  # as nearly always: this is asked after each step
        if not self._fit.model.run_eagerly:
            self._note_trace()

    def _note_trace(self) -> None:
        model, counts = self._fit.model, self._counter.count()
        is_another = model.train_function is not self._function
        is_of_training = is_another or counts[0] != self._trace_count[0]
        self._traced = [] if is_another else self._traced
        self._function, self._trace_count = model.train_function, counts
        found = self._look(only_traced=True)
        self._runs.traced = reference(self._function), (*self._traces(), found.digests)
        digests = {key: found.digest_at(key) or "" for key in changes.changed(self._start, found)}
        self._traced.append(digests)
        if is_of_training:
            records = changes.changes_between(self._start, found).records.items()
            values = {key: record for key, record in records if is_immutable(found.value_at(key))}
            self._last_trace = {"digests": digests, "values": values}

    def _look(self, *, only_traced: bool = False) -> Look:
        roots = {path: root for path, root in self._roots().items() if root.is_traced or not only_traced}
        found = look_at(roots, dataclasses.replace(self._policy(), is_asserted=self._is_asserted), start=self._start)
        for label, value in self.input.start.labels.items():
            if static.is_a(value, type):  # of objects that callbacks take from the input
                found.name(label, value)
        return found

    def _roots(self) -> dict[str, Root]:
        return _roots_of(self._fit, self._callbacks, compiled=not self._compiled.is_another)

    def _is_asserted(self, value: Any) -> bool:
        return is_asserted(value) or self.input.holds(value)

    def _policy(self) -> Policy:
        return Policy(is_asserted, own_state, self._saved_keys, lambda value: id(value) in self._listed)

    def _saved_keys(self) -> set[int]:
        """Returns the keys of the variables that other parts save."""
        listed = variables.variable_set(self._fit.model).keys
        return {*listed, *self._step.keys} if self._is_begun else {*listed}  # at the start, no step made any

    def _readers_of_the_input(self, now: Look) -> list[Finding]:
        """Callbacks that could read a dataset whose passes differ; one of the input's would change its order too."""
        shuffled = {id(stage) for stage in pipeline.seeded_reshuffles(self._fit.data)} if now.datasets else set()
        found = []
        for path, dataset in now.datasets.items():
            owner, place = words(path)
            if shuffled & set(map(id, pipeline.reshuffling_stages(dataset))):
                found.append(Finding("reshuffled-by-reader", owner, (place,)))
            elif self._passes_differ(dataset):
                found.append(Finding("passes-of-reader", owner, (place,)))
        return found

    def _changed_after_a_copy(self, now: Look, found: changes.Changes) -> list[Finding]:
        """Arrays that training has changed, of which a resumed fit would copy other values for its validation."""
        copied = self._fit.copied_by_validation
        changed = []
        for path in found.records if copied else ():
            array = now.value_at(path)
            if static.is_a(array, np.ndarray) and any(np.may_share_memory(array, other) for other in copied):
                owner, place = words(path)
                changed.append(Finding("validation-copied", owner, (place,)))
        return changed

    def _passes_differ(self, dataset: Any) -> bool:
        if dataset not in self._differing:
            self._differing[dataset] = input_inspection.passes_differ(dataset)
        return self._differing[dataset]

    def _changed_after_a_trace(self, now: Look, changed: Iterable[str]) -> list[str]:
        """Values that a function of TensorFlow's may have read before they changed."""
        paths = [*self._unlike_in_traces(now), *changed_since_traced(now, changed)]
        return list(dict.fromkeys(path.removesuffix("/") for path in paths))

    def _unlike_in_traces(self, now: Look) -> list[str]:
        """Values that several traces of the step may have read, each another one."""
        if not self._traced:
            return self._unlike_since_an_earlier_fit(now)
        keys = dict.fromkeys(key for found in self._traced for key in found)
        unlike = [key for key in keys if len({found.get(key) for found in self._traced}) > 1]
        return [key for key in unlike if may_be_traced(key, now)]

    def _adapted_again(self, now: Look) -> list[str]:
        """The preprocessing layers of which training has called `adapt`: what they derive is not in their variables."""
        layers = {path: now.objects.get(path) for path in self._adapted}
        return [
            path
            for path, before in self._adapted.items()
            if library_state.can_adapt(layers[path]) and library_state.is_adapted_otherwise(layers[path], before)
        ]

    def _unlike_since_an_earlier_fit(self, now: Look) -> list[str]:
        """Values that the step read when it was traced in an earlier `fit()`, and that are others now."""
        if self._fit.model.run_eagerly or not graphs.traces(self._fit.model):
            return []
        then = self._earlier or [{key: self._start.digests[key] for key in now.traced & self._start.digests.keys()}]
        found = {key: now.digests[key] for key in now.digests if key in now.traced}
        unlike = [key for key in found if any(known.get(key, found[key]) != found[key] for known in then)]
        return [key for key in unlike if may_be_traced(key, now)]

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
            roots[f"variable {variable.path.replace('/', '.')}"] = Root(variable, is_traced)
    params = static.attribute(next(iter(callbacks.values()), None), "params")
    if params is not None:
        roots["fit/params"] = Root(params)
    return roots


_ADAPTED = "training has called adapt() of this layer; call it before fit()"


def is_called(path: str, now: Look) -> bool:
    """Returns whether a function may be called in training: of a plain class of the user's, other code names it."""
    above, name = parent_of(path)
    owner = now.objects.get(above)
    if owner is None or not static.is_a(owner, type) or name.startswith("__"):
        return True
    extends_library = any(is_library(base.__module__) for base in owner.__mro__[:-1])
    return extends_library or name in now.code.names or "getattr" in now.code.names


def _holders(keys: Collection[str], known: Collection[str]) -> set[str]:
    """Returns what holds the values at paths: of what is not known, what is above."""
    return {key.rstrip("/") if key in known else parent_of(key)[0] for key in keys}
