"""What is done before a run is left, as callbacks' arguments say."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.training.notices import Notice

_LONGEST_SECONDS = 1e7


@dataclass(frozen=True)
class LeaveOptions:
    """What is done before a run is left.

    Attributes:
        on_preemption: Save when the process is asked to end.
        grace_period: Seconds from there on, after which it ends anyway.
        signals: What asks it to end.
        notice: Something else that does, asked each second.
        on_exception: Save when an exception leaves training between two steps, or Ctrl-C is pressed.
        peer_timeout: Seconds within which this process ends when another worker is lost.
    """

    on_preemption: bool = True
    grace_period: float = 25.0
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)
    notice: Notice | None = None
    on_exception: bool = True
    peer_timeout: float = 30.0

    @property
    def saves(self) -> bool:
        """Whether there is anything to be ready for."""
        return self.on_preemption or self.on_exception

    @classmethod
    def parse(
        cls,
        save_before_preemption: bool,
        grace_period: float,
        preemption_signals: Sequence[str | int],
        preemption_notice: str | os.PathLike[str] | Callable[[], bool] | None,
        save_on_exception: bool,
        peer_timeout: float,
    ) -> LeaveOptions:
        """The options that callbacks' arguments stand for.

        Raises:
            ConfigError: One of them is wrong.
        """
        for name, seconds in (("grace_period", grace_period), ("peer_timeout", peer_timeout)):
            if not 0 < seconds <= _LONGEST_SECONDS:
                raise ConfigError(f"{name} is a number of seconds above 0, and finite, got {seconds!r}")
        if isinstance(preemption_signals, str | int):
            preemption_signals = (preemption_signals,)
        signals = tuple(dict.fromkeys(_signal(s) for s in preemption_signals))
        notice = None if preemption_notice is None else Notice.of(preemption_notice)
        on_preemption, on_exception = bool(save_before_preemption), bool(save_on_exception)
        return cls(on_preemption, float(grace_period), signals, notice, on_exception, float(peer_timeout))


def _signal(value: Any) -> signal.Signals:
    try:
        number = signal.Signals[value] if isinstance(value, str) else signal.Signals(value)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"preemption_signals are names such as 'SIGTERM' or 'SIGUSR1', got {value!r}") from error
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ConfigError(f"preemption_signals: no process can watch for {number.name}")
    return number
