"""A picture of a learning rate before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import keras
import msgspec
import numpy as np

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_POINTS = 2000  # of a curve
_RATE = Annotated[float, msgspec.Meta(ge=0, le=1e9, description="a learning rate of 0 or more")]


def plot_lr(
    schedule_or_callbacks: Any,
    steps: int,
    steps_per_epoch: int | None = None,
    *,
    initial: float = 0.001,
    ax: Axes | None = None,
) -> Axes:
    """Draws the learning rate of each step, before anything is trained.

    What depends on training itself, such as `ReduceLROnPlateau`, cannot be drawn.

    Example:
        ```python
        warm = keras.optimizers.schedules.CosineDecay(0.0, 900, warmup_target=0.01, warmup_steps=100)
        kdc.plot_lr(warm, steps=1000).figure.savefig("rate.png")
        ```

    Args:
        schedule_or_callbacks: A `LearningRateSchedule`; a `LearningRateScheduler`, or a list of callbacks in which one
            is.
        steps: How many steps are drawn; of more than 2000, so many of them.
        steps_per_epoch: Batches of an epoch, where callbacks set the rate of each.
        initial: The rate that callbacks begin with. Defaults to 0.001, as of Keras' Adam.
        ax: Where to draw. Defaults to a new figure.

    Returns:
        The matplotlib axes: steps from 1, and the rate that each is trained with.

    Raises:
        ConfigError: An argument is wrong, no callback sets a rate that is known beforehand, or matplotlib is not
            installed.
    """
    steps = validation.check("steps", steps, validation.number_of("steps", 1))
    batches = validation.check("steps_per_epoch", steps_per_epoch, validation.number_of("batches", 1) | None)
    initial = validation.check("initial", initial, _RATE)
    if ax is not None and not hasattr(ax, "plot"):
        raise validation.invalid_argument("ax", ax, "matplotlib's axes, or None")
    shown = np.unique(np.linspace(1, steps, min(steps, _POINTS)).round().astype("int64"))
    rates = _rates(schedule_or_callbacks, [int(step) - 1 for step in shown], batches, initial)
    if ax is None:
        ax = _new_axes()
    ax.plot(shown, rates, drawstyle="default" if batches is None else "steps-mid")
    ax.set_xlabel("step")
    ax.set_ylabel("learning rate")
    ax.grid(alpha=0.3)
    return ax


def _rates(given: Any, steps: Sequence[int], batches: int | None, initial: float) -> list[float]:
    if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
        return [float(np.asarray(given(step))) for step in steps]
    callbacks = list(given) if isinstance(given, Sequence) else [given]
    schedulers = [one for one in callbacks if isinstance(one, keras.callbacks.LearningRateScheduler)]
    if not schedulers:
        raise ConfigError(
            "schedule_or_callbacks: nothing in it sets a learning rate that is known before training: give a "
            "LearningRateSchedule, or callbacks with a LearningRateScheduler"
        )
    if batches is None:
        raise ConfigError("steps_per_epoch is needed where a callback sets the rate of each epoch")
    rates, rate = [], initial  # of each epoch
    for epoch in range(steps[-1] // batches + 1):
        for scheduler in schedulers:
            rate = _of_epoch(scheduler, epoch, rate)
        rates.append(rate)
    return [rates[step // batches] for step in steps]


def _of_epoch(scheduler: keras.callbacks.LearningRateScheduler, epoch: int, rate: float) -> float:
    try:  # as Keras calls it
        return float(scheduler.schedule(epoch, rate))
    except TypeError:
        return float(scheduler.schedule(epoch))


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ConfigError("plot_lr needs matplotlib: pip install 'keras-dist-callbacks[plot]'") from error
    ax: Axes = pyplot.subplots(figsize=(7, 3), layout="constrained")[1]
    return ax
