"""The groups of options that callbacks share; each is checked when it is made."""

from __future__ import annotations

import datetime
import difflib
import functools
import inspect
import os
import signal
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.validation import Bytes, Rate, Seconds, Some
from keras_dist_callbacks.rehearsal.scratch import place_of
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import PathLike, Storage

MAX_OVERHEAD = 0.02
"""The share of the training time that backups may cost, unless it is given."""

ASSUMED_SAVE_SECONDS = 60.0
"""What a time limit keeps free for the first backup, before one was written."""

_T = TypeVar("_T")
_C = TypeVar("_C", bound=Callable[..., Any])


def explains_arguments(target: _C) -> _C:
    """Decorates a function, or a class for its constructor: the error for an unknown argument says what was meant."""
    call: Callable[..., Any] = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    known = [name for name in inspect.signature(call).parameters if name != "self"]

    @functools.wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                raise TypeError(_advice(target.__name__, name, known))
        return call(*args, **kwargs)

    if not isinstance(target, type):
        return checked  # type: ignore[return-value]
    target.__init__ = checked  # type: ignore[misc]
    return target


def _advice(owner: str, name: str, known: list[str]) -> str:
    groups = {"write_options": WriteOptions, "shutdown_options": ShutdownOptions}
    # An option of a group may be meant, too: `save_before_preemption` is an argument of the callback of Keras 2.
    meant = {
        option.name: f"{group}=kdc.{kind.__name__}({option.name}=...)"
        for group, kind in groups.items() if group in known for option in fields(kind)
    } | {own: repr(own) for own in known}  # fmt: skip
    close = difflib.get_close_matches(name, meant, n=1)
    advice = f": did you mean {meant[close[0]]}?" if close else f"; it has {', '.join(known)}"
    return f"{owner}() has no argument {name!r}{advice}"


@explains_arguments
@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How backups, checkpoints and logs are written.

    One object may be given to several callbacks. `ModelCheckpoint` and `TensorBoard` use `retry`, `fsync` and
    `max_bytes_per_second`, `ModelCheckpoint` also `max_failed_saves`; the other options are about backups.

    Args:
        retry: How long a request to a store that is not local may take, and how long a failing one is tried again.
            Defaults to `RetryPolicy()`: two minutes, with growing pauses.
        fsync: Whether local files reach the disk before they count. Defaults to True.
        max_bytes_per_second: A cap on the rate of uploads, which leaves the rest of the bandwidth to others. Defaults
            to None: no cap.
        max_failed_saves: Backups, or files of a `ModelCheckpoint`, that may fail in a row, with a warning each, before
            training ends with the reason. None: any number. Defaults to 10.
        when_busy: What to do when a backup within an epoch is due while the last one is still being written: with
            `"late"` it is taken at the first step after that; with `"wait"` training waits, if `save_freq` is a number.
            At the end of an epoch it always waits. Defaults to `"late"`.
        max_local_state: Bytes of worker-local values that a worker sends to the chief for a backup; larger ones are not
            saved, and a resume says that it is not exact. Defaults to 64 MiB.

    Raises:
        ConfigError: A value is wrong.

    Example:
        ```python
        slow = kdc.WriteOptions(max_bytes_per_second=50e6)
        kdc.BackupAndRestore("s3://bucket/run1/backup", write_options=slow)
        ```
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    fsync: bool = True
    max_bytes_per_second: Rate | None = None
    max_failed_saves: Some | None = 10
    when_busy: Literal["late", "wait"] = "late"
    max_local_state: Bytes = 64 * 2**20

    def __post_init__(self) -> None:
        validation.instance("retry", self.retry, RetryPolicy)
        validation.check_fields(self, but={"retry"})


@explains_arguments
@dataclass(frozen=True, kw_only=True)
class ShutdownOptions:
    """What is done when a process is asked to end, and when an exception leaves training.

    Args:
        save_before_preemption: When a worker is asked to end, let all workers finish the same step, save, and exit with
            `Preempted`, a `SystemExit` with exit code 138. Defaults to True.
        signals: The signals that ask for it, by name or number. A signal that is ignored, or handled by something other
            than Python or TensorFlow, is left alone; a handler in Python is called after the backup. Defaults to
            `("SIGTERM",)`.
        notice: Something else that asks for it: a path that appears, or a function that returns True, such as
            `gce_notice()` or `aws_notice()`; asked each second. Defaults to None.
        grace_period: Seconds after which a process that was asked to end exits, with 138 too, saved or not. Defaults to
            25.
        time_limit: How long the job may take, as a `datetime.timedelta`: in time before its end, all workers finish the
            same step, save, and exit with 138, as at a preemption. It counts from the start of `kdc launch`, for all
            restarts together, else from the start of the process; an end of Slurm's (`SLURM_JOB_END_TIME`) counts if it
            is earlier. "In time" is `grace_period` and the duration of the longest backup so far (60 seconds before the
            first one) before the end, by which a process that was asked to stop has exited in any case. Defaults to
            None: no limit.
        save_on_exception: Save when an exception leaves training between two steps, on all workers at the same one; and
            hold the first Ctrl-C until the step is over and saved, at most 10 seconds. Defaults to True.

    Raises:
        ConfigError: A value is wrong.

    Example:
        ```python
        kdc.BackupAndRestore("backup", shutdown_options=kdc.ShutdownOptions(notice=kdc.gce_notice()))
        ```
    """

    save_before_preemption: bool = True
    signals: Sequence[str | int] = ("SIGTERM",)
    notice: str | os.PathLike[str] | Callable[[], bool] | None = None
    grace_period: Seconds = 25.0
    time_limit: datetime.timedelta | None = None
    save_on_exception: bool = True

    def __post_init__(self) -> None:
        if not (self.notice is None or callable(self.notice)):
            if not isinstance(self.notice, str | os.PathLike):
                raise validation.invalid_argument("notice", self.notice, "a path or a function, or None")
            validation.path("notice", self.notice)
        object.__setattr__(self, "signals", tuple(number.name for number in _signals(self.signals)))
        validation.check_fields(self, but={"signals", "notice", "time_limit"})
        _check_time_limit(self)


@explains_arguments
@dataclass(frozen=True, kw_only=True)
class Rollback:
    """What `BackupAndRestore(on_nonfinite=...)` does where the loss turns NaN or infinite: goes back, and tries again.

    The run goes back to the newest finite backup before that step, and ends with exit code 138: `kdc launch`, or your
    scheduler, starts it again, and it trains on exactly as before. Where the same step has the same losses again, the
    cause is in the training itself, and the next start reads past the batches that led there, without training them.

    Args:
        skip_batches: How many batches are skipped then, the one whose loss was not finite included: weights may be NaN
            one step before the loss shows it. 0 skips none. Defaults to 2.
        max_rollbacks: After so many in a row without a finite backup beyond the bad step, training ends with `Diverged`
            and exit code 1. Defaults to 3.
        check_every: The loss is looked at after each so many steps, for which Python waits; up to as many batches more
            are skipped, and whole executions of `steps_per_execution`. Defaults to 1.

    Raises:
        ConfigError: A value is wrong.

    Example:
        ```python
        kdc.BackupAndRestore("backup", save_freq=100, on_nonfinite=kdc.Rollback(skip_batches=4))
        ```
    """

    skip_batches: validation.Count = 2
    max_rollbacks: Some = 3
    check_every: Some = 1

    def __post_init__(self) -> None:
        validation.check_fields(self)


def open_to_write(url: PathLike, storage_options: Mapping[str, Any] | None, write: WriteOptions) -> Storage:
    """Returns a directory with the options of writing, in a rehearsal its place there; raises like `Storage.open`."""
    place, options = place_of(url, storage_options)
    return Storage.open(
        place, options, fsync=write.fsync, retry=write.retry, max_bytes_per_second=write.max_bytes_per_second
    )


def group_of(name: str, given: _T | None, kind: type[_T]) -> _T:
    """Returns the options that were given, or the defaults.

    Raises:
        ConfigError: It is something else.
    """
    return kind() if given is None else validation.instance(name, given, kind, also="None")


def _signals(given: Any) -> tuple[signal.Signals, ...]:
    """One or several, each once."""
    several = isinstance(given, Sequence | Set) and not isinstance(given, str | bytes | bytearray | memoryview)
    found = tuple(dict.fromkeys(validation.parse_signal("signals", s) for s in (given if several else [given])))
    for number in (signal.SIGKILL, signal.SIGSTOP):
        if number in found:
            raise ConfigError(f"signals: a process cannot handle {number.name}")
    return found


def _check_time_limit(options: ShutdownOptions) -> None:
    limit, grace_period = options.time_limit, options.grace_period
    if limit is None:
        return
    if not isinstance(limit, datetime.timedelta) or limit <= datetime.timedelta():
        allowed = "a datetime.timedelta above 0, such as timedelta(hours=11, minutes=50), or None"
        raise validation.invalid_argument("time_limit", limit, allowed)
    if limit.total_seconds() <= grace_period + ASSUMED_SAVE_SECONDS:
        raise ConfigError(
            f"time_limit={limit} leaves no time for training: {grace_period + ASSUMED_SAVE_SECONDS:g} s of it are kept "
            f"for the first backup ({ASSUMED_SAVE_SECONDS:g} s) and for grace_period={grace_period:g}"
        )
    if not options.save_before_preemption:
        raise ConfigError("time_limit has no effect with save_before_preemption=False: leave one of them out")
