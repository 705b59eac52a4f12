"""What is done before a run is left, as callbacks' arguments say."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks import arguments
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.training.notices import Notice


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
        notice = None if preemption_notice is None else Notice.of(preemption_notice)
        return cls(
            arguments.flag("save_before_preemption", save_before_preemption),
            arguments.seconds("grace_period", grace_period, default=cls.grace_period),
            _signals(preemption_signals),
            notice,
            arguments.flag("save_on_exception", save_on_exception),
            arguments.seconds("peer_timeout", peer_timeout, default=cls.peer_timeout),
        )


def _signals(given: Any) -> tuple[signal.Signals, ...]:
    """One or several, each once."""
    several = isinstance(given, Sequence | Set) and not isinstance(given, str | bytes | bytearray | memoryview)
    found = tuple(dict.fromkeys(arguments.signal_of("preemption_signals", s) for s in (given if several else [given])))
    for number in (signal.SIGKILL, signal.SIGSTOP):
        if number in found:
            raise ConfigError(f"preemption_signals: no process can watch for {number.name}")
    return found
