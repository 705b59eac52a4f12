"""What an optimizer says about itself, under every strategy and whatever wraps it."""

from __future__ import annotations

from typing import Any


def steps_taken(optimizer: Any) -> int:
    """How often the optimizer was applied."""
    return int(_number(optimizer.iterations))  # int() fails on a mirrored variable


def current_rates(optimizer: Any) -> dict[str, float]:
    """The rate of the next step for each optimizer within; the key is `""` if there is only one."""
    return {name: _number(inner.learning_rate) for name, inner in _inner(optimizer)}


def fixed_rates(optimizer: Any) -> dict[str, float]:
    """The rates that are numbers, not functions of the step; the keys are those of `current_rates`."""
    scheduled = last_rates(optimizer)
    return {name: rate for name, rate in current_rates(optimizer).items() if name not in scheduled}


def last_rates(optimizer: Any) -> dict[str, float]:
    """The rate of the step just taken, of those optimizers whose rate is a function of the step."""
    import keras

    rates = {}
    for name, inner in _inner(optimizer):
        schedule = getattr(inner, "_learning_rate", None)
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            rates[name] = _number(schedule(max(0, steps_taken(inner) - 1)))
    return rates


def _inner(optimizer: Any) -> list[tuple[str, Any]]:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # LossScaleOptimizer
    several = getattr(optimizer, "optimizers", None)  # MultiOptimizer
    if several is None:
        return [("", optimizer)]
    names = [inner.name for inner in several]
    return [
        (inner.name if names.count(inner.name) == 1 else f"{inner.name}_{i}", inner) for i, inner in enumerate(several)
    ]


def _number(value: Any) -> float:
    return float(value.numpy() if hasattr(value, "numpy") else value)
