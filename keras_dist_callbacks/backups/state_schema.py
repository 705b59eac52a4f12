"""What a worker's state and a manifest's run information consist of: every name, and how its value looks. Pure.

A topic that is not listed here is one that this version could not put back: such a backup is refused, because to
leave it out in silence would be to call a continuation exact that is not. A new topic needs a new format version.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import msgspec

from keras_dist_callbacks.backups import python_values, verdict
from keras_dist_callbacks.backups.json_values import check_storable
from keras_dist_callbacks.backups.record_io import Count, Time, checked, require_time
from keras_dist_callbacks.backups.snapshot import JSON, LOCAL_STATE_DROPPED
from keras_dist_callbacks.errors import DamagedBackupError

CALLBACK = "callback:"
"""In front of a callback's name."""
USER_STATE = verdict.USER_STATE
ENVIRONMENT = "environment"
"""The topic with the worker's numerical environment: versions, processors, switches."""
PYTHON = "python_state"
"""The topic with what training has changed in the user's objects: by path, what it is now and a digest of it."""
INPUT_PYTHON = "input_python_state"
"""The same of the input's Python code, as it was when the epoch began."""
TRACED = "traced_state"
"""The same, as it was when TensorFlow last traced the train step; none before that, and none in eager mode."""

COMPILED = "compiled"
"""The topic with what callbacks have changed of the compiled model: the config of a new optimizer, modes."""

Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Place = Annotated[int, msgspec.Meta(ge=0, le=624)]
MersenneTwister = Annotated[list[Word], msgspec.Meta(min_length=624, max_length=624)]
MersenneTwisterAndPlace = Annotated[list[Word], msgspec.Meta(min_length=625, max_length=625)]
Python = tuple[Literal[3], MersenneTwisterAndPlace, float | None]
Numpy = tuple[Literal["MT19937"], MersenneTwister, Place, Literal[0, 1], float]
Hex = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2})*\Z")]
Texts = list[str]
Specs = list[tuple[str, str]]
Records = dict[str, tuple[Any, str]]


class TensorFlowRandom(msgspec.Struct, forbid_unknown_fields=True):
    """TensorFlow's global seed and random states."""

    seed: Integer | None
    rng: Python | None = None
    generator: list[Integer] | None = None

    def __post_init__(self) -> None:
        _require_place(self.rng)
        if self.seed is not None and self.rng is None:
            raise ValueError("the seed has no random state beside it")


class Random(msgspec.Struct, forbid_unknown_fields=True):
    """The global random states of a process."""

    python: Python
    numpy: Numpy
    tensorflow: TensorFlowRandom
    torch: Hex | None = None

    def __post_init__(self) -> None:
        _require_place(self.python)
        if not math.isfinite(self.numpy[-1]):
            raise ValueError("numpy's random state is not finite")


class Hidden(msgspec.Struct, forbid_unknown_fields=True):
    """What was found in an input."""

    python: Texts
    unordered: Texts


class Info(msgspec.Struct, forbid_unknown_fields=True):
    """What a manifest tells about the run; what a custom training loop does not have is None."""

    keras: str | None = None
    tensorflow: str | None = None
    python: str | None = None
    strategy: str | None = None
    model: str | None = None
    replicas: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    workers: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    seed: Integer | None = None
    steps_per_execution: Count | Literal["auto"] | None = None
    steps_per_epoch: Count | None = None
    created: Time | None = None

    def __post_init__(self) -> None:
        require_time(self.created)


class Fit(msgspec.Struct, forbid_unknown_fields=True):
    """Which fit of its process saved a backup."""

    number: Count
    epochs: Count
    initial_epoch: Count


_STORABLE = object()
_TYPES: dict[str, Any] = {
    "rng": Random,
    "rng_at_epoch": Random | None,
    "rng_before_epoch": Random,
    "rng_at_input": Random,
    "fit": Fit,
    "num_batches": Count | None,
    "first_epoch": Count,
    "num_validations": Count,
    "shares_input": bool,
    "is_finalized": bool,
    "stop_training": bool,
    "logs": _STORABLE,
    "metric_variables": Texts,
    "input_variables": Specs,
    "untracked_variables": Specs,
    "epochs_by_count": list[tuple[Count, Count, Count]],
    PYTHON: Records,
    TRACED: Records,
    INPUT_PYTHON: Records,
    verdict.LOST: Texts,
    ENVIRONMENT: dict[str, str],
    verdict.UNTRACKED_INPUT: Hidden,
    verdict.RANDOM_OPERATIONS: Texts,
    verdict.NOT_SAVED: Texts,
    verdict.CONDITIONS: Texts,
    verdict.CALLBACKS_NOT_CALLED: Texts,
    LOCAL_STATE_DROPPED: bool,
    "input": _STORABLE,
    COMPILED: _STORABLE,
    USER_STATE: _STORABLE,
}
_OF_FIT = {
    "num_batches",
    "first_epoch",
    "num_validations",
    "is_finalized",
    "stop_training",
    "input_variables",
    "untracked_variables",
    verdict.RANDOM_OPERATIONS,
}
_OF_ALL = {"rng", "metric_variables", verdict.UNTRACKED_INPUT, verdict.NOT_SAVED, verdict.CONDITIONS}
_OF_THE_LOOP = {"rng_at_epoch"}
_WITHIN = {"logs"}


def check_topics(state: Mapping[str, JSON], tensors: Collection[str], where: str) -> None:
    """Makes sure that each topic is known and looks as it must.

    Args:
        state: Of one worker.
        tensors: Names of the tensors that it may refer to.
        where: What it is, for messages.

    Raises:
        DamagedBackupError: One is not.
    """
    for topic, value in state.items():
        place = f"{where}: {topic}"
        if topic.startswith(CALLBACK) or _TYPES.get(topic) is _STORABLE:
            if not isinstance(value, dict):
                raise DamagedBackupError(f"{place} is no dict")
            check_storable(value, tensors, place)
        elif topic not in _TYPES:
            raise DamagedBackupError(f"{where}: the topic {topic!r} is not one that a backup holds")
        else:
            found = checked(value, _TYPES[topic], place)
            if topic in (PYTHON, TRACED, INPUT_PYTHON):
                for path, (record, _) in found.items():
                    python_values.check(record, tensors, f"{place}: {path}")


def check_complete(state: Mapping[str, JSON], within: bool, where: str) -> None:
    """Makes sure that nothing is missing without which there is no going on.

    Args:
        state: A worker's, together with what it shares with the chief's.
        within: Whether it was taken within an epoch.
        where: What it is, for messages.

    Raises:
        DamagedBackupError: Something is.
    """
    of_fit = _OF_FIT | (_WITHIN if within else set())
    needed = _OF_ALL | (_OF_THE_LOOP if USER_STATE in state else of_fit)
    missing = sorted(needed - state.keys())
    if (
        within and USER_STATE not in state and state.get("rng_at_epoch") is None
    ):  # a loop has none before its first epoch
        missing.append("rng_at_epoch")
    if missing:
        raise DamagedBackupError(f"{where} lacks {', '.join(missing)}")


def _require_place(state: Python | None) -> None:
    if state is not None and (state[1][-1] > 624 or not math.isfinite(state[2] or 0)):
        raise ValueError("a random state's place is beyond its words, or its rest is not finite")
