"""A picture of a learning rate before training."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from matplotlib.figure import Figure

import keras_dist_callbacks as kdc


def drawn(*arguments: Any, **options: Any) -> dict[int, float]:
    """The rate of each step that is drawn."""
    (line,) = kdc.plot_lr(*arguments, ax=Figure().subplots(), **options).lines
    return dict(zip(map(int, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def test_a_schedule_is_drawn_as_it_is_trained_with() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.0, 900, warmup_target=0.01, warmup_steps=100)
    rates = drawn(schedule, 1000)
    assert len(rates) == 1000
    assert rates[1] == 0.0
    assert rates[101] == pytest.approx(0.01)
    assert rates[1000] == pytest.approx(float(schedule(999)))


def test_callbacks_set_the_rate_of_each_epoch_one_after_the_other() -> None:
    halves = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    rates = drawn([keras.callbacks.History(), halves], 30, 10, initial=0.08)
    assert [rates[1], rates[10], rates[11], rates[30]] == [0.04, 0.04, 0.02, 0.01]
    assert drawn(keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)), 20, 10)[11] == 0.05


def test_of_many_steps_some_are_drawn_the_last_one_too() -> None:
    rates = drawn(keras.optimizers.schedules.ExponentialDecay(0.1, 1000, 0.9), 1_000_000)
    assert len(rates) == 2000
    assert {1, 1_000_000} <= rates.keys()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([keras.callbacks.ReduceLROnPlateau()], "nothing in it sets a learning rate"),
        (0.01, "nothing in it sets a learning rate"),
        (keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), "steps_per_epoch is needed"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(given: Any, says: str) -> None:
    with pytest.raises(kdc.ConfigError, match=says):
        kdc.plot_lr(given, 10)
