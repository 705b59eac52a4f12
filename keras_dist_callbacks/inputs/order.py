"""The order of an input that has no seed: drawn from a seed that each backup holds, so that it can be drawn again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keras_dist_callbacks._compat import array_order
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.snapshot import JSON, WorkerState

TOPIC = "order"
_NOW_SEEDED = (
    "the interrupted run had no global seed, and this one has, so that fit() reads the arrays in another order; do not "
    "call keras.utils.set_random_seed to resume this run"
)


def seed_of(saved: WorkerState | None) -> int | None:
    """Returns the seed that a backup holds; None if it has no order that depends on one."""
    topic = None if saved is None else saved.state.get(TOPIC)
    return None if topic is None else int(topic["seed"])


def seed_of_fit(seed: int, number: int) -> int:
    """Returns the seed of the orders of one fit.

    Args:
        seed: The one that backups hold, the same for all fits of a directory.
        number: Which of them it is, from 0.
    """
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class InputOrder:
    """The orders of one fit's passes over arrays that Keras shuffles without a seed; of any other input nothing.

    The number of a pass is the epoch in which it begins: with `steps_per_epoch` it may go on in the next ones.

    Args:
        fit: The running fit.
    """

    def __init__(self, fit: RunningFit) -> None:
        self._fit = fit
        self.needs_seed = array_order.is_unseeded(fit)
        """Whether the order is another one in each run, as Keras draws it."""
        self._seed: int | None = None
        self._epoch = 0
        self._set_pass: Callable[[int], None] = lambda number: None

    def begin(self, seed: int, number: int) -> None:
        """Makes the input again, before the first epoch.

        Args:
            seed: The one that backups hold.
            number: Which of the fits with this seed it is.
        """
        self._seed = seed
        self._set_pass = array_order.make_again(self._fit, seed_of_fit(seed, number))

    def begin_pass(self, epoch: int) -> None:
        """A pass begins with the next batch that is asked for."""
        self._epoch = epoch
        self._set_pass(epoch)

    def restore(self, saved: WorkerState) -> list[str]:
        """The pass that was interrupted is read next; returns why its order differs, if it does."""
        topic = saved.state.get(TOPIC)
        if topic is None:
            return []
        if self._seed is None:
            return [_NOW_SEEDED]
        self.begin_pass(int(topic["epoch"]))
        return []

    def capture(self) -> dict[str, JSON]:
        """Returns the topic of a snapshot."""
        return {} if self._seed is None else {TOPIC: {"seed": self._seed, "epoch": self._epoch}}
