"""Tensors out of blobs: read in parallel, straight into the memory that will hold them, and verified.

Nothing is allocated before the store has said that the blobs are as long as the manifest claims.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from keras_dist_callbacks.backups.packing import dtype_of, raw_bytes, tensor_bytes
from keras_dist_callbacks.backups.record_io import read_verified
from keras_dist_callbacks.backups.snapshot import BlobInfo, TensorInfo
from keras_dist_callbacks.base.errors import BackupError, DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray[Any, Any]]
"""Makes the array that a large tensor is read into."""

_ALIGNMENT = 64
_LARGE = 2**20
_REQUEST_BYTES = 64 * 2**20
_LOCAL_READERS = min(4, os.cpu_count() or 1)
_REMOTE_READERS = 8


@dataclass
class _Range:
    """A range of a blob that is read at once, and the tensors that lie in it."""

    blob: str
    start: int
    end: int
    tensors: list[tuple[str, TensorInfo]]

    @property
    def size(self) -> int:
        return self.end - self.start


def stored_sizes(storage: Storage, blobs: Iterable[BlobInfo]) -> dict[str, int]:
    """Returns the sizes of all that is stored in the directories of blobs, by path."""
    directories = {blob.path.rpartition("/")[0] for blob in blobs}
    return {f"{directory}/{f.name}": f.size for directory in directories for f in storage.files(directory)}


def check_sizes(storage: Storage, blobs: Collection[BlobInfo], stored: Mapping[str, int] | None = None) -> None:
    """Makes sure that the store holds each blob, as long as it should be.

    Args:
        storage: The backup directory.
        blobs: The blobs.
        stored: Sizes of what is stored. Defaults to what the store says now.

    Raises:
        DamagedBackupError: One is missing, or has another length.
    """
    wanted = {blob.path: blob.size for blob in blobs}
    found = stored_sizes(storage, blobs) if stored is None else stored
    for path, size in sorted(wanted.items()):
        if found.get(path) != size:
            actual = f"is {found[path]} bytes long instead of {size}" if path in found else "is missing"
            raise DamagedBackupError(f"{storage.display(path)} {actual}")


def read_tensors(
    storage: Storage,
    tensors: Mapping[str, TensorInfo],
    blobs: Mapping[str, BlobInfo],
    allocate: Allocate | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Reads tensors and checks each against its hash.

    Args:
        storage: The backup directory.
        tensors: What to read, by the name to return it under.
        blobs: What the manifest says of the blobs, by path.
        allocate: Where large tensors get their memory. Defaults to numpy.

    Raises:
        DamagedBackupError: A blob is missing, or differs from what the manifest says.
        BackupError: The tensors do not fit into memory.
    """
    needed = [blobs[path] for path in sorted({info.blob for info in tensors.values()})]
    _check_blobs(storage, needed)
    found: dict[str, np.ndarray[Any, Any]] = {}
    # Equal tensors lie in the same place, such as what a variable holds on each replica: read once, they share memory.
    places = {name: (info.blob, info.start, info.dtype, info.shape) for name, info in tensors.items()}
    first = {place: name for name, place in reversed(places.items())}
    runs = _runs({name: tensors[name] for name in first.values()}, storage.is_local or allocate is not None)

    def read(run: _Range) -> dict[str, np.ndarray[Any, Any]]:
        return read_verified(storage, run.blob, lambda: _read_run(storage, run, allocate))

    for arrays in _in_parallel(storage, read, runs):
        found.update(arrays)
    return {name: found[first[place]] for name, place in places.items()}


def verify_tensors(storage: Storage, tensors: Iterable[TensorInfo], blobs: Iterable[BlobInfo]) -> None:
    """Checks tensors and headers against their hashes without keeping them.

    Raises:
        DamagedBackupError: Something is missing, or differs from what the manifest says.
    """
    needed = list(blobs)
    unique = {f"{info.blob} {info.start} {info.hash}": info for info in tensors}
    _check_blobs(storage, needed)

    def verify(run: _Range) -> None:
        read_verified(storage, run.blob, lambda: _verify_run(storage, run))

    for _ in _in_parallel(storage, verify, _runs(unique, separate=False)):
        pass


def _in_parallel(storage: Storage, work: Any, items: Sequence[Any]) -> Iterator[Any]:
    readers = _LOCAL_READERS if storage.is_local else _REMOTE_READERS
    if len(items) < 2 or readers < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(readers, thread_name_prefix="kdc-read") as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _runs(tensors: Mapping[str, TensorInfo], separate: bool) -> list[_Range]:
    """Joins neighbouring tensors into one request; with `separate`, large ones get memory of their own."""
    by_blob: dict[str, list[tuple[str, TensorInfo]]] = {}
    for name, info in tensors.items():
        by_blob.setdefault(info.blob, []).append((name, info))
    found: list[_Range] = []
    for blob, members in by_blob.items():
        last = None  # the range that the next tensor may join
        for name, info in sorted(members, key=lambda member: member[1].start):
            end = info.start + tensor_bytes(info)
            apart = separate and end - info.start >= _LARGE
            if last is None or apart or info.start > last.end or end - last.start > _REQUEST_BYTES:
                last = _Range(blob, info.start, end, [(name, info)])
                found.append(last)
            else:
                last.tensors.append((name, info))
                last.end = max(last.end, end)
            if apart:
                last = None
    return found


def _read_run(storage: Storage, run: _Range, allocate: Allocate | None = None) -> dict[str, np.ndarray[Any, Any]]:
    if allocate is not None and run.size >= _LARGE and len(run.tensors) == 1:
        ((name, info),) = run.tensors  # straight into the memory that is going to hold it
        array = _or_out_of_memory(lambda: allocate(info.shape, dtype_of(info.dtype)), storage, run)
        memory = raw_bytes(array)
        _fill(storage, run.blob, run.start, memory)
        _check(storage, info, memory)
        return {name: array}
    buffer = _or_out_of_memory(lambda: _aligned(run.size), storage, run)
    _fill(storage, run.blob, run.start, buffer.data)
    arrays = {}  # views of the buffer, which lives as long as one of them
    for name, info in run.tensors:
        offset = info.start - run.start
        content = buffer[offset : offset + tensor_bytes(info)]
        _check(storage, info, content.data)
        arrays[name] = content.view(dtype_of(info.dtype)).reshape(info.shape)
    return arrays


def _verify_run(storage: Storage, run: _Range) -> None:
    if run.size <= _REQUEST_BYTES:
        _read_run(storage, run)
        return
    ((_, info),) = run.tensors  # nothing else joins a run of that size
    buffer = _aligned(_REQUEST_BYTES).data
    hasher = xxhash.xxh3_128()
    for offset in range(0, run.size, _REQUEST_BYTES):
        piece = buffer[: min(_REQUEST_BYTES, run.size - offset)]
        _fill(storage, run.blob, run.start + offset, piece)
        hasher.update(piece)
    if hasher.hexdigest() != info.hash:
        raise _differs(storage, info)


def _check_blobs(storage: Storage, blobs: Sequence[BlobInfo]) -> None:
    """Makes sure that each is there, as long as it should be, and has its header."""
    check_sizes(storage, blobs)

    def check(blob: BlobInfo) -> None:
        buffer = _aligned(blob.header_size)
        _fill(storage, blob.path, 0, buffer.data)
        if xxhash.xxh3_128_hexdigest(buffer.data) != blob.header_hash:
            raise DamagedBackupError(f"{storage.display(blob.path)}: the header differs from its hash")

    for _ in _in_parallel(storage, lambda blob: read_verified(storage, blob.path, lambda: check(blob)), blobs):
        pass


def _fill(storage: Storage, path: str, start: int, buffer: memoryview) -> None:
    try:
        for offset in range(0, len(buffer), _REQUEST_BYTES):
            storage.read_into(path, start + offset, buffer[offset : offset + _REQUEST_BYTES])
    except FileNotFoundError as error:
        raise DamagedBackupError(f"{storage.display(path)} is missing") from error


def _check(storage: Storage, info: TensorInfo, content: memoryview) -> None:
    if xxhash.xxh3_128_hexdigest(content) != info.hash:
        raise _differs(storage, info)


def _aligned(size: int) -> np.ndarray[Any, Any]:
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % _ALIGNMENT
    return memory[skip : skip + size]


def _or_out_of_memory(make: Callable[[], np.ndarray[Any, Any]], storage: Storage, run: _Range) -> np.ndarray[Any, Any]:
    try:
        return make()
    except MemoryError as error:
        where = storage.display(run.blob)
        raise BackupError(f"{where}: not enough memory to read {run.size} bytes of it") from error


def _differs(storage: Storage, info: TensorInfo) -> DamagedBackupError:
    return DamagedBackupError(f"{storage.display(info.blob)}: the tensor {info.key!r} differs from its hash")
