"""What training depends on and no variable holds: the input's structure, compile's and fit's arguments, the model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import xxhash

from keras_dist_callbacks._compat import (
    building,
    input_inspection,
    input_values,
    model_config,
    model_parts,
)
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Position, SharedArray, SharedTensor
from keras_dist_callbacks.process_runs import runs_of
from keras_dist_callbacks.terminal import first_few

_TENSOR = "description"
_RATE = "learning rate"
_VALUES, _ROWS = f"/{input_values.VALUES}", ("/rows", "/shapes")
_SAMPLES, _TIMES, _UNREAD = "/samples", "/files/times", f"/{input_values.UNREAD}"
_FIRST_ROWS = f"/{input_values.FIRST_ROWS}"
_NOT_DESCRIBING = (_SAMPLES, _TIMES, "/files/sizes", _UNREAD, _FIRST_ROWS, "build_input_shape")
"""Ends of the names of facts that may differ between two runs of one script, or that other facts cover."""
_NUMBER = re.compile(r"/\d+(?=/)")


class Fingerprint:
    """The facts of this run, taken when it begins.

    Args:
        fit: The running fit, before a backup is restored.
        directory: The backup directory: of several `fit()` calls with it, the first one gives the learning rate.
    """

    def __init__(self, fit: RunningFit, directory: str = "") -> None:
        self._fit = fit
        rates = {} if fit.model.optimizer is None else _compiled_rates(fit.model)
        first = runs_of(fit.model).rates.setdefault(directory, rates)
        self._rates = first if first.keys() == rates.keys() else rates
        self._compiled = model_config.compile_facts(fit.model)
        self._input = input_inspection.input_facts(fit)
        self._describe()

    def _describe(self) -> None:
        model = self._fit.model
        self._is_built = not building.has_unbuilt_layers(model)
        self._facts = {**self._input, **self._compiled, **model_config.model_facts(model)}
        self._tensor = SharedArray(np.frombuffer(json.dumps(self._all).encode(), np.uint8))
        self._digest = _digest(self._all)

    @property
    def _all(self) -> dict[str, Any]:
        return {**self._facts, **{f"{_RATE}{name}": rate for name, rate in self._rates.items()}}

    def note_built(self) -> None:
        """A model that the first step builds has its layers now."""
        if not self._is_built:
            self._describe()

    def capture(self) -> dict[str, SharedTensor]:
        """Returns the tensor of a snapshot; the same in every backup of a run, so that it is written once."""
        self.note_built()
        self._is_built = True  # what the first step has not built is not used
        return {_TENSOR: self._tensor}

    def differences(
        self,
        tensors: Mapping[str, np.ndarray[Any, Any]],
        *,
        at: Position | None = None,
        callbacks: Iterable[Any] = (),
    ) -> list[Finding]:
        """Returns what is another than in the interrupted run, after the restore.

        Args:
            tensors: Those of the backup; where they hold no description, nothing differs.
            at: Where it was taken, for what is said of learning rates; None if they came from a checkpoint.
            callbacks: Those of the fit, of which some set the rate.
        """
        before = _described(tensors)
        changed = [_changed(name, before, self._facts) for name in self._differing(before)]
        return changed if at is None else changed + self._changed_rates(before, at, callbacks)

    def names_that_differ(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> set[str]:
        """Returns the last parts of the names of facts that `differences` reports."""
        return {name.rpartition("/")[2] for name in self._differing(_described(tensors))}

    @property
    def digest(self) -> str:
        """What is equal for two fits that were given the same, also where the model of one is built later."""
        self.note_built()
        return self._digest

    def is_same(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> bool:
        """Returns whether the fit that wrote a backup was given the same as this one."""
        before = _described(tensors)
        return bool(before) and _digest(before) == self.digest

    def has_other_rows(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> bool:
        """Returns whether the input begins with other rows than that of a backup, and is not the same in another order.

        A few that differ may have been corrected. Where rows cannot be compared, they are not other ones.
        """
        before = _described(tensors)
        for where, arrays in input_inspection.row_sources(self._fit):
            name = where + _FIRST_ROWS
            was, now = before.get(name) or (), self._facts.get(name) or ()
            equal = [one == other for one, other in zip(was, now, strict=False)]
            if 2 * sum(equal) < len(equal):
                return not set(was) <= set(input_values.rows_of(arrays))
        return False

    def of_another_training(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
        """Returns what distinguishes this training from the one whose finished backup was found.

        The seeds of an input are not compared: TensorFlow draws others when a script runs twice in a process. Nor is
        what its first pass has left in files.
        """
        before = _described(tensors)
        if not before:
            return []
        now = self._all
        rates = [name for name in now if name.startswith(_RATE) and before.get(name) != now[name]]
        others = [name for name in self._differing(before) if not _is_of_passes(name)]
        return [_changed(name, before, now) for name in rates + others]

    def _differing(self, before: Mapping[str, Any]) -> list[str]:
        names = dict.fromkeys([*before, *self._facts]) if before else ()
        found = [name for name in names if not name.startswith(_RATE) and self._differs(name, before)]
        other_rows = {name.rpartition("/")[0] for name in found if name.endswith(_ROWS)}
        found = [name for name in found if not (name.endswith(_VALUES) and name.rpartition("/")[0] in other_rows)]
        one_sided = [name for name in found if name not in before or name not in self._facts]
        # Of a stage that only one of them has, the complete stage is named.
        return [name for name in found if not any(name.startswith(f"{other}/") for other in one_sided)]

    def _differs(self, name: str, before: Mapping[str, Any]) -> bool:
        was, now = before.get(name), self._facts.get(name)
        if name.endswith(_VALUES) and None in (was, now):
            return False  # the content of arrays is described in one of the two runs only
        if name.endswith(_SAMPLES) and was and now:
            return input_values.changed_files(was, now) > 0
        if name.endswith((_UNREAD, _FIRST_ROWS)):
            return False  # a condition; the hash of all values says more
        if name.endswith(("/files/sizes", _TIMES)):
            return name.endswith("/sizes") and None not in (was, now) and was != now
        return bool(was != now)

    def not_compared(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
        """Returns what of the input may be another one, and was not looked at."""
        before = _described(tensors)
        found = [
            Finding("data-not-compared", name.removesuffix(_UNREAD), (why,))
            for name, why in self._facts.items()
            if name.endswith(_UNREAD) and before
        ]
        for files in (name.removesuffix("/times") for name in self._facts if name.endswith(_TIMES) and name in before):
            times = before[f"{files}/times"], self._facts[f"{files}/times"]
            count = self._facts[f"{files}/names"].partition(",")[0]
            samples = before[files + _SAMPLES], self._facts[files + _SAMPLES]
            is_same = times[0] == times[1] is not None
            if not is_same and not input_values.were_files_compared(*samples, int(count.split()[0])):
                found.append(Finding("files-not-compared", files.removesuffix("/files"), (count,)))
        return found

    def reasons(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Returns what may have made another model of the one in a backup, one clause each."""
        before = _described(tensors)
        trainable = _changes_of_trainable(before, self._facts) if self._is_built else []
        return trainable + _changes_of_rate(before, self._facts)

    def compile_changes(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[Finding]:
        """Returns which of compile's arguments are others than in the run that wrote a backup."""
        before = _described(tensors)
        if not before:
            return []
        rates = {f"{_RATE}{name}": rate for name, rate in self._rates.items()}
        now = {**self._compiled, **rates}
        return [_changed(name, before, now) for name, value in now.items() if before.get(name) != value]

    def _changed_rates(self, before: Mapping[str, Any], at: Position, callbacks: Iterable[Any]) -> list[Finding]:
        kinds = [type(callback) for callback in callbacks]
        scheduler = next((kind for kind in kinds if issubclass(kind, keras.callbacks.LearningRateScheduler)), None)
        rates = _changed_rates(before, self._rates, self._fit.model.optimizer)
        if scheduler is None:
            plateau = any(issubclass(kind, keras.callbacks.ReduceLROnPlateau) for kind in kinds)
            return [Finding("rate-kept-plateau" if plateau else "rate-kept", detail=of_rate) for of_rate in rates]
        first = at.epoch + (2 if at.kind == "within" else 1)
        code = "rate-scheduled" if at.kind == "within" else "rate-replaced"
        until = (scheduler.__name__, str(first), str(first - 1))
        return [Finding(code, detail=(*of_rate, *until)) for of_rate in rates]


def _described(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Returns the facts of the run that wrote a backup; empty where they are not known."""
    return json.loads(bytes(tensors[_TENSOR])) if _TENSOR in tensors else {}


def _digest(facts: Mapping[str, Any]) -> str:
    """Returns a hash of facts, without those of input layers, which a model that is built by its first step gets."""
    inputs = tuple(name.removesuffix("class_name") for name, value in facts.items() if value == "InputLayer")
    names = [n for n in facts if not n.endswith(_NOT_DESCRIBING) and not n.startswith(inputs) and not _is_of_passes(n)]
    return xxhash.xxh3_64_hexdigest(json.dumps([[_NUMBER.sub("", name), facts[name]] for name in names]).encode())


def _compiled_rates(model: Any) -> dict[str, float]:
    """Returns the rates that the code has set: those given to compile(), which a checkpoint may have replaced since."""
    now = model_parts.fixed_rates(model.optimizer)
    optimizer, rates = vars(model).get("_kdc_compiled_rates", (None, {}))
    if optimizer is not model.optimizer:
        return now
    loaded = vars(model).get("_kdc_loaded_rates", now)
    return {name: rate if now[name] == loaded.get(name) else now[name] for name, rate in rates.items()}


def capture_rates(rates: Mapping[str, float]) -> dict[str, SharedTensor]:
    """Returns the tensor of a loop's snapshot: the rates that the script has set."""
    text = json.dumps({f"{_RATE}{name}": rate for name, rate in rates.items()})
    return {_TENSOR: SharedArray(np.frombuffer(text.encode(), np.uint8))} if rates else {}


def changed_rates_of_loop(
    tensors: Mapping[str, np.ndarray[Any, Any]], rates: Mapping[str, float], optimizer: Any
) -> list[Finding]:
    """Returns which rates of a loop the script sets otherwise than before, after the restore."""
    changed = _changed_rates(_described(tensors), rates, optimizer)
    return [Finding("rate-kept-in-loop", detail=of_rate) for of_rate in changed]


def _changed_rates(before: Mapping[str, Any], rates: Mapping[str, float], optimizer: Any) -> list[tuple[str, ...]]:
    """Returns what each rate was that the script has changed, what it is, and which is in force."""
    in_force = model_parts.fixed_rates(optimizer) if rates else {}
    return [
        tuple(f"{value:.6g}" for value in (before[_RATE + name], rate, in_force[name]))
        for name, rate in rates.items()
        if before.get(_RATE + name) not in (None, rate) and in_force.get(name) not in (None, rate)
    ]


def _changes_of_trainable(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    words = {"True": "trainable", "False": "frozen"}
    found = []
    for name in now:
        layer, _, last = name.rpartition("/")
        if last == "trainable" and before.get(name, now[name]) != now[name]:
            called = now.get(f"{layer}/name", layer)
            was, is_now = (words.get(str(facts[name]), facts[name]) for facts in (before, now))
            found.append(f"layer {called!r} was {was} in the interrupted run and is {is_now} now")
    return first_few(found)


def _changes_of_rate(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    kind = "optimizer/learning_rate"
    if (kind in before) == (kind in now) or not before.keys() & {"optimizer/class"}:
        return []
    was, is_now = (f"the schedule {facts[kind]}" if kind in facts else "a number" for facts in (before, now))
    return [f"the learning rate was {was} in the interrupted run and is {is_now} now"]


def _is_of_passes(name: str) -> bool:
    last = name.rpartition("/")[2]
    return name.startswith(("input/", "validation data/")) and last.startswith(("seed", input_values.FILES_OF_PASSES))


def _changed(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Finding:
    was, value = before.get(name), now.get(name)
    if was is None:
        return Finding("setting-new", detail=(name, _shown(value)))
    if value is None:
        return Finding("setting-gone", detail=(name, _shown(was)))
    where, _, last = name.rpartition("/")
    if last == "samples":
        return Finding("files-changed", where, (str(input_values.changed_files(was, value)),))
    if last in ("sizes", "names"):
        return Finding(f"files-{last}", where)
    if last == input_values.FILES_OF_PASSES:
        return Finding("passes-around-new-files" if value == "complete" else "passes-around-lost-files", where)
    if last == input_values.VALUES:
        return Finding("values-in-rows" if any(where + rows in now for rows in _ROWS) else "values", where)
    code = "input-seed" if _is_of_passes(name) else "setting"
    return Finding(code, detail=(_setting(name, now), _shown(was), _shown(value)))


def _setting(name: str, facts: Mapping[str, Any]) -> str:
    """Returns the name of a setting; of `model/layers/2/config/rate` that of the rate, with the layer's own name."""
    parts = name.split("/")
    if parts[-2:] == ["config", "name"]:
        return f"name of layer {parts[-3]}"
    for end in range(len(parts) - 1, 0, -1):
        called = facts.get("/".join([*parts[:end], "name"]))
        if called is not None and parts[end:] != ["name"]:
            setting = "/".join(part for part in parts[end:] if part != "config")
            return f"{setting} of the layer {called!r}"
    return name


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
