"""The record in a checkpoint file: what the file is, its order among others, and the digest of its content.

The record is a trailer: JSON, its length, and a magic number. In a `.keras` file the trailer is the comment of the zip
archive, in a `.weights.h5` file it follows the HDF5 data; Keras and h5py load both. One read of a file's last bytes
returns the record.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import xxhash

from keras_dist_callbacks.backups.record_io import Count, Digest, Format, Generation, Sequence, Token
from keras_dist_callbacks.backups.retention import Mode, Rules
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.base.validation import Some

EXTENSIONS = (".keras", ".weights.h5")
TAIL_BYTES = 8192
"""Bytes at a file's end that hold its record."""

INCOMPLETE = "it is incomplete, or another program rewrote it"
_MAX_BYTES = 4096
_MAGIC = b"KDCREC01"
_LENGTH = struct.Struct("<Q")
_FRAME = _LENGTH.size + len(_MAGIC)
_END_OF_ZIP = b"PK\x05\x06"
_END_OF_ZIP_BYTES = 22
_NO_COMMENT = b"\0\0"
_CHUNK = 16 * 2**20
_NO_DIGEST = "0" * 32

Name = Annotated[str, msgspec.Meta(min_length=1)]
Reader = Callable[[int, int], bytes]
"""Returns the bytes of a file from a first up to a second position, as far as there are any."""


@dataclass(frozen=True)
class CheckpointRecord:
    """What a checkpoint file contains about itself.

    Attributes:
        template: The `filepath` that the name was made from, without its directory.
        published_name: The name that the file was saved under; a copy may have another one.
        run_token: Distinguishes this training's files from those of others; restarts keep it.
        generation: Number of the run that wrote the file, counted by directory.
        sequence: Its position among the files of that run.
        epoch: Number of finished epochs.
        step: Optimizer steps taken.
        monitor: Name of the monitored quantity.
        value: Its value, if it was a finite number.
        best_only: Whether the file was saved because `value` was the best so far.
        size: Bytes before the record.
        digest: xxh3_128 of these, in hex.
        mode: Which values of `monitor` are better. Defaults to None: not known.
        max_to_keep: With `keep_best` and `keep_every` the rules of the run that wrote the file.
        keep_best: See there.
        keep_every: See there.
        finite: Whether no weight and no slot of the optimizer was NaN or infinite; None where nobody has looked.
    """

    template: Name
    published_name: Name
    run_token: Token
    generation: Generation
    sequence: Sequence
    epoch: Count
    step: Count
    monitor: str | None = None
    value: float | None = None
    best_only: bool = False
    size: Count = 0
    digest: Digest = _NO_DIGEST
    mode: Mode | None = None
    max_to_keep: Some | None = None
    keep_best: Some | None = None
    keep_every: Some | None = None
    finite: bool | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)  # JSON has no such numbers

    @property
    def order(self) -> tuple[int, int]:
        """What makes one checkpoint newer than another."""
        return (self.generation, self.sequence)

    @property
    def place(self) -> tuple[int, ...]:
        """What a restarted run trains again takes the place of what the run before it left of the same epoch."""
        return (self.epoch, -self.generation, self.sequence)

    @property
    def seconds(self) -> float:
        """For rules of time, of which checkpoints have none."""
        return 0.0

    @property
    def is_finite(self) -> bool:
        """Whether no NaN and no infinity is known of."""
        return self.finite is not False

    @property
    def rules(self) -> Rules:
        """What the run that wrote the file keeps."""
        return Rules(self.max_to_keep, self.keep_best, self.keep_every, self.monitor, self.mode or "min")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint file: its name in its directory, and the record in it."""

    name: str
    record: CheckpointRecord

    @property
    def is_original(self) -> bool:
        """Whether it has the name that it was saved under."""
        return self.name == self.record.published_name

    @property
    def order(self) -> tuple[int, int, bool]:
        """What makes one checkpoint newer than another; of equal ones the original comes first."""
        return (*self.record.order, self.is_original)

    @property
    def kind(self) -> str:
        """`"weights"` or `"model"`."""
        return kind_of(self.name)

    @property
    def file_size(self) -> int:
        """Bytes of the complete file."""
        return self.record.size + len(_trailer(self.record))


CHECKPOINT = Format(
    "keras_dist_callbacks checkpoint",
    1,
    CheckpointRecord,
    _MAX_BYTES,
    optional=("mode", "max_to_keep", "keep_best", "keep_every", "finite"),
)


def kind_of(name: str) -> str:
    """`"weights"` or `"model"`, by the extension of a file's name."""
    return "weights" if name.endswith(".weights.h5") else "model"


def append_record(path: Path, record: CheckpointRecord) -> CheckpointRecord:
    """Writes a record into a local file that Keras has saved, in place of the one that it may have.

    Args:
        path: The file.
        record: Its record; size and digest are filled in here.

    Returns:
        The record with size and digest.

    Raises:
        ValueError: A `.keras` file is not a zip archive, or has a comment.
    """
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        earlier = parse_tail(_reader(file)(max(0, end - TAIL_BYTES), end), path.name)
        if earlier is not None:
            end = file.truncate(earlier.size)
        record = dataclasses.replace(record, size=end, digest=_NO_DIGEST)
        length = len(_trailer(record))  # every digest has the same length
        if kind_of(path.name) == "model":
            _write_comment_length(file, path.name, length, has_comment=earlier is not None)
        record = dataclasses.replace(record, digest=digest_of(_reader(file), end))
        file.seek(0, os.SEEK_END)
        file.write(_trailer(record))
    return record


def parse_tail(tail: bytes, where: str) -> CheckpointRecord | None:
    """Returns the record in the last `TAIL_BYTES` of a file, or None if they hold none.

    Args:
        tail: The bytes; all of a shorter file.
        where: The file, for messages.

    Raises:
        DamagedBackupError: The record is not as it was written.
        BackupMismatchError: A newer version of this package wrote it.
    """
    if len(tail) < _FRAME or not tail.endswith(_MAGIC):
        return None
    (length,) = _LENGTH.unpack(tail[-_FRAME : -len(_MAGIC)])
    if not 0 < length <= min(_MAX_BYTES, len(tail) - _FRAME):
        raise DamagedBackupError(f"{where}: the length of its record is damaged")
    return CHECKPOINT.decode(tail[-_FRAME - length : -_FRAME], f"the record of {where}")


def read_verified_record(size: int, read: Reader, where: str) -> CheckpointRecord:
    """Returns the record of a file whose content was read and compared with the digest in it.

    Args:
        size: Bytes of the file.
        read: Reads it.
        where: The file, for messages.

    Raises:
        DamagedBackupError: The file has no record, or its content differs from the record.
        BackupMismatchError: A newer version of this package wrote it.
    """
    record = read_record(size, read, where)
    if record is None:
        raise DamagedBackupError(f"{where} has no record: {INCOMPLETE}")
    if digest_of(read, record.size) != record.digest:
        raise DamagedBackupError(f"{where}: its content differs from the digest in its record")
    return record


def read_local(path: Path, where: str) -> CheckpointRecord:
    """As `read_verified_record`, of a local file."""
    with open(path, "rb") as file:
        return read_verified_record(file.seek(0, os.SEEK_END), _reader(file), where)


def read_record(size: int, read: Reader, where: str) -> CheckpointRecord | None:
    """Returns the record of a file, whose other content is not read; None if it has none.

    Args:
        size: Bytes of the file.
        read: Reads it.
        where: The file, for messages.

    Raises:
        DamagedBackupError: The record is not as it was written, or says another size.
        BackupMismatchError: A newer version of this package wrote it.
    """
    record = parse_tail(read(max(0, size - TAIL_BYTES), size), where)
    if record is not None:
        expected = record.size + len(_trailer(record))
        if size != expected:
            raise DamagedBackupError(f"{where} has {size} bytes, but its record has {expected}")
    return record


def digest_of(read: Reader, size: int) -> str:
    """xxh3_128 of the first `size` bytes, in hex."""
    hasher = xxhash.xxh3_128()
    for start in range(0, size, _CHUNK):
        hasher.update(read(start, min(size, start + _CHUNK)))
    return hasher.hexdigest()


def _trailer(record: CheckpointRecord) -> bytes:
    content = CHECKPOINT.encode(record)
    return content + _LENGTH.pack(len(content)) + _MAGIC


def _write_comment_length(file: BinaryIO, name: str, length: int, *, has_comment: bool) -> None:
    """Writes the length of the comment that will follow into the last structure of a zip archive."""
    file.seek(-_END_OF_ZIP_BYTES, os.SEEK_END)
    end = file.read()
    if not end.startswith(_END_OF_ZIP) or not (has_comment or end.endswith(_NO_COMMENT)):
        raise ValueError(f"{name} does not end like a zip archive without a comment")
    file.seek(-len(_NO_COMMENT), os.SEEK_END)
    file.write(struct.pack("<H", length))


def _reader(file: BinaryIO) -> Reader:
    def read(start: int, end: int) -> bytes:
        file.seek(start)
        return file.read(end - start)

    return read
