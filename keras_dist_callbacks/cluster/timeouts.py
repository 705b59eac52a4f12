"""How long workers wait for each other: set once per process, by `make_strategy` or in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from keras_dist_callbacks import validation
from keras_dist_callbacks.process import Shared, shared

LONGEST_SECONDS = 1e6
_Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS, description="a number of seconds above 0 up to 1e+06")]
DEFAULTS = {"startup_timeout": 300.0, "heartbeat_timeout": 10.0, "peer_timeout": 30.0, "timeout": 3600.0}


@dataclass
class _Given(Shared):
    seconds: dict[str, float] = field(default_factory=dict)


def variable_of(name: str) -> str:
    """Returns the environment variable of a time-out."""
    return f"KDC_{name.upper()}"


def give(name: str, value: float | None) -> float:
    """Sets a time-out for this process; None leaves it to the environment.

    Args:
        name: One of `DEFAULTS`.
        value: Seconds.

    Returns:
        The seconds that count from now on.

    Raises:
        ConfigError: The value, or that of the environment, is wrong.
    """
    if value is None:
        shared(_Given).seconds.pop(name, None)
    else:
        checked = validation.check(name, value, _Seconds, default=DEFAULTS[name])
        shared(_Given).seconds[name] = checked
    return seconds_of(name)


def seconds_of(name: str) -> float:
    """Returns what `make_strategy` was given, else what the environment says, else the default.

    Raises:
        ConfigError: The variable in the environment is not a number of seconds.
    """
    given = shared(_Given).seconds.get(name)
    variable = variable_of(name)
    text = os.environ.get(variable, "").strip()
    if given is not None or not text:
        return DEFAULTS[name] if given is None else given
    checked: float = validation.check(variable, text, _Seconds, default=DEFAULTS[name], strict=False)
    return checked
