"""PrintLR: the learning rate that was trained with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import keras
import msgspec

from keras_dist_callbacks._compat.model_parts import current_rates, last_rates
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import say
from keras_dist_callbacks.callbacks.rebuild_on_copy import RebuiltOnCopy
from keras_dist_callbacks.callbacks.tensorboard import active_tensorboard
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.strategy import enable_for_cluster


class _State(msgspec.Struct):
    """What a backup keeps, see `get_state`; refused where it is of another kind."""

    steps: tuple[int, int]
    rates: dict[str, float] | None


class PrintLR(RebuiltOnCopy, keras.callbacks.Callback):
    """Prints the learning rate in force, on the chief.

    The rate is read right before a step is trained with it: after every `on_epoch_begin`
    (`LearningRateScheduler`) and before any `on_epoch_end` (`ReduceLROnPlateau`, whose change shows in the
    next epoch), so that the place in the list of callbacks does not matter. Per epoch, that is the rate of
    its first step, and of its last one if the optimizer has a `LearningRateSchedule`; printed at its end.
    Every N steps, it is the rate of that step. LossScaleOptimizer and MultiOptimizer are seen through.

    Args:
        freq: `"epoch"`, or a number of steps, counted from the begin of training, restarts included.
            Defaults to `"epoch"`.
        log_to_tensorboard: Whether to write the rate to the `keras_dist_callbacks.TensorBoard` of the same
            `fit()` too, as `learning_rate` over epochs or steps. Defaults to False.
        print_fn: Is given each line instead of the terminal, as in `model.summary()`. Defaults to None.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        freq: Literal["epoch"] | int = "epoch",
        *,
        log_to_tensorboard: bool = False,
        print_fn: Callable[[str], Any] | None = None,
    ) -> None:
        enable_for_cluster()
        super().__init__()
        self.freq = validation.check("freq", freq, Literal["epoch"] | validation.number_of("steps", 1))
        self.log_to_tensorboard = validation.check("log_to_tensorboard", log_to_tensorboard, bool)
        self.print_fn = validation.function_or_none("print_fn", print_fn)
        self._active = True
        self._finished_steps = 0
        self._last_batch = -1
        self._rates: dict[str, float] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to count.

        Raises:
            ConfigError: `log_to_tensorboard` is set, but no TensorBoard callback of this package is there.
        """
        self._active = Cluster.detect().is_chief
        self._finished_steps, self._last_batch, self._rates = 0, -1, None
        if self.log_to_tensorboard and active_tensorboard(self.model) is None:
            raise ConfigError(
                "PrintLR(log_to_tensorboard=True) needs a keras_dist_callbacks.TensorBoard in the same fit()"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forgets the rate of the epoch before."""
        if self._last_batch < 0:  # else a backup was restored within this epoch
            self._rates = None

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Reads the rate before it is trained with, where it will be printed."""
        if not self._active:
            return
        if self.freq == "epoch":
            if self._rates is None:
                self._rates = current_rates(self.model.optimizer)
        elif self._is_due(batch, batch):
            self._rates = current_rates(self.model.optimizer)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints after every `freq` steps."""
        first, self._last_batch = self._last_batch + 1, batch
        if not self._active or self.freq == "epoch" or not self._is_due(first, batch):
            return
        optimizer = self.model.optimizer
        rates = self._rates or {**current_rates(optimizer), **last_rates(optimizer)}  # several steps in one execution
        self._rates = None
        step = self._finished_steps + batch + 1
        self._report(f"Step {step}", rates, {}, step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints what the epoch was trained with."""
        self._finished_steps += self._last_batch + 1
        self._last_batch = -1
        if self._active and self.freq == "epoch":
            rates = self._rates or current_rates(self.model.optimizer)  # no step: restored after the last one
            self._report(f"Epoch {epoch + 1}", rates, last_rates(self.model.optimizer), epoch)
        self._rates = None

    def get_state(self) -> dict[str, Any]:
        """Returns what a backup keeps: the steps so far, and the rate that the running epoch began with."""
        return {"steps": [self._finished_steps, self._last_batch], "rates": self._rates}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `get_state` was called."""
        saved: _State = validation.convert(state, _State)
        self._finished_steps, self._last_batch = saved.steps
        self._rates = saved.rates

    def _is_due(self, first: int, last: int) -> bool:
        """Returns whether one of the epoch's batches from `first` to `last` completes `freq` steps."""
        every = int(self.freq)
        return (self._finished_steps + last + 1) // every > (self._finished_steps + first) // every

    def _report(self, when: str, first: dict[str, float], last: dict[str, float], step: int) -> None:
        parts = []
        for name, rate in first.items():
            end = last.get(name, rate)
            text = f"{rate:.6g}" if end == rate else f"{rate:.6g} to {end:.6g}"
            parts.append(f"{name} {text}".strip())
        text = f"{when}: learning rate {', '.join(parts)}"
        if self.print_fn is None:
            say(text, after_bar=True)
        else:
            self.print_fn(text)
        board = active_tensorboard(self.model) if self.log_to_tensorboard else None
        if board is not None:
            for name, rate in first.items():
                board.scalar(f"learning_rate_{name}" if name else "learning_rate", last.get(name, rate), step)
