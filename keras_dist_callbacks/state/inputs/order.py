"""The order of an input that has no seed: drawn from a seed that each backup holds, so that it can be drawn again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keras_dist_callbacks._compat import array_order, rng, running_fit
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Saved
from keras_dist_callbacks.state.inputs.unseeded import Orders

TOPIC = "order"


def seed_of(saved: Saved | None) -> int | None:
    """Returns the seed that an input has saved; None if it has no order that depends on one."""
    topic = None if saved is None else saved.mine.state.get(TOPIC)
    return None if topic is None else int(topic["seed"])


def seed_of_fit(seed: int, number: int) -> int:
    """Returns the seed of the orders of one fit.

    Args:
        seed: The one that backups hold, the same for all fits of a directory.
        number: Which of them it is, from 0.
    """
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class InputOrder:
    """The orders of one fit's passes that no seed makes repeatable: over arrays, and over `tf.data` pipelines.

    Of arrays, the number of a pass is the epoch in which it begins: with `steps_per_epoch` it may go on in the next
    ones. A pipeline counts its passes itself.

    Args:
        fit: The running fit.
        is_addressed: Whether a callback gives each epoch a dataset by its number.
    """

    def __init__(self, fit: RunningFit, *, is_addressed: bool) -> None:
        self._fit = fit
        self._of_data = Orders(fit.pipeline, "input", "epoch" if is_addressed else None)
        self._of_validation = Orders(fit.validation_source, "validation data")
        self._is_of_arrays = array_order.is_unseeded(fit)
        self._seed: int | None = None
        self._epoch = 0
        self._set_pass: Callable[[int], None] = lambda number: None

    @property
    def needs_seed(self) -> bool:
        """Whether the order is another one in each run, as Keras or `tf.data` draws it, and can be drawn again."""
        return self._is_of_arrays or self._of_data.are_own or self._of_validation.are_own

    @property
    def is_of_fit(self) -> bool:
        """Whether passes over a pipeline begin with this fit, and not with the user's dataset."""
        return self._of_data.are_own or self._of_validation.are_own

    @property
    def unseeded(self) -> list[Finding]:
        """What of the input is drawn again after a restart."""
        return [*self._of_data.named, *self._of_validation.named]

    def begin(self, seed: int, number: int) -> None:
        """Makes the input again, before the first epoch.

        Args:
            seed: The one that backups hold.
            number: Which of the fits with this seed it is.
        """
        self._seed, seed = seed, seed_of_fit(seed, number)
        if self._is_of_arrays:
            self._set_pass = array_order.make_again(self._fit, seed)
        if self._of_data.are_own:
            running_fit.read_instead(self._fit.epoch_iterator, self._of_data.made(seed))
        if self._of_validation.are_own:
            running_fit.read_instead(self._fit.validation_iterator(), self._of_validation.made(seed))

    def begin_pass(self, epoch: int) -> None:
        """A pass begins with the next batch that is asked for."""
        self._epoch = epoch
        self._set_pass(epoch)

    def restore(self, saved: Saved) -> list[Finding]:
        """The pass that was interrupted is read next; returns why its order differs, if it does."""
        topic = saved.mine.state.get(TOPIC)
        if topic is None:
            return []
        if self._seed is None:
            return [Finding("order-fixed-now" if rng.global_seed() is None else "order-seeded-now")]
        self.begin_pass(int(topic["epoch"]))
        return []

    def capture(self) -> dict[str, JSON]:
        """Returns the topic of the input's piece."""
        return {} if self._seed is None else {TOPIC: {"seed": self._seed, "epoch": self._epoch}}
