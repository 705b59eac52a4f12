"""How long workers wait for each other: set once per process, by `make_strategy` or in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.options import explains_arguments

LONGEST_SECONDS = 1e6
_Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS, description="a number of seconds above 0 up to 1e+06")]
DEFAULTS = {"startup_timeout": 300.0, "heartbeat_timeout": 10.0, "peer_timeout": 30.0, "timeout": 3600.0}


@explains_arguments
@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How long the workers of a cluster wait for each other, in seconds.

    Given to `make_strategy`, for the entire process. Where an option is None, the environment is asked before the
    default counts: `KDC_STARTUP_TIMEOUT`, `KDC_HEARTBEAT_TIMEOUT`, `KDC_PEER_TIMEOUT`, `KDC_TIMEOUT`. Programs that
    build a strategy of their own set `KDC_PEER_TIMEOUT` and `KDC_TIMEOUT` there.

    Args:
        startup_timeout: Wait so long for the other workers before a clear error. Defaults to 300.
        heartbeat_timeout: A worker that is silent for so long counts as lost. A slow one is not silent: threads of
            TensorFlow's send heartbeats, whatever Python is doing. Defaults to 10.
        peer_timeout: This process ends within that time when another worker is lost: with `PeerLostError`, which
            names it, or else with exit code 138. Lost is a worker whose process ended, that said so, or that sends no
            heartbeats; never one that is only slow. At least 12 seconds more than `heartbeat_timeout`. Defaults to 30.
        timeout: Wait so long for another worker that lives but does not answer. Defaults to 3600.

    Raises:
        ConfigError: A value is wrong.

    Example:
        ```python
        strategy = kdc.make_strategy(cluster_options=kdc.ClusterOptions(startup_timeout=600))
        ```
    """

    startup_timeout: float | None = None
    heartbeat_timeout: float | None = None
    peer_timeout: float | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, default in DEFAULTS.items():
            if getattr(self, name) is not None:
                value = validation.check(name, getattr(self, name), _Seconds, default=default)
                object.__setattr__(self, name, value)


@dataclass
class _Given(Shared):
    options: ClusterOptions = field(default_factory=ClusterOptions)


def variable_of(name: str) -> str:
    """Returns the environment variable of a time-out."""
    return f"KDC_{name.upper()}"


def give(options: ClusterOptions) -> None:
    """Sets the time-outs of this process.

    Raises:
        ConfigError: What the environment says for one that they leave to it is wrong.
    """
    shared(_Given).options = options
    for name in DEFAULTS:
        seconds_of(name)


def seconds_of(name: str) -> float:
    """Returns what `make_strategy` was given, else what the environment says, else the default.

    Args:
        name: One of `DEFAULTS`.

    Raises:
        ConfigError: The variable in the environment is not a number of seconds.
    """
    given: float | None = getattr(shared(_Given).options, name)
    variable = variable_of(name)
    text = os.environ.get(variable, "").strip()
    if given is not None or not text:
        return DEFAULTS[name] if given is None else given
    checked: float = validation.check(variable, text, _Seconds, default=DEFAULTS[name], strict=False)
    return checked
