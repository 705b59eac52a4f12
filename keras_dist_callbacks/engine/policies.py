"""When to save: small frozen values, pure."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks import arguments
from keras_dist_callbacks.errors import ConfigError

MAX_OVERHEAD = 0.02


@dataclass(frozen=True)
class SavePolicy:
    """When a backup is taken; at the end of each epoch if nothing else is given.

    Attributes:
        every_steps: Batches between two backups.
        every_seconds: Seconds between two backups, about.
        max_overhead: Share of the training time that backups may cost; the interval follows from it.
        at_end_only: No backup but at the end, and where a run is left early.
    """

    every_steps: int | None = None
    every_seconds: float | None = None
    max_overhead: float | None = None
    at_end_only: bool = False

    @property
    def at_epoch_end(self) -> bool:
        """Whether the end of an epoch is a time to save."""
        return self.every_steps is None and not self.is_measured and not self.at_end_only

    @property
    def is_measured(self) -> bool:
        """Whether the interval in steps follows from measured times."""
        return self.every_seconds is not None or self.max_overhead is not None


def parse_save_freq(save_freq: Any, max_overhead: float = MAX_OVERHEAD) -> SavePolicy:
    """The policy that the arguments stand for.

    Raises:
        ConfigError: `save_freq` is neither `"epoch"`, `"auto"`, an integer of 1 or more nor a positive timedelta, or
            `max_overhead` is no share.
    """
    allowed = "between 0 and 1, such as 0.02 for 2 %"
    share = arguments.number("max_overhead", max_overhead, allowed, above=0, most=math.nextafter(1, 0))
    if isinstance(save_freq, str) and save_freq in {"epoch", "auto"}:
        return SavePolicy() if save_freq == "epoch" else SavePolicy(max_overhead=share)
    if arguments.is_flag(save_freq) and not save_freq:
        return SavePolicy(at_end_only=True)
    if isinstance(save_freq, datetime.timedelta) and save_freq.total_seconds() > 0:
        return SavePolicy(every_seconds=save_freq.total_seconds())
    try:
        return SavePolicy(arguments.count("save_freq", save_freq, least=1))
    except ConfigError:
        raise arguments.refused(
            "Invalid value: save_freq",
            save_freq,
            "'epoch' or a number of batches of 1 or more (below 2**63), 'auto', a datetime.timedelta above 0, or False "
            "for none but at a preemption and at the end",
        ) from None
