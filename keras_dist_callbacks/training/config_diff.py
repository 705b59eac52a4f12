"""What training depends on and no variable holds: the input's structure, compile's and fit's arguments, the model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
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
from keras_dist_callbacks.backups.snapshot import Position, SharedArray, SharedTensor
from keras_dist_callbacks.process_runs import runs_of
from keras_dist_callbacks.terminal import first_few

_TENSOR = "description/facts"
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
    ) -> list[str]:
        """Returns what is another than in the interrupted run, one sentence each, after the restore.

        Args:
            tensors: Those of the backup; where they hold no description, nothing differs.
            at: Where it was taken, for what is said of learning rates; None if they came from a checkpoint.
            callbacks: Those of the fit, of which some set the rate.
        """
        before = _described(tensors)
        changed = [_changed(name, before, self._facts) for name in self._differing(before)]
        return first_few(changed if at is None else changed + self._changed_rates(before, at, callbacks))

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

    def of_another_training(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Returns what distinguishes this training from the one whose finished backup was found, one sentence each.

        The seeds of an input are not compared: TensorFlow draws others when a script runs twice in a process. Nor is
        what its first pass has left in files.
        """
        before = _described(tensors)
        if not before:
            return []
        now = self._all
        rates = [name for name in now if name.startswith(_RATE) and before.get(name) != now[name]]
        others = [name for name in self._differing(before) if not _is_of_passes(name)]
        return first_few([_changed(name, before, now) for name in rates + others])

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

    def conditions(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Returns what of the input may be another one, and was not looked at."""
        before = _described(tensors)
        found = [
            f"the data of the {name.removesuffix(_UNREAD)} are the same as in the interrupted run ({why})"
            for name, why in self._facts.items()
            if name.endswith(_UNREAD) and before
        ]
        for files in (name.removesuffix("/times") for name in self._facts if name.endswith(_TIMES) and name in before):
            times = before[f"{files}/times"], self._facts[f"{files}/times"]
            count = self._facts[f"{files}/names"].partition(",")[0]
            samples = before[files + _SAMPLES], self._facts[files + _SAMPLES]
            is_same = times[0] == times[1] is not None
            if not is_same and not input_values.were_files_compared(*samples, int(count.split()[0])):
                of = files.removesuffix("/files")
                found.append(
                    f"the {count} of the {of} have the same content as before (other times, and not all were compared)"
                )
        return found

    def reasons(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Returns what may have made another model of the one in a backup, one clause each."""
        before = _described(tensors)
        trainable = _changes_of_trainable(before, self._facts) if self._is_built else []
        return trainable + _changes_of_rate(before, self._facts)

    def compile_changes(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Returns which of compile's arguments are others than in the run that wrote a backup, one sentence each."""
        before = _described(tensors)
        if not before:
            return []
        rates = {f"{_RATE}{name}": rate for name, rate in self._rates.items()}
        now = {**self._compiled, **rates}
        return [_changed(name, before, now) for name, value in now.items() if before.get(name) != value]

    def _changed_rates(self, before: Mapping[str, Any], at: Position, callbacks: Iterable[Any]) -> list[str]:
        kinds = [type(callback) for callback in callbacks]
        scheduler = next((kind for kind in kinds if issubclass(kind, keras.callbacks.LearningRateScheduler)), None)
        if scheduler is None:
            plateau = any(issubclass(kind, keras.callbacks.ReduceLROnPlateau) for kind in kinds)
            instead = " in the place of ReduceLROnPlateau" if plateau else ""
            return _changed_rates(
                before,
                self._rates,
                self._fit.model.optimizer,
                lambda rate: (
                    f"stays in force; to set the new one, add keras.callbacks.LearningRateScheduler(lambda epoch: "
                    f"{rate}){instead}, which sets it in each epoch"
                ),
            )
        first = at.epoch + (2 if at.kind == "within" else 1)
        until = f"is in force to the end of epoch {first - 1}; " if at.kind == "within" else "is replaced: "
        sets = f"{until}{scheduler.__name__} sets the rate from epoch {first} on"
        return _changed_rates(before, self._rates, self._fit.model.optimizer, lambda rate: sets)


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
) -> list[str]:
    """Returns which rates of a loop the script sets otherwise than before, one sentence each, after the restore."""
    return _changed_rates(
        _described(tensors),
        rates,
        optimizer,
        lambda rate: f"stays in force; to set the new one, assign optimizer.learning_rate = {rate} after restore()",
    )


def _changed_rates(
    before: Mapping[str, Any], rates: Mapping[str, float], optimizer: Any, then: Callable[[str], str]
) -> list[str]:
    in_force = model_parts.fixed_rates(optimizer) if rates else {}
    return [
        f"the learning rate that the script sets before training changed from {before[_RATE + name]:.6g} to "
        f"{rate:.6g}, and that of the backup, {in_force[name]:.6g}, {then(f'{rate:.6g}')}"
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


def _changed(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    was, value = before.get(name), now.get(name)
    if was is None:
        return f"{name} is new: {_shown(value)}"
    if value is None:
        return f"{name} is missing now: it was {_shown(was)}"
    where, _, last = name.rpartition("/")
    if last == "samples":
        changed = input_values.changed_files(was, value)
        return f"of the {where}, {changed} have another size or content; give fit() the same data"
    if last == "sizes":
        return f"the {where} have other sizes; give fit() the same data"
    if last == "names":
        return f"the {where} have other names or another order; give fit() the same data"
    if last == input_values.FILES_OF_PASSES:
        way_out = "delete them before a resume" if value == "complete" else "put them back"
        return (
            f"the files of the {where} were {was} when the interrupted run began, and are {value} now, so that another "
            f"number of passes draws from what is read both before them and beside them; {way_out}, or call cache() "
            "without a file"
        )
    if last == input_values.VALUES:
        knows_rows = any(where + rows in now for rows in _ROWS)
        what = "as many rows as before, but other values in them" if knows_rows else "other values"
        return f"the {where} has {what}; give fit() the same data"
    sentence = f"{_setting(name, now)} changed from {_shown(was)} to {_shown(value)}"
    if _is_of_passes(name):  # a seed
        sentence += "; give it the same one in each run (keras.utils.image_dataset_from_directory draws one itself)"
    return sentence


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
