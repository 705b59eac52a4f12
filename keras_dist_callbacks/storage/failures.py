"""What callers are told of an operation that failed: one error for all stores, without a credential."""

from __future__ import annotations

import errno
import logging
import shutil
from dataclasses import dataclass, field

from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.redaction import Redactor
from keras_dist_callbacks.storage.store_errors import advice, is_forbidden, is_trouble, may_pass
from keras_dist_callbacks.terminal import is_shown, say
from keras_dist_callbacks.texts import data_size

_READING = ("read", "look up")
QUICK_SECONDS = 5.0
_FULL = {errno.ENOSPC, errno.EDQUOT}


def told(
    error: Exception, verb: str, where: str, redactor: Redactor, seconds: float | None, room: tuple[str, int] = ("", 0)
) -> Exception:
    """The error to raise.

    Args:
        error: What a store or the operating system raised.
        verb: What was to be done, such as `"read"`.
        where: With what, without credentials.
        redactor: Knows the secrets of the directory.
        seconds: For how long that was tried in a remote store; None: it is a local directory.
        room: The local directory, and how many bytes were to be written into it.

    Returns:
        `error` itself if callers know its type and it shows no secret.
    """
    missing, is_local = isinstance(error, FileNotFoundError), seconds is None
    clean = redactor.is_clean(error)
    if isinstance(error, FileExistsError) or (missing and verb in _READING):
        kind = FileNotFoundError if missing else FileExistsError
        return error if clean else kind(where)
    if clean and not (isinstance(error, OSError) or (not is_local and is_trouble(error))):
        return error
    tried = f" (tried for {seconds:.0f} s)" if seconds is not None and seconds >= 1 and may_pass(error) else ""
    hint = (
        _room_in_words(*room)
        if is_local and is_full(error) and room[1]
        else advice(error, missing=missing and not is_local)
    )
    failure = StorageError(f"cannot {verb} {where}: {redactor.reason(error)}{tried}{hint}")
    failure.unavailable, failure.forbidden, failure.full = may_pass(error), is_forbidden(error), is_full(error)
    return redactor.caused(failure, error)


@dataclass
class RetryNotice:
    """Tells the user, once each, that a store does not answer and what requests fail with, while they are repeated.

    Not for what passes within seconds. It is a line and not a warning: it may come from any thread, and where warnings
    are errors it must not end what is being tried.

    Args:
        where: The directory, without credentials.
        redactor: Knows its secrets.
        total_seconds: For how long a request is tried.
    """

    where: str
    redactor: Redactor
    total_seconds: float
    shown: bool = field(default_factory=is_shown)  # in the thread that opens the directory
    _told: set[str] = field(default_factory=set)

    def failed(self, error: BaseException, seconds: float) -> None:
        """A try has failed, so many seconds after the first one began."""
        if seconds >= QUICK_SECONDS and isinstance(error, Exception):
            self._tell(
                "failed", f"a request has failed for {seconds:.0f} s", f"{self.redactor.reason(error)}{advice(error)}"
            )

    def silent(self) -> None:
        """The first request has no answer yet."""
        self._tell("silent", f"no answer for {QUICK_SECONDS:.0f} s", advice(TimeoutError())[2:])

    def _tell(self, kind: str, what: str, why: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            trying = f"it is being tried for about {self.total_seconds:g} s in all"
            text = f"keras_dist_callbacks: {self.where}: {what}; {trying}: {why}"
            say(text, verbose=self.shown, level=logging.WARNING, to_stderr=True)


def is_full(error: Exception) -> bool:
    """Whether the disk or the quota is used up."""
    return isinstance(error, OSError) and error.errno in _FULL


def _room_in_words(root: str, needed: int) -> str:
    """How much room a file needs in a local directory, and how much there is, as the end of a message."""
    try:
        free = f" and {data_size(shutil.disk_usage(root).free)} are free on that disk"
    except OSError:  # it was deleted meanwhile
        free = ""
    return f"; it needs {data_size(needed)}{free}: free some space"
