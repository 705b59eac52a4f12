"""Complete objects or none in a store that fsspec knows: one bounded, repeatable request after the other."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.storage import retry, store_errors, temporary
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.store_errors import RetryNotice, already_exists, status_of
from keras_dist_callbacks.storage.transfer import Buffer, RateLimiter, has_content

_T = TypeVar("_T")
JOINED_LIMIT = 64 * 2**20  # what is put together in memory for one request
_PIECE = 16 * 2**20
_FIRST_PIECE = 2**20
_PLAIN_NAMES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"}


class Connection:
    """A file system of fsspec; a new one in a forked process, because clients do not survive a fork.

    Attributes:
        has_answered: Whether a request has succeeded.
        ignores_ranges: Whether the store was found to return complete objects where a part was asked for.
    """

    def __init__(self, fs: Any, connect: Callable[[], Any]) -> None:
        self._fs, self._connect = fs, connect
        self._process = os.getpid()
        self.has_answered = False
        self.ignores_ranges = False

    @property
    def fs(self) -> Any:
        """The file system of this process."""
        if self._process != os.getpid():
            self._fs, self._process = self._connect(), os.getpid()
        return self._fs


@dataclass(frozen=True)
class RemoteFiles:
    """The operations of a `Storage` on full paths. Errors are those of the clients.

    Attributes:
        connection: To the store.
        policy: How long a request may take, and how often it is repeated.
        traffic: Shared with other directories.
        notice: Informs the user of requests that are being repeated.
    """

    connection: Connection
    policy: RetryPolicy
    traffic: RateLimiter
    notice: RetryNotice

    @property
    def fs(self) -> Any:
        """The file system behind it."""
        return self.connection.fs

    def has_plain_names(self, path: str) -> bool:
        """Returns whether an object's name is a text of our choice, and the directories in it mean nothing."""
        protocol = self.fs.protocol
        is_plain = not _PLAIN_NAMES.isdisjoint({protocol} if isinstance(protocol, str) else protocol)
        return is_plain and not path.startswith("arn:")  # of an access point, which is a bucket with slashes

    def listing(self, path: str) -> list[tuple[str, int]]:
        """Full names and sizes of the objects directly below a path; empty if not found."""
        try:
            entries = self._try("ls", path, detail=True, refresh=True)
        except FileNotFoundError:
            return []
        files = [e for e in entries if e["type"] == "file" and e["name"].strip("/") != path.strip("/")]
        return [(e["name"], int(e["size"] or 0)) for e in files]

    def size(self, path: str) -> int | None:
        """Returns bytes of an object; None if not found."""
        try:
            self.fs.invalidate_cache()
            info = self._try("info", path)
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def modified(self, path: str) -> float:
        """When an object was last written, in seconds since 1970; 0 where the file system does not know."""
        try:
            return float(self._call(lambda: self.fs.modified(path)).timestamp())
        except NotImplementedError:
            return 0.0

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Returns the bytes from `start` up to `end`, as far as there are any."""
        first = start or 0
        if end is not None:
            return self._range(path, first, end)
        pieces, wanted = [], _FIRST_PIECE  # of a size that is unknown, so that no request may take long
        while True:
            pieces.append(self._range(path, first, first + wanted))
            if len(pieces[-1]) < wanted:
                return b"".join(pieces)
            first, wanted = first + wanted, _PIECE

    def _range(self, path: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        try:
            content = bytes(self._try("cat_file", path, start=start, end=end, size=end - start))
        except Exception as error:
            if status_of(error) == 416:  # it ends before
                return b""
            raise
        if len(content) > end - start and not self.connection.ignores_ranges:
            self.connection.ignores_ranges = True
            warn(
                "this store does not support ranged reads: reading a part of a file, such as the record of a "
                "checkpoint, transfers the complete file",
                RuntimeWarning,
            )
        return content[start:end] if self.connection.ignores_ranges else content

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        """Publishes a new object.

        Raises:
            FileExistsError: The name is taken by an object with other content.
        """
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(map(len, views))
        if size <= JOINED_LIMIT or "memory" in self.fs.protocol:  # its put_file shows an object while it grows
            content = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(views)
            self._upload(path, size, lambda: iter([memoryview(content)]), "pipe_file", content, mode="create")
        else:
            with temporary.file_with(views, "upload", "a file that is uploaded") as file:
                self._put_file(path, file, mode="create")

    def replace(self, path: str, source: Path) -> None:
        """Publishes a file; readers see the old object or the new one."""
        if "memory" in self.fs.protocol:
            content = source.read_bytes()
            self._upload(path, len(content), lambda: iter([memoryview(content)]), "pipe_file", content)
        else:
            self._put_file(path, source)

    def download(self, path: str, target: Path, size: int) -> None:
        """Copies an object to a file."""
        self._try("get_file", path, str(target), size=size)

    def delete(self, path: str) -> None:
        """Removes an object, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._try("rm_file", path)

    def _put_file(self, path: str, source: Path, **mode: str) -> None:
        size = source.stat().st_size
        progress = _Progress(self.traffic)
        arguments = {"callback": progress} if size > JOINED_LIMIT else {}
        self._upload(path, size, lambda: _pieces_of(source), "put_file", str(source), progress, **arguments, **mode)

    def _upload(
        self,
        path: str,
        size: int,
        content: Callable[[], Iterator[memoryview]],
        method: str,
        payload: Any,
        progress: _Progress | None = None,
        **arguments: Any,
    ) -> None:
        began = time.monotonic()

        def put() -> None:
            order = (path, payload) if method == "pipe_file" else (payload, path)
            try:
                self._ask(method, *order, size=size, **arguments)
            except Exception as error:
                # The answer to an earlier try may have been lost: the store then says that the name is taken,
                # or that an upload in parts is unknown because it is complete.
                taken = isinstance(error, FileExistsError) or already_exists(error)
                if not (taken or isinstance(error, FileNotFoundError)):
                    raise
                if not has_content(self.size(path), partial(self.read, path), content()):
                    if taken and not isinstance(error, FileExistsError):
                        raise FileExistsError(path) from error
                    raise

        self._call(put, size)
        self.traffic.report(size - (progress.reported if progress else 0))
        self.traffic.pace(size, began)

    def _try(self, method: str, *arguments: Any, size: int = 0, **options: Any) -> Any:
        return self._call(lambda: self._ask(method, *arguments, size=size, **options), size)

    def _call(self, operation: Callable[[], _T], size: int = 0) -> _T:
        """As the policy says; until the store has answered once, its address may be wrong, and waiting is reported."""
        if self.connection.has_answered:
            return retry.call(self.policy, operation, size, self.notice.failed)
        timer = threading.Timer(store_errors.QUICK_SECONDS, self.notice.silent)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread can be started: then nobody says that the store is slow
            timer.start()
        try:
            found = retry.call(self.policy, operation, size, self.notice.failed)
        finally:
            timer.cancel()
        self.connection.has_answered = True
        return found

    def _ask(self, method: str, *arguments: Any, size: int = 0, **options: Any) -> Any:
        fs = self.fs
        if getattr(fs, "async_impl", False):
            options["timeout"] = retry.request_time(self.policy, size)
        return getattr(fs, method)(*arguments, **options)


class _Progress:
    """What clients report while they upload, in the form that fsspec gives to callbacks."""

    def __init__(self, traffic: RateLimiter) -> None:
        self._traffic = traffic
        self._now = 0
        self.reported = 0

    def set_size(self, size: int) -> None:
        self._now = 0  # a new try begins

    def relative_update(self, count: int = 1) -> None:
        self.absolute_update(self._now + count)

    def absolute_update(self, value: int) -> None:
        self._now = value
        if value > self.reported:  # what a repeated try sends again is not progress
            self._traffic.report(value - self.reported)
            self.reported = value


def _pieces_of(source: Path) -> Iterator[memoryview]:
    with open(source, "rb") as file:
        while piece := file.read(_PIECE):
            yield memoryview(piece)
