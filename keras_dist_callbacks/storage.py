"""The one door to every store: local paths and fsspec URLs behind a handful of atomic operations.

Nothing above this module knows which store it talks to. The promises are: `create` publishes a whole
object under a name that did not exist or publishes nothing; `replace` shows either the old object or the
new one; `delete` of a missing object is no error. Listings are never cached (gcsfs and s3fs would serve
stale ones for `ls` and for `exists`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import fsspec

from keras_dist_callbacks import local_files
from keras_dist_callbacks.errors import ConfigError, StorageError
from keras_dist_callbacks.local_files import TEMPORARY_MARK, Buffer
from keras_dist_callbacks.retry import RetryPolicy, may_pass

PathLike = str | os.PathLike[str]
_T = TypeVar("_T")

_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3", "az": "azure", "abfs": "azure", "abfss": "azure"}


@dataclass(frozen=True)
class FileInfo:
    """One object of a listing: its name relative to the listed directory, and its size in bytes."""

    name: str
    size: int


def redact(url: PathLike) -> str:
    """`url` without user names, passwords and query strings, fit for logs and errors."""
    text = os.fspath(url)
    if "://" not in text:
        return text
    return re.sub(r"//[^/@]*@", "//", text).split("?", 1)[0]


def _protocol_of(url: str) -> str:
    return url.split("://", 1)[0].split("::")[-1] if "://" in url else "file"


def _open_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    protocol = _protocol_of(url)
    try:
        cache = {} if protocol == "file" else {"use_listings_cache": False}
        fs, root = fsspec.core.url_to_fs(url, **cache, **options)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        advice = f'pip install "keras-dist-callbacks[{extra}]"' if extra else str(error)
        raise ConfigError(
            f"{redact(url)!r} needs a package for the protocol {protocol!r} that is not installed: {advice}"
        ) from error
    except ValueError as error:
        if "not known" in str(error):
            raise ConfigError(
                f"{redact(url)!r}: unknown protocol {protocol!r}; known ones include gs, s3, az, file and memory"
            ) from error
        raise ConfigError(f"{redact(url)!r} cannot be opened: {error}") from error
    return fs, str(root)


@dataclass(frozen=True)
class Storage:
    """A directory on a local disk or in any store that fsspec knows.

    Names are relative POSIX paths below the directory; absolute ones and `..` are refused.

    Attributes:
        url: What the user gave, without credentials; for messages.
        root: The path inside the file system.
        is_local: Whether the directory is on a local file system.
        fsync: Whether local writes reach the disk before they are published.
    """

    url: str
    root: str
    is_local: bool
    fsync: bool = True
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    _fs: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def open(
        cls,
        url: PathLike,
        storage_options: Mapping[str, Any] | None = None,
        *,
        fsync: bool = True,
        retry: RetryPolicy | None = None,
    ) -> Storage:
        """Opens a directory; nothing is created or contacted yet.

        Args:
            url: A plain path, `pathlib.Path` or fsspec URL.
            storage_options: Passed to the fsspec file system (credentials, endpoint, ...).
            fsync: Whether local writes are flushed to the disk before they are published.
            retry: The policy for remote requests. Defaults to `RetryPolicy()`.

        Raises:
            ConfigError: The URL is empty, its protocol is unknown, or its package is missing.
        """
        text = os.fspath(url)
        if not text:
            raise ConfigError("an empty path was given where a directory is needed")
        fs, root = _open_filesystem(text, storage_options or {})
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
        is_local = "file" in protocols
        return cls(
            url=redact(text),
            root=str(Path(root).absolute()) if is_local else root.rstrip("/"),
            is_local=is_local,
            fsync=fsync,
            retry=retry or RetryPolicy(),
            _fs=fs,
        )

    def child(self, name: str) -> Storage:
        """The directory `name` below this one."""
        return Storage(
            f"{self.url.rstrip('/')}/{name}", self._full(name), self.is_local, self.fsync, self.retry, self._fs
        )

    def display(self, name: str = "") -> str:
        """`name` as a full path or URL for messages."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def files(self, directory: str = "") -> list[FileInfo]:
        """The files directly in `directory`, sorted by name; empty if it does not exist."""
        path = self._full(directory) if directory else self.root

        def listing() -> list[FileInfo]:
            try:
                entries = self._fs.ls(path, detail=True, **({} if self.is_local else {"refresh": True}))
            except FileNotFoundError:
                return []
            found = [e for e in entries if e["type"] == "file" and e["name"].rstrip("/") != path.rstrip("/")]
            return sorted(
                (FileInfo(PurePosixPath(e["name"]).name, int(e["size"] or 0)) for e in found), key=lambda f: f.name
            )

        return self._run("list", directory, listing)

    def exists(self, name: str) -> bool:
        """Whether the object is there."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """The object's size in bytes, or None if it does not exist."""

        def stat() -> int | None:
            self._fs.invalidate_cache()
            try:
                return int(self._fs.info(self._full(name))["size"])
            except FileNotFoundError:
                return None

        return self._run("look up", name, stat)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """The object's bytes, or those from `start` up to `end`.

        Raises:
            FileNotFoundError: There is no such object.
        """
        content: bytes = self._run("read", name, lambda: self._fs.cat_file(self._full(name), start=start, end=end))
        return content

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fills a writable buffer with the object's bytes from `start` on; may run in several threads at once.

        Raises:
            FileNotFoundError: There is no such object.
            StorageError: The object ends before the buffer is full.
        """
        view, path = buffer.cast("B"), self._full(name)
        if self.is_local:
            filled = self._run("read", name, lambda: local_files.read_into(Path(path), start, view))
        else:
            filled = self._run("read", name, lambda: self._fetch_into(path, start, view)) if view else 0
        if filled < len(view):
            end = start + len(view)
            raise StorageError(f"cannot read {self.display(name)}: it ends after {start + filled} of {end} bytes")

    def _fetch_into(self, path: str, start: int, view: memoryview) -> int:
        content = self._fs.cat_file(path, start=start, end=start + len(view))
        view[: len(content)] = content
        return len(content)

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        """Publishes a new object, whole or not at all.

        Args:
            name: Its name; nothing may exist there.
            parts: The content, in pieces that are written one after the other.

        Raises:
            FileExistsError: The name is taken by an object with other content.
        """
        if self.is_local:
            self._run("create", name, lambda: local_files.create(Path(self._full(name)), parts, self.fsync))
            return
        content = b"".join(parts)

        def put() -> None:
            try:
                self._fs.pipe_file(self._full(name), content, mode="create")
            except FileExistsError:
                # A response that was lost makes the client retry and collide with its own write.
                if self._fs.cat_file(self._full(name)) != content:
                    raise

        self._run("create", name, put)

    def replace(self, name: str, source: Path) -> None:
        """Publishes a local file under `name`; readers see the old object or the new one, never a part."""
        if self.is_local:
            self._run("write", name, lambda: local_files.replace(Path(self._full(name)), source, self.fsync))
        else:
            self._run("write", name, lambda: self._put_remote(name, source))

    def _put_remote(self, name: str, source: Path) -> None:
        if "memory" not in self._fs.protocol:
            self._fs.put_file(str(source), self._full(name))
            return
        self._fs.pipe_file(self._full(name), source.read_bytes())  # put_file shows the object while it grows

    def download(self, name: str, target: Path) -> None:
        """Copies an object to a local file."""
        self._run("read", name, lambda: self._fs.get_file(self._full(name), str(target)))

    def delete(self, name: str) -> None:
        """Removes an object; one that is not there is no error."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._full(name))

        self._run("delete", name, remove)

    def remove_empty_directories(self, names: Sequence[str]) -> None:
        """Removes the given directories (an empty name is this one) if they exist and are empty."""
        if not self.is_local:
            return  # object stores have no directories of their own
        for name in names:
            with contextlib.suppress(FileNotFoundError, OSError):
                os.rmdir(self._full(name) if name else self.root)  # noqa: PTH106

    def temporary_files(self, directory: str = "") -> list[FileInfo]:
        """Files in `directory` that an interrupted write left behind."""
        return [f for f in self.files(directory) if TEMPORARY_MARK in f.name]

    def probe(self) -> None:
        """Writes, reads back and deletes a small object.

        Raises:
            StorageError: The directory cannot be used; the message says why and what to do.
        """
        name = f"probe{TEMPORARY_MARK}{uuid.uuid4().hex}"
        token = uuid.uuid4().bytes
        try:
            self.create(name, [token])
            if self.read(name) != token:
                raise StorageError(f"{self.display()}: an object that was just written reads back differently")
        finally:
            with contextlib.suppress(OSError):
                self.delete(name)

    def _full(self, name: str) -> str:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
            raise StorageError(f"{self.display()}: the name {name!r} leads out of the directory; refused")
        return f"{self.root}/{path}"

    def _run(self, verb: str, name: str, operation: Callable[[], _T]) -> _T:
        try:
            return operation() if self.is_local else self.retry.call(operation)
        except (FileExistsError, StorageError):
            raise
        except FileNotFoundError as error:
            if verb in {"read", "look up"}:
                raise
            raise StorageError(f"cannot {verb} {self.display(name)}: {error}") from error
        except Exception as error:
            if not isinstance(error, OSError) and not may_pass(error):
                raise
            raise StorageError(f"cannot {verb} {self.display(name)}: {_reason(error)}{_advice(error)}") from error


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__


def _advice(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "; check the permissions or credentials for this path"
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "; a file is in the way of a directory"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "; free some space"
    return ""
