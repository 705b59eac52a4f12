"""What the errors of stores mean: what may pass, what to do."""

from __future__ import annotations

import errno
import logging
import re
import shutil
import ssl
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks.base.errors import KdcError, StorageError, cause_chain
from keras_dist_callbacks.base.terminal import data_size, is_shown, say
from keras_dist_callbacks.storage.redaction import Redactor

_READING = ("read", "look up")
QUICK_SECONDS = 5.0
_FULL = {errno.ENOSPC, errno.EDQUOT}


def translate_error(
    error: Exception, verb: str, where: str, redactor: Redactor, seconds: float | None, root: str = "", needed: int = 0
) -> Exception:
    """Returns the error to raise.

    Args:
        error: What a store or the operating system raised.
        verb: What was to be done, such as `"read"`.
        where: With what, without credentials.
        redactor: Knows the secrets of the directory.
        seconds: For how long that was tried in a remote store; None: it is a local directory.
        root: The local directory.
        needed: How many bytes were to be written into it.

    Returns:
        `error` itself if callers know its type and it shows no secret.
    """
    missing, is_local = isinstance(error, FileNotFoundError), seconds is None
    clean = redactor.is_clean(error)
    if isinstance(error, FileExistsError) or (missing and verb in _READING):
        kind = FileNotFoundError if missing else FileExistsError
        return error if clean else kind(where)
    is_of_store = not is_local and (_is_of_a_client(error) or isinstance(error, ValueError | RuntimeError))
    if clean and not (isinstance(error, OSError) or is_of_store):
        return error  # a mistake in this package
    tried = f" (tried for {seconds:.0f} s)" if seconds is not None and seconds >= 1 and is_retryable(error) else ""
    if is_local and is_full(error) and needed:
        hint = _room_in_words(root, needed)
    else:
        hint = advice(error, missing=missing, is_local=is_local)
    failure = StorageError(f"cannot {verb} {where}: {redactor.reason(error)}{tried}{hint}")
    failure.unavailable, failure.forbidden, failure.full = is_retryable(error), is_forbidden(error), is_full(error)
    return redactor.caused(failure, error)


@dataclass
class RetryNotice:
    """Informs the user, once each, that a store does not answer and why requests fail, while they are repeated.

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
    _reported: set[str] = field(default_factory=set)

    def failed(self, error: BaseException, seconds: float) -> None:
        """A try has failed, so many seconds after the first one began."""
        if seconds >= QUICK_SECONDS and isinstance(error, Exception):
            self._report(
                "failed", f"a request has failed for {seconds:.0f} s", f"{self.redactor.reason(error)}{advice(error)}"
            )

    def silent(self) -> None:
        """The first request has no answer yet."""
        self._report("silent", f"no answer for {QUICK_SECONDS:.0f} s", advice(TimeoutError())[2:])

    def _report(self, kind: str, what: str, why: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            trying = f"retrying for about {self.total_seconds:g} s in all"
            text = f"{self.where}: {what}; {trying}: {why}"
            say(text, verbose=self.shown, level=logging.WARNING, to_stderr=True)


def is_full(error: Exception) -> bool:
    """Returns whether the disk or the quota is used up."""
    return isinstance(error, OSError) and error.errno in _FULL


def _room_in_words(root: str, needed: int) -> str:
    """Returns how much space a file needs in a local directory, and how much there is, as the end of a message."""
    try:
        free = f" and {data_size(shutil.disk_usage(root).free)} are free on that disk"
    except OSError:  # it was deleted meanwhile
        free = ""
    return f"; it needs {data_size(needed)}{free}: free some space"


_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3", "az": "azure", "abfs": "azure", "abfss": "azure"}
_FINAL = (FileExistsError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_CLIENTS = {"aiohttp", "aiobotocore", "asyncio", "azure", "botocore", "fsspec", "gcsfs", "google", "requests", "s3fs"}
# Of what these raise without an answer of the store, all the rest is about what they were asked for.
_PASSING_TYPES = {
    "azure": {"IncompleteReadError", "ServiceRequestError", "ServiceResponseError"},
    "botocore": {"ChecksumError", "ConnectionError", "CredentialRetrievalError", "HTTPClientError",
                 "FlexibleChecksumError", "IncompleteReadError", "MetadataRetrievalError", "ResponseParserError"},
    "google": {"RetryError", "TimeoutError", "TransportError"},
}  # fmt: skip
_PASSING_STATUS = {408, 409, 410, 425, 429}  # 409 and 410: lost races and lost upload sessions
_LASTING_STATUS = {501, 505}
_MOVED = {301, 308}  # to another region: that the client follows, if it can
_PASSING_CODES = {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
_WITHOUT_CREDENTIALS = re.compile("NoCredentials|PartialCredentials|DefaultCredentials|Authentication|NoAuthToken")
_LASTING_ERRNOS = {
    errno.E2BIG, errno.EACCES, errno.EAFNOSUPPORT, errno.EBADF, errno.EDESTADDRREQ, errno.EDQUOT, errno.EEXIST,
    errno.EFAULT, errno.EFBIG, errno.EILSEQ, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.EMLINK, errno.EMSGSIZE,
    errno.ENAMETOOLONG, errno.ENODEV, errno.ENOENT, errno.ENOSPC, errno.ENOSYS, errno.ENOTBLK, errno.ENOTDIR,
    errno.ENOTEMPTY, errno.ENOTSOCK, errno.ENOTSUP, errno.ENOTTY, errno.ENXIO, errno.EOPNOTSUPP, errno.EOVERFLOW,
    errno.EPERM, errno.EPROTONOSUPPORT, errno.EROFS, errno.ESPIPE, errno.EXDEV,
}  # fmt: skip


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an error of gcsfs, s3fs, adlfs or their libraries stands for, if any."""
    for link in cause_chain(error):
        for value in (getattr(link, "status_code", None), getattr(link, "code", None), getattr(link, "status", None)):
            if isinstance(value, int | str) and str(value).isdigit():
                return int(value)
        status = _botocore(link, "ResponseMetadata", "HTTPStatusCode")
        if status is not None:
            return int(status)
        if isinstance(link, OSError) and str(link).startswith("Forbidden"):  # all that gcsfs says of a 403
            return 403
    return None


def already_exists(error: BaseException) -> bool:
    """Whether the store refused to create an object because there is one, in words that its client does not know."""
    return any(_botocore(link, "Error", "Code") in {"PreconditionFailed", "412"} for link in cause_chain(error))


def is_retryable(error: BaseException) -> bool:
    """Returns whether trying again may help: not for what is missing, forbidden, in the way or refused as it is."""
    if isinstance(error, (*_FINAL, KdcError)) or not isinstance(error, Exception):
        return False
    if _lacks_credentials(error):
        return False
    if any(_botocore(link, "Error", "Code") in _PASSING_CODES for link in cause_chain(error)):
        return True
    status = status_of(error)
    if status is not None and (status >= 400 or status in _MOVED):
        return status in _PASSING_STATUS or (status >= 500 and status not in _LASTING_STATUS)
    if _is_untrusted(error) or _is_about_the_request(error):
        return False
    kinds = _PASSING_TYPES.get(type(error).__module__.split(".")[0].removeprefix("aio"))
    if kinds is not None:
        return bool(kinds & {kind.__name__ for kind in type(error).__mro__}) or bool(getattr(error, "retryable", False))
    if isinstance(error, OSError):
        return error.errno not in _LASTING_ERRNOS
    return _is_of_a_client(error)


def is_forbidden(error: BaseException) -> bool:
    """Returns whether it is the right to do this that is missing."""
    is_read_only = isinstance(error, OSError) and error.errno == errno.EROFS
    return is_read_only or isinstance(error, PermissionError) or status_of(error) == 403


def advice(error: Exception, *, missing: bool = False, is_local: bool = False) -> str:
    """Returns how to fix it, as the end of a message; empty if unknown.

    Args:
        error: What the client raised.
        missing: Whether something was not found where, in a store, only the bucket can be missing.
        is_local: It is about a local directory, maybe one that is mounted.
    """
    status = status_of(error)
    if _lacks_credentials(error) or status == 401:
        return (
            "; no valid credentials: give them in storage_options, or in the environment variables of the store's "
            "client"
        )
    if is_forbidden(error):
        return f"; check the permissions {'' if is_local else 'or credentials '}for this path"
    if missing and not is_local:
        return (
            "; the bucket or container does not exist, or this account has no access to it: create it, or correct "
            "the name"
        )
    if _is_untrusted(error):
        return (
            "; the store's certificate is not trusted: give the client its certificate authority, or correct the "
            "endpoint_url"
        )
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "; a file exists where a directory is needed"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "; free some space"
    if status is None and is_retryable(error):
        if is_local:
            return "; check the disk, or what is mounted there"
        return "; check the network, the URL of the store and its endpoint_url"
    return ""


def open_error_hint(protocol: str, error: Exception, reason: str) -> str:
    """Returns why a client did not come to be, and how to fix it.

    Args:
        protocol: Of the URL.
        error: What fsspec or the client raised.
        reason: What it says, without credentials.
    """
    if isinstance(error, ImportError):
        extra = _EXTRAS.get(protocol)
        fix = f'pip install "keras-dist-callbacks[{extra}]"' if extra else reason
        return f"needs a package for the protocol {protocol!r} that is not installed: {fix}"
    if isinstance(error, ValueError) and "not known" in str(error):
        return f"has the unknown protocol {protocol!r}; known ones include gs, s3, az, file and memory"
    return f"cannot be opened: {reason}; check storage_options"


def _lacks_credentials(error: BaseException) -> bool:
    return any(
        _WITHOUT_CREDENTIALS.search(type(link).__name__) and _is_of_a_client(link) for link in cause_chain(error)
    )


def _is_untrusted(error: BaseException) -> bool:
    return any(isinstance(link, ssl.SSLCertVerificationError) for link in cause_chain(error))


def _is_about_the_request(error: BaseException) -> bool:
    """A `ValueError`, whatever else it is (requests makes it an `OSError` too), or the like wrapped by a client."""
    kwargs = getattr(error, "kwargs", None)
    wrapped = (getattr(error, "inner_exception", None), kwargs.get("error") if isinstance(kwargs, dict) else None)
    return isinstance(error, ValueError) or any(isinstance(e, ValueError | TypeError | RecursionError) for e in wrapped)


def _is_of_a_client(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in _CLIENTS


def _botocore(error: BaseException, *path: str) -> Any:
    found: Any = getattr(error, "response", None)
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found
