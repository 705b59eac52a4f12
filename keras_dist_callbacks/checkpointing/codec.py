"""Snapshot to blobs and manifest, and back. Pure: nothing here touches a store.

A blob is a safetensors file, so that plain `safetensors` and numpy can read the weights of a backup. Its
header is written here instead of by the library because the library would first join all tensors in memory
while it holds the GIL; reading goes through the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash
from safetensors import SafetensorError, deserialize

from keras_dist_callbacks.checkpointing.snapshot import (
    BlobInfo,
    CommitId,
    HeldTensor,
    Manifest,
    Position,
    TensorInfo,
    WorkerRecord,
)
from keras_dist_callbacks.errors import BackupMismatchError, DamagedBackupError

FORMAT_VERSION = 1
FORMAT_NAME = "keras_dist_callbacks backup"
BLOB_BYTES = 64 * 2**20
_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


@dataclass(frozen=True)
class Blob:
    """A safetensors file that is not written yet: its place, and its content in pieces."""

    info: BlobInfo
    parts: tuple[memoryview | bytes, ...]


def raw_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The array's bytes without a copy where it is contiguous; any dtype, bfloat16 too."""
    view: memoryview = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return view


def hash_array(array: np.ndarray[Any, Any]) -> str:
    """xxh3_128 of the array's bytes, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(raw_bytes(array))


def encode_blob(tensors: Mapping[str, np.ndarray[Any, Any]], directory: str) -> Blob:
    """Packs tensors into one safetensors file below `directory`, named after its content."""
    header: dict[str, Any] = {}
    offset = 0
    for name, array in tensors.items():
        known = _DTYPES.get(array.dtype.name)
        header[name] = {
            "dtype": known or "U8",  # the manifest holds the true type and shape
            "shape": list(array.shape) if known else [array.nbytes],
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts: tuple[memoryview | bytes, ...] = (
        len(text).to_bytes(8, "little") + text,
        *(raw_bytes(array) for array in tensors.values()),
    )
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    size = sum(len(part) for part in parts)
    return Blob(BlobInfo(f"{directory}/{digest.hexdigest()}.safetensors", size, digest.hexdigest()), parts)


def decode_blob(content: bytes, tensors: Mapping[str, TensorInfo], where: str) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a blob, each checked against its hash.

    Args:
        content: The file.
        tensors: What to take out of it: the name to return it under, and what the manifest says.
        where: The blob's path, for messages.

    Raises:
        DamagedBackupError: The content is not what the manifest says.
    """
    try:
        found = {name: bytes(item["data"]) for name, item in deserialize(content)}  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise DamagedBackupError(f"{where} is no safetensors file: {error}") from error
    result = {}
    for name, info in tensors.items():
        data = found.get(info.key)
        if data is None or xxhash.xxh3_128_hexdigest(data) != info.hash:
            raise DamagedBackupError(f"{where}: the tensor {info.key!r} is missing or differs from its hash")
        result[name] = np.frombuffer(data, dtype=dtype_of(info.dtype)).reshape(info.shape)
    return result


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of that name, those of TensorFlow such as bfloat16 included."""
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype


class Fingerprint(NamedTuple):
    """What makes two tensors the same."""

    hash: str
    dtype: str
    shape: tuple[int, ...]


def fingerprints(tensors: Mapping[str, HeldTensor]) -> dict[str, Fingerprint]:
    """The fingerprint of each tensor."""
    found = {}
    for name, held in tensors.items():
        array = held.array()
        found[name] = Fingerprint(hash_array(array), array.dtype.name, tuple(array.shape))
    return found


class Packer:
    """Decides which tensors of a commit are written anew, and which are found in earlier blobs.

    A tensor with the same content as one in the commit it is compared with is referred to, not written again;
    components of a variable that are equal on all replicas are written once.
    """

    def __init__(self, known: Mapping[str, TensorInfo], directory: str) -> None:
        self._places = {Fingerprint(t.hash, t.dtype, t.shape): t for t in known.values()}
        self._directory = directory

    def pack(
        self, tensors: Mapping[str, HeldTensor], prints: Mapping[str, Fingerprint], prefix: str = ""
    ) -> Iterator[Blob]:
        """Yields the blobs that must be written, a few tensors at a time."""
        group: dict[str, np.ndarray[Any, Any]] = {}
        pending: dict[Fingerprint, str] = {}
        size = 0
        for name, held in tensors.items():
            if prints[name] in self._places or prints[name] in pending:
                continue
            array = held.array()
            if group and size + array.nbytes > BLOB_BYTES:
                yield self._seal(group, pending)
                group, pending, size = {}, {}, 0
            group[prefix + name], pending[prints[name]] = array, prefix + name
            size += array.nbytes
        if group:
            yield self._seal(group, pending)

    def locate(self, prints: Mapping[str, Fingerprint]) -> dict[str, TensorInfo]:
        """Where each tensor is found, once all blobs of `pack` were taken."""
        return {name: self._places[fingerprint] for name, fingerprint in prints.items()}

    def _seal(self, group: dict[str, np.ndarray[Any, Any]], pending: dict[Fingerprint, str]) -> Blob:
        blob = encode_blob(group, self._directory)
        for fingerprint, key in pending.items():
            self._places[fingerprint] = TensorInfo(blob.info.path, key, *fingerprint[1:], fingerprint.hash)
        return blob


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON, sealed with its own digest."""
    body = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "id": asdict(manifest.id),
        "position": asdict(manifest.position),
        "blobs": [asdict(blob) for blob in manifest.blobs],
        "workers": [
            {"tensors": {n: asdict(t) for n, t in record.tensors.items()}, "state": dict(record.state)}
            for record in manifest.workers
        ],
        "info": dict(manifest.info),
    }
    return json.dumps({"digest": _digest(body), "manifest": body}, separators=(",", ":")).encode()


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Reads and checks a manifest.

    Raises:
        DamagedBackupError: It is not what was written.
        BackupMismatchError: A newer version of this package wrote it.
    """
    try:
        sealed = json.loads(content)
        body = sealed["manifest"]
        intact = sealed["digest"] == _digest(body) and body["format"] == FORMAT_NAME
        version = body["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedBackupError(f"{where} is no manifest: {type(error).__name__} {error}") from error
    if not intact:
        raise DamagedBackupError(f"{where}: the manifest differs from its own digest")
    if version > FORMAT_VERSION:
        raise BackupMismatchError(
            f"{where} has format version {version}; this keras-dist-callbacks reads up to {FORMAT_VERSION}: upgrade it "
            "(nothing was changed)"
        )
    return Manifest(
        CommitId(**body["id"]),
        Position(**body["position"]),
        tuple(BlobInfo(**blob) for blob in body["blobs"]),
        tuple(_record(record) for record in body["workers"]),
        body["info"],
    )


def _record(body: Mapping[str, Any]) -> WorkerRecord:
    return WorkerRecord(
        {name: TensorInfo(**{**info, "shape": tuple(info["shape"])}) for name, info in body["tensors"].items()},
        body["state"],
    )


def _digest(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(text)}"


def referenced_blobs(records: Sequence[WorkerRecord], known: Mapping[str, BlobInfo]) -> tuple[BlobInfo, ...]:
    """Each blob that the records name, once, sorted by path."""
    paths = {info.blob for record in records for info in record.tensors.values()}
    return tuple(known[path] for path in sorted(paths))
