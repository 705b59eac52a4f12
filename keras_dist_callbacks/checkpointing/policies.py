"""When to save: small frozen values, pure."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks.errors import ConfigError


@dataclass(frozen=True)
class SavePolicy:
    """When a backup is taken.

    Attributes:
        every_steps: Batches between two backups; None for one at the end of each epoch.
    """

    every_steps: int | None = None

    @property
    def at_epoch_end(self) -> bool:
        """Whether the end of an epoch is a time to save."""
        return self.every_steps is None

    def due(self, step: int, last: int) -> bool:
        """Whether a backup is due at `step`, after one was last due at `last`.

        Depends on the count of batches alone, so that all workers decide alike, before and after a resume.
        """
        return self.every_steps is not None and step // self.every_steps > last // self.every_steps


def parse_save_freq(save_freq: Any) -> SavePolicy:
    """The policy that the argument `save_freq` stands for.

    Raises:
        ConfigError: It is neither `"epoch"` nor an integer of 1 or more.
    """
    if save_freq == "epoch":
        return SavePolicy()
    if save_freq is False:
        raise ConfigError(
            "save_freq=False (save on preemption only) is not supported yet; use 'epoch' or a number of batches"
        )
    if not isinstance(save_freq, bool):
        try:
            steps = operator.index(save_freq)
        except TypeError:
            steps = 0
        if steps >= 1:
            return SavePolicy(steps)
    raise ConfigError(
        f"Invalid value: save_freq must be 'epoch' or a number of batches of 1 or more, got {save_freq!r}"
    )
