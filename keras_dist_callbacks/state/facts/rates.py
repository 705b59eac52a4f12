"""Learning rates that are numbers: what the script sets before training, and what is in force after a restore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_dist_callbacks._compat import model_parts
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Position


def rates_of(optimizer: Any) -> dict[str, float]:
    """Returns the rates of an optimizer, or of those within it, by what users are told each is."""
    return {} if optimizer is None else _named(model_parts.fixed_rates(optimizer))


def set_in_code(model: Any) -> dict[str, float]:
    """Returns those that were given to compile(), which a checkpoint may have replaced since."""
    now = rates_of(model.optimizer)
    optimizer, compiled = vars(model).get("_kdc_compiled_rates", (None, {}))
    if optimizer is None or optimizer is not model.optimizer:
        return now
    compiled, loaded = _named(compiled), _named(vars(model).get("_kdc_loaded_rates", {}))
    return {name: rate if now[name] == loaded.get(name, now[name]) else now[name] for name, rate in compiled.items()}


def changed_in_fit(
    before: Mapping[str, float], now: Mapping[str, float], model: Any, at: Position, callbacks: Iterable[Any]
) -> list[Finding]:
    """Returns which rates the script has changed, and which is in force until when, after the restore.

    Args:
        before: Those that the script of the interrupted run has set.
        now: Those that this one has set.
        model: The model.
        at: Where the backup was taken.
        callbacks: Those of the fit, of which some set the rate.
    """
    if "_kdc_compiled_rates" not in vars(model) and vars(model).get("_kdc_restored_from") is not None:
        return []  # a checkpoint has given them, and what the code sets is not known
    kinds = [type(callback) for callback in callbacks]
    scheduler = next((kind for kind in kinds if issubclass(kind, keras.callbacks.LearningRateScheduler)), None)
    changed = _changed(before, now, model.optimizer)
    if scheduler is None:
        return [Finding("rate-kept", detail=rate) for rate in changed]
    first = at.epoch + (2 if at.kind == "within" else 1)
    return [Finding("rate-scheduled", detail=(*rate, scheduler.__name__, str(first))) for rate in changed]


def changed_in_loop(before: Mapping[str, float], now: Mapping[str, float], optimizer: Any) -> list[Finding]:
    """Returns the same of a loop, which sets its rate itself."""
    return [Finding("rate-kept-in-loop", detail=rate) for rate in _changed(before, now, optimizer)]


def _changed(before: Mapping[str, float], now: Mapping[str, float], optimizer: Any) -> Iterator[tuple[str, ...]]:
    """What each rate was that the script has changed, what it is, and which is in force."""
    in_force = rates_of(optimizer)
    for name, rate in now.items():
        if before.get(name) not in (None, rate) and in_force.get(name) not in (None, rate):
            yield tuple(f"{value:.6g}" for value in (before[name], rate, in_force[name]))


def _named(rates: Mapping[str, float]) -> dict[str, float]:
    return {f"learning rate of {name}" if name else "learning rate": rate for name, rate in rates.items()}
