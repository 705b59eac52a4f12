"""Saves the facts of a script, and compares those of a backup with those of this run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import building
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding, sentences
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, Saved, SharedArray
from keras_dist_callbacks.base.errors import BackupMismatchError
from keras_dist_callbacks.base.process_runs import fits_of
from keras_dist_callbacks.state.facts import rates
from keras_dist_callbacks.state.facts.content import rows_of
from keras_dist_callbacks.state.facts.of_input import Input
from keras_dist_callbacks.state.facts.table import (
    COMPILE,
    FIT,
    INPUT,
    MODEL,
    PASSES,
    RATE,
    RUN,
    Fact,
    Facts,
    changes,
    digest,
    find,
)
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival

_TENSOR = "script"
_ALL = (*COMPILE, *MODEL, *INPUT, *PASSES)


def describe_run(strategy: Any, workers: int) -> dict[str, JSON]:
    """Returns the facts of a run, for the `info` of its backups."""
    return {"workers": workers, **{fact.name: fact.find(strategy) for fact in RUN}}


def describe_fit(fit: RunningFit, workers: int) -> dict[str, JSON]:
    """Returns what `describe_run` returns, and what else a running fit() must not change."""
    return {**describe_run(fit.model.distribute_strategy, workers), **{fact.name: fact.find(fit) for fact in FIT}}


def changes_of_run(before: Mapping[str, JSON], now: Mapping[str, JSON]) -> list[Finding]:
    """Returns what differs between two runs of what `describe_run` or `describe_fit` returns."""
    rows = [RUN[0]._replace(name="workers"), *RUN, *FIT]
    was, is_now = ({row.name: {row.name: info.get(row.name)} for row in rows} for info in (before, now))
    return [finding for _, finding in changes(rows, was, is_now)]


class ScriptFacts(Part):
    """The facts of one fit, taken when it begins.

    Args:
        fit: The running fit, before a backup is restored.
        directory: The backup directory: of several `fit()` calls with it, the first one gives the learning rate.
        callbacks: All whose state belongs to training: some set the rate.

    Attributes:
        names_that_differ: The last parts of the names of settings that are others than in the restored backup.
    """

    name = "facts"

    def __init__(self, fit: RunningFit, directory: str, callbacks: Sequence[Any]) -> None:
        self._fit, self._callbacks = fit, callbacks
        self.names_that_differ: Collection[str] = ()
        self._found = {**find([*INPUT, *PASSES], Input(fit)), **find([*COMPILE, RATE], fit.model)}
        own = self._found[RATE.name]
        first = fits_of(fit.model).rates.setdefault(directory, own)
        self._found[RATE.name] = first if first.keys() == own.keys() else own
        self._find_model()

    def _find_model(self) -> None:
        self._is_built = not building.has_unbuilt_layers(self._fit.model)
        self._found.update(find(MODEL, self._fit.model))
        self._piece, self._digest = _piece(self._found), digest(self._found)

    def _note_built(self) -> None:
        """A model that the first step builds has its layers now."""
        if not self._is_built:
            self._find_model()

    def capture(self, position: Position) -> Piece:
        """Returns one tensor, the same in every backup of a run, so that it is written once."""
        self._note_built()
        self._is_built = True  # what the first step has not built is not used
        return self._piece

    def check(self, saved: Saved) -> None:
        """Refuses what a backup cannot follow.

        Raises:
            BackupMismatchError: Layers were frozen or unfrozen, or a rate became a schedule, or was one.
        """
        found = self._changes([*COMPILE, *(MODEL if self._is_built else ())], saved)
        reasons = sentences(finding for _, finding in found if finding.code == "other-training")
        if reasons:
            raise BackupMismatchError(
                f"the backup, which is unchanged, is of a model that was trained in another way: {'; '.join(reasons)}"
            )

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts nothing back; returns what differs, and what could not be compared."""
        if moment is not moment_of_arrival(saved.position):
            return []
        self._note_built()
        found, model = self._changes(_ALL, saved), self._fit.model
        self.names_that_differ = {name.rpartition("/")[2] for name, finding in found if finding.effect == "lost"}
        before, now = _facts_in(saved).get(RATE.name, {}), self._found[RATE.name]
        of_rates = rates.changed_in_fit(before, now, model, saved.position, self._callbacks)
        return [*(finding for _, finding in found), *of_rates]

    def adopt(self, saved: Saved) -> list[Finding]:
        """No step is left that could differ."""
        self._note_built()
        return []

    @property
    def digest(self) -> str:
        """What is equal for two fits that were given the same, also where the model of one is built later."""
        self._note_built()
        return self._digest

    def is_same(self, saved: Saved) -> bool:
        """Returns whether the fit that wrote a backup was given the same as this one."""
        before = _facts_in(saved)
        return bool(before) and digest(before) == self.digest

    def differences(self, saved: Saved) -> list[Finding]:
        """Returns what is another than in the run that wrote a backup."""
        return [finding for _, finding in self._changes(_ALL, saved) if finding.effect == "lost"]

    def of_another_training(self, saved: Saved) -> list[Finding]:
        """Returns what distinguishes this training from the one whose finished backup was found."""
        found = self._changes([RATE, *COMPILE, *MODEL, *INPUT], saved)
        return [finding for _, finding in found if finding.effect == "lost"]

    def compile_changes(self, saved: Saved) -> list[Finding]:
        """Returns which of compile's arguments are others than in the run that wrote a backup."""
        return [finding for _, finding in self._changes([*COMPILE, RATE], saved)]

    def _changes(self, facts: Iterable[Fact], saved: Saved) -> list[tuple[str, Finding]]:
        before = _facts_in(saved)
        return list(changes(facts, before, self._found)) if before else []

    def has_other_rows(self, saved: Saved) -> bool:
        """Returns whether the input begins with other rows than that of a backup, and is not the same in another order.

        A few that differ may have been corrected. Where rows cannot be compared, they are not other ones.
        """
        before, now = (facts.get("first rows", {}) for facts in (_facts_in(saved), self._found))
        for where, rows in now.items():
            equal = [one == other for one, other in zip(before.get(where, ()), rows, strict=False)]
            if 2 * sum(equal) < len(equal):
                return not set(before[where]) <= set(rows_of(Input(self._fit).rows[where]))
        return False


class LoopFacts(Part):
    """The facts of a custom loop: the learning rates that its script has set.

    Args:
        optimizer: What the loop trains with, before a backup is restored; None if it has no optimizer of Keras.
    """

    name = "facts"

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._rates = optimizer, rates.rates_of(optimizer)

    def capture(self, position: Position) -> Piece:
        """Returns them."""
        return _piece({RATE.name: self._rates}) if self._rates else Piece()

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Returns which are others than before; those of the backup are in force."""
        return rates.changed_in_loop(_facts_in(saved).get(RATE.name, {}), self._rates, self._optimizer)


def _piece(found: Facts) -> Piece:
    return Piece(tensors={_TENSOR: SharedArray(np.frombuffer(json.dumps(found).encode(), np.uint8))})


def _facts_in(saved: Saved) -> Facts:
    """Returns the facts of the run that wrote a backup; empty where they are not known."""
    tensors = saved.mine.tensors
    return json.loads(bytes(tensors[_TENSOR])) if _TENSOR in tensors else {}
