"""Every exception that this package raises on purpose.

Each subclasses a built-in, so that existing `except ValueError` or `except OSError` code keeps working.
"""

from __future__ import annotations

from collections.abc import Iterator

from keras_dist_callbacks.base.terminal import escape_controls

RESTART_EXIT_CODE = 138
"""Of a process that is to be started again: schedulers such as Kubeflow's take codes of 128 and above for that."""


class KdcError(Exception):
    """Base class of all errors raised by keras_dist_callbacks.

    What a message quotes may come out of a store: as a text, it shows control characters as escapes.
    """

    def __str__(self) -> str:
        return escape_controls(super().__str__(), keep="\n")


class ConfigError(KdcError, ValueError):
    """An argument, TF_CONFIG or an environment is wrong; raised before training starts, if it can be known by then."""


class CompatError(KdcError, RuntimeError):
    """The installed Keras or TensorFlow differs from what the package knows how to work with."""


class ClusterError(KdcError, RuntimeError):
    """The workers of a cluster could not do something together.

    Attributes:
        unavailable: Starting the job again may help, such as when a store was not available to another worker.
    """

    unavailable = False


class ClusterTimeoutError(ClusterError, TimeoutError):
    """A worker did not answer in time; the message names it."""

    unavailable = True


class PeerLostError(ClusterError, ConnectionError):
    """Another worker, or the coordination service, is gone; the job must be restarted."""

    unavailable = True


class StorageError(KdcError, OSError):
    """A store could not be read or written, after all retries.

    Attributes:
        unavailable: Trying again later may help: the store did not answer, or refused for the time being.
        forbidden: The right to do this is missing.
        full: There is no space for it on the disk, or within the quota.
    """

    unavailable = False
    forbidden = False
    full = False


def is_temporary(error: BaseException) -> bool:
    """Returns whether the same may well succeed later."""
    return isinstance(error, ClusterError | StorageError) and error.unavailable


def is_repeated(error: BaseException) -> bool:
    """Returns whether a restart of the same code raises the same error."""
    return isinstance(error, BackupMismatchError | ConfigError | CompatError)


class BackupError(KdcError, RuntimeError):
    """A backup could not be written, found, verified or restored."""


class DamagedBackupError(BackupError):
    """Bytes in the store differ from what their manifest says."""


class Diverged(KdcError, ArithmeticError):  # noqa: N818 - what has happened, as Preempted
    """Training has ended with weights or slots that are NaN or infinite, and is not to go on with them."""


class BackupMismatchError(BackupError, ValueError):
    """A backup belongs to another model, callback list or format version, or is not as exact as `strict` wants it."""


class FencedError(BackupError):
    """This run does not own its backup directory, or its checkpoints, any more and must stop.

    Attributes:
        nothing_left: The directory was deleted or renamed, and every backup with it; else a newer run owns it.
    """

    nothing_left = False


class Preempted(SystemExit):
    """The process was asked to end, and training was saved: leave, and be started again.

    A `SystemExit`, so that `finally` blocks run, `except Exception` does not catch it, and the process ends with
    exit code 138.

    Attributes:
        reason: Who asked for it, where training stands and what was saved; anything else becomes its text.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(RESTART_EXIT_CODE)
        self.reason = str(reason)

    def __str__(self) -> str:
        return escape_controls(self.reason, keep="\n")


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """An error, what caused it, what caused that, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
