"""What callers are told of an operation that failed: one error for all stores, without a credential."""

from __future__ import annotations

from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.redaction import Redactor
from keras_dist_callbacks.storage.store_errors import advice, is_forbidden, is_trouble, may_pass

_READING = ("read", "look up")


def told(error: Exception, verb: str, where: str, redactor: Redactor, seconds: float | None) -> Exception:
    """The error to raise.

    Args:
        error: What a store or the operating system raised.
        verb: What was to be done, such as `"read"`.
        where: With what, without credentials.
        redactor: Knows the secrets of the directory.
        seconds: For how long that was tried in a remote store; None: it is a local directory.

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
    hint = advice(error, missing=missing and not is_local)
    failure = StorageError(f"cannot {verb} {where}: {redactor.reason(error)}{tried}{hint}")
    failure.unavailable, failure.forbidden = may_pass(error), is_forbidden(error)
    return redactor.caused(failure, error)
