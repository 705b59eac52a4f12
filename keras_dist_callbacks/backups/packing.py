"""Blobs: how the tensors of a snapshot are packed into files, and by which digests they are known."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from keras_dist_callbacks.backups.record_io import Count, Digest
from keras_dist_callbacks.backups.snapshot import BlobInfo, SharedTensor, TensorInfo, WorkerRecord

BLOB_BYTES = 64 * 2**20
_WORTH_KEEPING = 0.5
_PIECE = 2**18  # bytes that are hashed at once while they are written: they fit into the processor's cache


class Packer:
    """Decides which tensors of a commit are written, and which are found in earlier blobs.

    A tensor with the same content as one in the commit it is compared with is referred to, not written again;
    components of a variable that are equal on all replicas are written once. A blob of which less than half is
    still needed is not referred to: what is needed of it is written again, so that the store does not fill up with
    blobs that live for one small tensor each. A tensor without a fingerprint is written, and gets one on the way.

    Attributes:
        found: The fingerprints of tensors that had none, by their names, once their blobs were written.
    """

    def __init__(
        self,
        known: Mapping[str, TensorInfo],
        directory: str,
        sizes: Mapping[str, int] | None = None,
        copy: int = 0,
    ) -> None:
        """Prepares one commit.

        Args:
            known: Tensors that may be referred to.
            directory: Where new blobs will be.
            sizes: Bytes of the blobs that `known` names. Defaults to none: any blob is worth referring to.
            copy: Blobs of packers with different numbers are different files, whatever they hold.
        """
        self._known = {Fingerprint(t.hash, t.dtype, t.shape): t for t in known.values()}
        self._places: dict[Fingerprint, TensorInfo] = {}
        self.found: dict[str, Fingerprint] = {}
        self._directory = directory
        self._sizes = sizes or {}
        self._copy = copy

    def pack(
        self, tensors: Mapping[str, SharedTensor], prints: Mapping[str, Fingerprint], prefix: str = ""
    ) -> Iterator[Blob]:
        """Yields the blobs that must be written, a few tensors at a time.

        One that is not hashed must be written before the next one is asked for.

        Args:
            tensors: What is to be found, by name.
            prints: Their fingerprints; only of a local directory's tensors without a prefix may some have none.
            prefix: Of their names in blobs.
        """
        fresh, moved = self._to_write(tensors, prints)
        for names in (moved, fresh):  # apart: what did not change now is likely to stay
            yield from self._pack(names, tensors, prints, prefix)

    def bytes_to_write(self, tensors: Mapping[str, SharedTensor], prints: Mapping[str, Fingerprint]) -> int:
        """About how many bytes `pack` will yield, before it is called."""
        fresh = {prints.get(name, name): name for name in tensors if prints.get(name) not in self._known}
        return sum(tensors[name].array().nbytes for name in fresh.values())

    def locate(self, tensors: Iterable[str], prints: Mapping[str, Fingerprint]) -> dict[str, TensorInfo]:
        """Where each tensor is found, once all blobs of `pack` were written."""
        return {name: self._places[prints.get(name) or self.found[name]] for name in tensors}

    def _to_write(
        self, tensors: Mapping[str, SharedTensor], prints: Mapping[str, Fingerprint]
    ) -> tuple[list[str], list[str]]:
        """The names of tensors whose content is not in the store, and of those that are moved to a new blob."""
        fresh: dict[Fingerprint | str, str] = {}
        found: dict[Fingerprint, str] = {}
        for name in tensors:
            fingerprint = prints.get(name)
            if fingerprint is None:
                fresh[name] = name
            elif fingerprint not in self._places:  # else another worker, or replica, has the same content
                (found if fingerprint in self._known else fresh).setdefault(fingerprint, name)
        live: dict[str, int] = {}  # bytes of each earlier blob that are still needed
        for fingerprint, name in found.items():
            blob = self._known[fingerprint].blob
            live[blob] = live.get(blob, 0) + tensors[name].array().nbytes
        moved = []
        for fingerprint, name in found.items():
            place = self._known[fingerprint]
            if live[place.blob] < _WORTH_KEEPING * self._sizes.get(place.blob, 0):
                moved.append(name)
            else:
                self._places[fingerprint] = place
        return list(fresh.values()), moved

    def _pack(
        self, names: Sequence[str], tensors: Mapping[str, SharedTensor], prints: Mapping[str, Fingerprint], prefix: str
    ) -> Iterator[Blob]:
        group: dict[str, np.ndarray[Any, Any]] = {}
        size = 0
        for name in names:
            array = tensors[name].array()
            if group and size + array.nbytes > BLOB_BYTES:
                yield from self._packed(group, prints, prefix)
                group, size = {}, 0
            group[name] = array
            size += array.nbytes
        if group:
            yield from self._packed(group, prints, prefix)

    def _packed(
        self, group: Mapping[str, np.ndarray[Any, Any]], prints: Mapping[str, Fingerprint], prefix: str
    ) -> Iterator[Blob]:
        known = {prefix + name: prints[name] for name in group if name in prints}
        blob = Blob({prefix + name: array for name, array in group.items()}, known, self._directory, self._copy)
        if blob.is_hashed:  # it may be uploaded next to others
            self._note_places(blob)
            yield blob
        else:
            yield blob
            self._note_places(blob)
            self.found |= blob.found

    def _note_places(self, blob: Blob) -> None:
        for key, found in blob.prints.items():
            place = TensorInfo(blob.info.path, key, blob.starts[key], found.dtype, found.shape, found.hash)
            self._places[found] = place


def referenced_blobs(records: Sequence[WorkerRecord], known: Mapping[str, BlobInfo]) -> tuple[BlobInfo, ...]:
    """Returns each blob that the records name, once, sorted by path."""
    paths = {info.blob for record in records for info in record.tensors.values()}
    return tuple(known[path] for path in sorted(paths))


_DTYPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_SHOWN = 40
_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


class Fingerprint(NamedTuple):
    """What makes two tensors the same."""

    hash: Digest
    dtype: str
    shape: tuple[Count, ...]


class Blob:
    """A safetensors file that is not written yet, named after its content: its pieces, as often as they are read.

    A tensor without a fingerprint is hashed piece by piece while it is read, just before a piece is copied: the second
    one of the two then finds it in the processor's cache.

    Args:
        tensors: What goes into it, by name.
        prints: The fingerprints that are known.
        directory: Where it will be.
        copy: Blobs with the same content and another number have another name.

    Attributes:
        size: Bytes of it.
        starts: Where each tensor begins in it, by name.
        found: The fingerprints of the other tensors, once it was read.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray[Any, Any]],
        prints: Mapping[str, Fingerprint],
        directory: str,
        copy: int = 0,
    ) -> None:
        self._tensors, self._known, self._directory, self._copy = tensors, prints, directory, copy
        self._head = _head(tensors)
        ends = list(itertools.accumulate((array.nbytes for array in tensors.values()), initial=len(self._head)))
        self.size = ends[-1]
        self.starts: Mapping[str, int] = dict(zip(tensors, ends, strict=False))
        self.found: dict[str, Fingerprint] = {}

    def __iter__(self) -> Iterator[memoryview | bytes]:
        yield self._head
        for name, array in self._tensors.items():
            raw = raw_bytes(array)
            if name in self._known:
                yield raw
                continue
            digest = xxhash.xxh3_128()
            for start in range(0, len(raw), _PIECE):
                piece = raw[start : start + _PIECE]
                digest.update(piece)
                yield piece
            self.found[name] = Fingerprint(digest.hexdigest(), dtype_name(array.dtype), tuple(array.shape))

    @property
    def is_hashed(self) -> bool:
        """Whether its name is known before it is read."""
        return len(self._known) == len(self._tensors)

    @property
    def prints(self) -> dict[str, Fingerprint]:
        """The fingerprint of each tensor."""
        return {name: self._known.get(name) or self.found[name] for name in self._tensors}

    @functools.cached_property
    def info(self) -> BlobInfo:
        """Its place and size."""
        hashes = "".join(found.hash for found in self.prints.values())
        name = xxhash.xxh3_128_hexdigest(self._head + hashes.encode(), seed=self._copy)
        return BlobInfo(self._path(name), self.size, len(self._head), xxhash.xxh3_128_hexdigest(self._head))

    @property
    def like(self) -> str:
        """A path as it may have."""
        return self._path("0" * 32)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}.safetensors"


def raw_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Returns the array's bytes without a copy where it is contiguous; any dtype, bfloat16 too."""
    view: memoryview = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return view


def hash_array(array: np.ndarray[Any, Any]) -> str:
    """xxh3_128 of the array's bytes, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(raw_bytes(array))


def fingerprints(tensors: Mapping[str, SharedTensor]) -> dict[str, Fingerprint]:
    """Returns the fingerprint of each tensor."""
    found = {}
    for name, held in tensors.items():
        array = held.array()
        found[name] = Fingerprint(hash_array(array), dtype_name(array.dtype), tuple(array.shape))
    return found


@functools.lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the name of a type; numpy builds it again each time."""
    return dtype.name


@functools.lru_cache(maxsize=64)
def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the numeric type of that name, those of TensorFlow such as bfloat16 included.

    Raises:
        ValueError: The type is unknown.
    """
    if not _DTYPE_NAME.fullmatch(name):
        raise ValueError(f"unknown type {name[:_SHOWN]!r}")
    try:
        dtype: np.dtype[Any] = np.dtype(name)
        numeric = dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)  # ml_dtypes', if imported
    except TypeError:
        import ml_dtypes

        scalar = getattr(ml_dtypes, name, None)
        numeric = isinstance(scalar, type) and issubclass(scalar, np.generic)
        dtype = np.dtype(scalar) if numeric else np.dtype("void")
    if not numeric or dtype.name != name:
        raise ValueError(f"unknown numeric type {name!r}")
    return dtype


def tensor_bytes(info: TensorInfo | Fingerprint) -> int:
    """Returns how many bytes a tensor has, by its type and shape."""
    return math.prod(info.shape) * dtype_of(info.dtype).itemsize


def _head(tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    header: dict[str, Any] = {}
    offset = 0
    for name, array in tensors.items():
        known = _DTYPES.get(dtype_name(array.dtype))
        header[name] = {
            "dtype": known or "U8",  # the manifest holds the true type and shape
            "shape": list(array.shape) if known else [array.nbytes],
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)  # so that tensors begin where vector instructions like them to
    return len(text).to_bytes(8, "little") + text
