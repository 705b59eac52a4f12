"""The one codec for JSON records in a store, and the checks for values that another process wrote.

A seal proves that a record was not changed by accident. It does not prove who wrote it, so each field is checked.

One bad read is not a damaged file: what fails verification is read a second time before anything follows from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import xxhash

from keras_dist_callbacks.backups import names
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

MAX_MANIFEST_BYTES = 2**28
MAX_RECORD_BYTES = 2**20
_SEAL = re.compile(rb',"seal":"([0-9a-f]{32})"}')
_SEAL_BYTES = 43

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""How many, or how many bytes: every JSON reader has such integers."""

Generation = Annotated[int, msgspec.Meta(ge=1, lt=10**8)]
Sequence = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
Token = Annotated[str, msgspec.Meta(pattern=rf"^{names.RANDOM}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=rf"^{names.HASH}\Z")]
Time = Annotated[float, msgspec.Meta(ge=0, le=2**40)]
"""Seconds since 1970."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Format(Generic[_T]):
    """One kind of record: a JSON object with its format, its version, its fields and, last, the seal.

    The length of a record depends on the values only, so a digest may be filled in after the length is known.

    Attributes:
        name: The value of `format`, such as `"keras_dist_callbacks backup"`.
        version: The newest version that this package writes and reads. A field that a later version adds needs a
            default, so that older records are read too.
        schema: The fields: a dataclass or a `msgspec.Struct`.
        max_bytes: The longest record that is read.
        allow_nan: Whether numbers may be NaN or infinite, which Python's `json` reads and other programs may not.
        optional: Fields that are left out where they are None.
    """

    name: str
    version: int
    schema: type[_T]
    max_bytes: int = MAX_RECORD_BYTES
    allow_nan: bool = False
    optional: tuple[str, ...] = ()

    def encode(self, record: _T) -> bytes:
        """Returns the record as bytes.

        Raises:
            ValueError: A field holds a number that JSON does not have.
        """
        values = msgspec.to_builtins(record)
        present = {name: value for name, value in values.items() if value is not None or name not in self.optional}
        fields = {"format": self.name, "version": self.version, **present}
        text = json.dumps(fields, separators=(",", ":"), allow_nan=self.allow_nan).encode()[:-1]
        return text + b',"seal":"%s"}' % xxhash.xxh3_128_hexdigest(text).encode()

    def decode(self, content: bytes, where: str) -> _T:
        """Reads and checks a record.

        Args:
            content: The bytes.
            where: What they are, for messages.

        Raises:
            DamagedBackupError: They are not a record of this format as `encode` wrote it.
            BackupMismatchError: A newer version of this package wrote it.
        """
        seal = _SEAL.fullmatch(content, max(0, len(content) - _SEAL_BYTES))
        if seal is None:
            raise DamagedBackupError(f"{where} is {'empty' if not content else 'not a complete record'}")
        text = memoryview(content)[:-_SEAL_BYTES]
        if xxhash.xxh3_128_hexdigest(text) != seal[1].decode():
            raise DamagedBackupError(f"{where} does not match its seal")
        fields = parse(content, where, self.max_bytes)
        if not isinstance(fields, dict) or fields.pop("format", None) != self.name:
            raise DamagedBackupError(f"{where} is not a record of the format {self.name!r}")
        version = fields.pop("version", None)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise DamagedBackupError(
                f"{where}: format version {version!r} is not supported (known: 1 to {self.version})"
            )
        if version > self.version:
            raise BackupMismatchError(
                f"{where}: format version {version} is not supported (known: 1 to {self.version}). Install a newer "
                "keras-dist-callbacks; nothing was changed"
            )
        del fields["seal"]
        found: _T = checked(fields, self.schema, where)
        if version == self.version:  # then `encode` makes the same bytes again; the parser alone ignores double keys
            try:
                again = self.encode(found)
            except (ValueError, RecursionError) as error:
                raise DamagedBackupError(f"{where} has a value that this format does not allow: {error}") from error
            if again != content:
                raise DamagedBackupError(f"{where} has duplicate or unknown keys, or keys in another order")
        return found


def parse(content: bytes | memoryview, where: str, limit: int = MAX_RECORD_BYTES) -> Any:
    """JSON as plain values.

    Args:
        content: The text.
        where: What it is, for messages.
        limit: Bytes that it may have.

    Raises:
        DamagedBackupError: It is no JSON, nested too deep, or too long.
    """
    text = bytes(content)
    if len(text) > limit:
        raise DamagedBackupError(f"{where} has more than {limit} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedBackupError(f"{where} is not valid JSON: {type(error).__name__} {error}") from error


def read(storage: Storage, name: str, limit: int = MAX_RECORD_BYTES) -> bytes:
    """Returns the content of a record.

    Args:
        storage: The directory.
        name: The record's.
        limit: Bytes that it may have; no more are read, however long it is.

    Raises:
        FileNotFoundError: It was not found.
        DamagedBackupError: It is longer.
    """
    content = storage.read(name, 0, limit + 1)
    if len(content) > limit:
        raise DamagedBackupError(
            f"{storage.display(name)} has more than {limit} bytes, which is too large for this kind of file"
        )
    return content


def read_verified(storage: Storage, name: str, read: Callable[[], _T]) -> _T:
    """Returns what `read` returns, if necessary at its second call.

    Args:
        storage: Where it reads.
        name: The file.
        read: Reads and verifies it, each time from the store.

    Raises:
        DamagedBackupError: It failed verification twice.
    """
    try:
        return read()
    except DamagedBackupError as error:
        first = error
    storage.drop_cached(name)
    found = read()
    warn(
        f"{storage.display(name)}: two reads returned different content; the second one is intact and is used. Check "
        f"the storage, the network and the memory of this computer ({first})"
    )
    return found


def write(storage: Storage, name: str, content: bytes) -> None:
    """Puts a record in the place of the one that is there, if any."""
    with temporary.file_with([content], "record", f"the content of {storage.display(name)}") as file:
        storage.replace(name, file)


def checked(value: Any, kind: Any, where: str) -> Any:
    """`value` as what it must be.

    Args:
        value: Plain values, as `parse` returns them.
        kind: A type that msgspec knows: every field, range and pattern of it must fit.
        where: What it is, for messages.

    Raises:
        DamagedBackupError: It does not fit; the message says where in it.
    """
    try:
        return validation.convert(value, kind)
    except (ValueError, RecursionError) as error:  # msgspec's own is a ValueError; so is that of half a character
        raise DamagedBackupError(f"{where} is not valid in a backup: {error}") from error
