"""The one door to every store: local paths and fsspec URLs with a handful of atomic operations.

Nothing above this module knows which store it talks to. The promises are: `create` publishes a complete
object under a name that did not exist or publishes nothing; `replace` shows either the old object or the
new one; `delete` of a missing object is not an error. Listings are never cached (gcsfs and s3fs would serve
stale ones for `ls` and for `exists`). Every request is bounded and repeated by one policy. No message shows
a credential.
"""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import fsspec

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError, StorageError
from keras_dist_callbacks.base.terminal import escape_controls, warn
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.local_files import LocalFiles, temporary_name
from keras_dist_callbacks.storage.redaction import Redactor, redact, reject_credentials
from keras_dist_callbacks.storage.remote_files import Connection, RemoteFiles
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.spelling import require_directory, require_file, require_plain
from keras_dist_callbacks.storage.store_errors import RetryNotice, open_error_hint, translate_error
from keras_dist_callbacks.storage.transfer import Buffer, FileInfo, RateLimiter


def open_filesystem(url: str, options: Mapping[str, Any], redactor: Redactor) -> tuple[Any, str]:
    """Returns the file system and the path in it; nothing is contacted yet.

    Raises:
        ConfigError: The protocol is unknown, its package is missing, or its client does not take the options.
    """
    reject_credentials(url)
    protocol = url.split("://", 1)[0].split("::")[-1] if "://" in url else "file"
    try:
        cache = {} if protocol == "file" else {"use_listings_cache": False}
        fs, root = fsspec.core.url_to_fs(url, **cache, **options)
    except Exception as error:  # noqa: BLE001 - clients look at their options here, each with errors of its own
        why = open_error_hint(protocol, error, redactor.reason(error))
        failure = redactor.caused(ConfigError(f"{redact(url)!r} {why}"), error)
    else:
        return fs, str(root)
    raise failure


PathLike = str | os.PathLike[str]
_T = TypeVar("_T")

DEFAULT_RETRY = RetryPolicy()


@dataclass(frozen=True)
class Storage:
    """A directory on a local disk or in any store that fsspec knows.

    Names are relative POSIX paths below the directory; absolute ones and `..` are refused.

    Attributes:
        url: What the user gave, without credentials; for messages.
        root: The path inside the file system.
        is_local: Whether the directory is on a local file system.
        retry: How long remote requests may take and are repeated.
    """

    url: str
    root: str = field(repr=False)  # of a URL with a password, it has that too
    is_local: bool
    retry: RetryPolicy
    _local: LocalFiles = field(repr=False, compare=False)  # used if is_local
    _remote: RemoteFiles = field(repr=False, compare=False)  # used if not
    _redactor: Redactor = field(repr=False, compare=False)

    @classmethod
    def open(
        cls,
        url: PathLike,
        storage_options: Mapping[str, Any] | None = None,
        *,
        fsync: bool = True,
        retry: RetryPolicy | None = None,
        max_bytes_per_second: float | None = None,
    ) -> Storage:
        """Opens a directory; nothing is created or contacted yet.

        Args:
            url: A plain path, `pathlib.Path` or fsspec URL.
            storage_options: Passed to the fsspec file system (credentials, endpoint, ...).
            fsync: Whether local writes are flushed to the disk before they are published.
            retry: The policy for remote requests. Defaults to `DEFAULT_RETRY`.
            max_bytes_per_second: Cap on the rate of writes, on average. A remote object is sent at full speed
                and followed by a pause. Defaults to no cap.

        Raises:
            ConfigError: An argument is of the wrong type, the URL is empty, no directory may be called so, its protocol
                is unknown, its package is missing, or its client does not take the options.
        """
        text, fsync = validation.path("the directory", url), validation.check("fsync", fsync, bool)
        options = validation.mapping("storage_options", storage_options)
        redactor, traffic = Redactor.of(text, options), RateLimiter(max_bytes_per_second)
        policy = DEFAULT_RETRY if retry is None else validation.instance("retry", retry, RetryPolicy, also="None")
        fs, root = open_filesystem(text, options, redactor)
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
        is_local = "file" in protocols
        connection = Connection(fs, lambda: open_filesystem(text, options, redactor)[0])
        root = str(Path(root).absolute()) if is_local else root.rstrip("/")
        require_directory(root, redact(text), is_local=is_local)
        return cls(
            url=redact(text),
            root=root,
            is_local=is_local,
            retry=policy,
            _local=LocalFiles(root, fsync, traffic),
            _remote=RemoteFiles(connection, policy, traffic, RetryNotice(redact(text), redactor, policy.total_seconds)),
            _redactor=redactor,
        )

    def child(self, name: str) -> Storage:
        """Returns the directory `name` below this one; the cap on the rate is for both together."""
        return dataclasses.replace(self, url=f"{self.url.rstrip('/')}/{name}", root=self._path_of(name))

    def require_name(self, name: str) -> None:
        """Makes sure that a file may be called so, before there is anything to write.

        Raises:
            ConfigError: It may not.
        """
        require_plain(name, self.display(name))
        if self.is_local:
            require_file(self.root, name, self.display(name))

    def parent(self) -> Storage | None:
        """The directory that contains this one; None for a bucket or the root, and where paths are not plain names."""
        above, _, own = self.root.rpartition("/")
        if self.is_local:
            above = above or "/"
            return dataclasses.replace(self, url=above, root=above, _local=dataclasses.replace(self._local, root=above))
        if not above or not self._remote.has_plain_names(self.root):
            return None
        return dataclasses.replace(self, url=self.url.rstrip("/").removesuffix(own).rstrip("/"), root=above)

    def display(self, name: str = "") -> str:
        """`name` as a full path or URL for messages."""
        return escape_controls(f"{self.url.rstrip('/')}/{name}" if name else self.url)

    def reporting(self, on_bytes: Callable[[int], None]) -> AbstractContextManager[None]:
        """Calls `on_bytes` with each number of bytes written, here and in children, from any thread, in the block."""
        return self._files.traffic.reporting(on_bytes)

    def files(self, directory: str = "") -> list[FileInfo]:
        """Returns the files directly in `directory`, sorted by name; empty if it does not exist."""
        path = self._path_of(directory) if directory else self.root
        found = self._run("list", directory, lambda: self._files.listing(path))
        return sorted((FileInfo(PurePosixPath(name).name, size) for name, size in found), key=lambda f: f.name)

    def exists(self, name: str) -> bool:
        """Returns whether the object is there."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Returns the object's size in bytes, or None if it does not exist."""
        path = self._path_of(name)
        return self._run("look up", name, lambda: self._files.size(path))

    def link_target(self, name: str) -> Path | None:
        """Returns where a symbolic link leads, None if it is not one; every other operation refuses links."""
        path = Path(self._path_of(name))
        return path.resolve() if self.is_local and path.is_symlink() else None

    def modified(self, name: str) -> float:
        """When the object was last written, by the store's clock: seconds since 1970.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        path = self._path_of(name)
        return self._run("look up", name, lambda: self._files.modified(path))

    def now(self) -> float:
        """What time it is by the store's clock, as `modified` counts: that of an object that is written for it."""
        name = temporary_name("clock")
        try:
            self.create(name, [uuid.uuid4().bytes])
            return self.modified(name)
        finally:
            with suppress(OSError):
                self.delete(name)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Returns the object's bytes, or those from `start` up to `end`, as far as there are any.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        path = self._path_of(name)
        return self._run("read", name, lambda: self._files.read(path, start, end))

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fills a writable buffer with the object's bytes from `start` on; may run in several threads at once.

        Raises:
            FileNotFoundError: The object does not exist.
            StorageError: The object ends before the buffer is full.
        """
        view, path = buffer.cast("B"), self._path_of(name)
        if self.is_local:
            filled = self._run("read", name, lambda: self._local.read_into(path, start, view))
        else:
            content = self.read(name, start, start + len(view))
            filled = len(content)
            view[:filled] = content
        if filled < len(view):
            end = start + len(view)
            raise StorageError(f"cannot read {self.display(name)}: it ends after {start + filled} of {end} bytes")

    def drop_cached(self, name: str) -> None:
        """Lets the next read of a local file come from the disk, as far as the operating system allows."""
        if self.is_local:
            path = self._path_of(name)
            self._run("read", name, lambda: self._local.drop_cached(path))

    def create(self, name: str, parts: Sequence[Buffer]) -> None:
        """Publishes a new object, completely or not at all.

        Args:
            name: Its name; nothing may exist there.
            parts: The content, in pieces that are written one after the other.

        Raises:
            FileExistsError: The name is taken by an object with other content.
        """
        path = self._path_of(name)
        if self.is_local:
            size = sum(map(len, parts))
            self._run("create", name, partial(self._local.create, path, parts, size), size)
        else:
            self._run("create", name, lambda: self._remote.create(path, parts))

    def create_named_after_write(self, like: str, parts: Iterable[Buffer], size: int, named: Callable[[], str]) -> None:
        """As `create`, of a local file whose name is known only once its content was written.

        Args:
            like: A name in the same directory.
            parts: The content; it may be read more than once.
            size: Bytes of it.
            named: Returns the name then.
        """
        create = partial(self._local.create, self._path_of(like), parts, size, named=lambda: self._path_of(named()))
        self._run("create", str(PurePosixPath(like).parent), create, size)  # of the file there is no name yet

    def replace(self, name: str, source: Path) -> None:
        """Publishes a local file under `name`; readers see the old object or the new one, never a part.

        Args:
            name: Its name here.
            source: The file; it is left alone.
        """
        path = self._path_of(name)
        self._run("write", name, lambda: self._files.replace(path, source), source.stat().st_size)

    def extend(self, name: str, content: bytes, held: int) -> None:
        """Makes a file longer that this process alone writes.

        An object is replaced. On a local disk what is new is appended, because those who read such a file keep it open.

        Args:
            name: Its name.
            content: All that it shall hold.
            held: How much of that it holds already.
        """
        path = self._path_of(name)
        if self.is_local:
            self._run("write", name, lambda: self._local.extend(path, content, held), len(content) - held)
            return
        with temporary.file_with([content], "extended", f"a copy of {self.display(name)}") as whole:
            self.replace(name, whole)

    def download(self, name: str, target: Path) -> None:
        """Copies an object to a local file.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        path = self._path_of(name)

        def copy() -> None:
            size = self._files.size(path) or 0
            with temporary.writing(f"a copy of {self.display(name)}", size, target.parent):
                self._files.download(path, target, size)

        self._run("read", name, copy)

    def delete(self, name: str) -> None:
        """Removes an object; one that is not there is not an error."""
        path = self._path_of(name)
        self._run("delete", name, lambda: self._files.delete(path))

    def remove_empty_directories(self, names: Sequence[str]) -> None:
        """Removes the given directories (an empty name is this one) if they exist and are empty.

        Links, mount points and the process' working directory stay.
        """
        if not self.is_local:
            return  # object stores have no directories of their own
        for name in names:
            with suppress(OSError):
                self._local.remove_empty(self._path_of(name) if name else self.root)

    def refuse_links(self, directories: Sequence[str]) -> None:
        """Makes sure that none of the directories, nor anything directly in them, is a symbolic link.

        Every operation refuses links; this finds them before there is anything to lose.

        Raises:
            StorageError: One is; the message names it.
        """
        for name in directories if self.is_local else ():
            self._run("list", name, partial(self._local.refuse_links, self._path_of(name)))

    def probe(self) -> bool:
        """Finds out whether the directory can be used: writes, reads back and deletes a small object.

        On a local file system that has files without names, such a file is written: no listing ever shows it.

        A store that refuses to delete gets a warning: it can be used, but nothing old is ever removed.

        Returns:
            Whether a local directory was made for it.

        Raises:
            ConfigError: The store's client does not take the options.
            StorageError: The directory cannot be used; the message says why and what to do.
        """
        made = self.is_local and not os.path.exists(self.root)  # noqa: PTH110 - pathlib's raises where the name is too long
        if self.is_local and self._run("write", "", lambda: self._local.probe_unnamed(self.root)):
            return made
        name, token = temporary_name("probe"), uuid.uuid4().bytes
        try:
            self.create(name, [token])
        except TypeError as error:  # some clients look at their options only now
            raise ConfigError(f"{self.display()}: its client does not accept the storage_options: {error}") from error
        try:
            with suppress(FileExistsError):
                self.create(name, [uuid.uuid4().bytes])
                raise StorageError(
                    f"{self.display()}: the store overwrote an object that it was asked to create only if it did not "
                    "exist, so two runs could destroy each other's files; use a store or a version of it that supports "
                    "conditional writes"
                )
            if self.read(name) != token:
                raise StorageError(f"{self.display()}: an object that was just written reads back differently")
        except BaseException:
            with suppress(OSError):
                self.delete(name)
            raise
        try:
            self.delete(name)
        except StorageError as error:
            warn(f"old files cannot be deleted: {error}")
        return made

    @property
    def writes_directly(self) -> bool:
        """Whether large files are written around the page cache; known after the first one."""
        return self.is_local and self._local.direct.works is True

    @property
    def _files(self) -> LocalFiles | RemoteFiles:
        return self._local if self.is_local else self._remote

    def _path_of(self, name: str) -> str:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
            raise StorageError(f"{self.display()}: the name {name!r} is outside of the directory")
        return f"{self.root}/{path}"

    def _run(self, verb: str, name: str, operation: Callable[[], _T], needed: int = 0) -> _T:
        began = time.monotonic()
        try:
            return operation()
        except StorageError:
            raise
        except Exception as error:
            seconds = None if self.is_local else time.monotonic() - began
            failure = translate_error(error, verb, self.display(name), self._redactor, seconds, self.root, needed)
            if failure is error:
                raise
        raise failure
