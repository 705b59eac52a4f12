"""A manifest as bytes: JSON that is sealed with the digest of its own text. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import xxhash

from keras_dist_callbacks.backups.codec import dtype_of
from keras_dist_callbacks.backups.snapshot import (
    BlobInfo,
    CommitId,
    Manifest,
    Position,
    TensorInfo,
    WorkerRecord,
)
from keras_dist_callbacks.errors import BackupMismatchError, DamagedBackupError

FORMAT_VERSION = 1
FORMAT_NAME = "keras_dist_callbacks backup"
_SEALED = re.compile(rb'\{"digest":"xxh3_128:([0-9a-f]{32})","manifest":')
_BLOB_PATH = re.compile(r"blobs/\d+/[0-9a-f]{32}\.safetensors")


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON, sealed with its own digest."""
    body = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "id": asdict(manifest.id),
        "position": asdict(manifest.position),
        "blobs": [asdict(blob) for blob in manifest.blobs],
        "workers": [
            {"tensors": {n: dict(vars(t)) for n, t in record.tensors.items()}, "state": dict(record.state)}
            for record in manifest.workers
        ],
        "info": dict(manifest.info),
    }
    text = json.dumps(body, separators=(",", ":")).encode()
    digest = xxhash.xxh3_128_hexdigest(text)
    return b"".join([b'{"digest":"xxh3_128:', digest.encode(), b'","manifest":', text, b"}"])


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Reads and checks a manifest.

    Args:
        content: The file.
        where: Its path, for messages.

    Raises:
        DamagedBackupError: It is not what was written, or names what no backup may name.
        BackupMismatchError: A newer version of this package wrote it.
    """
    body = _unseal(content, where)
    if body["version"] > FORMAT_VERSION:
        raise BackupMismatchError(
            f"{where} has format version {body['version']}; this keras-dist-callbacks reads up to {FORMAT_VERSION}: "
            "upgrade it (nothing was changed)"
        )
    try:
        manifest = Manifest(
            CommitId(**body["id"]),
            Position(**body["position"]),
            tuple(BlobInfo(**blob) for blob in body["blobs"]),
            tuple(_record(record) for record in body["workers"]),
            body["info"],
        )
        _check(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedBackupError(f"{where} is no manifest: {type(error).__name__} {error}") from error
    return manifest


def tensor_bytes(info: TensorInfo) -> int:
    """How many bytes a tensor has, by its type and shape."""
    return math.prod(info.shape) * dtype_of(info.dtype).itemsize


def _unseal(content: bytes, where: str) -> dict[str, Any]:
    seal = _SEALED.match(content)
    if seal is None or not content.endswith(b"}"):
        raise DamagedBackupError(f"{where} is no manifest: {'it is empty' if not content else 'its frame is broken'}")
    text = memoryview(content)[seal.end() : -1]
    if xxhash.xxh3_128_hexdigest(text) != seal.group(1).decode():
        raise DamagedBackupError(f"{where}: the manifest differs from its own digest")
    try:
        body = json.loads(bytes(text))
        known = body["format"] == FORMAT_NAME and isinstance(body["version"], int)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedBackupError(f"{where} is no manifest: {type(error).__name__} {error}") from error
    if not known:
        raise DamagedBackupError(f"{where} is the manifest of something else")
    return dict(body)


def _record(body: Mapping[str, Any]) -> WorkerRecord:
    return WorkerRecord(
        {name: TensorInfo(**{**info, "shape": tuple(info["shape"])}) for name, info in body["tensors"].items()},
        body["state"],
    )


def _check(manifest: Manifest) -> None:
    """A seal proves that nothing was changed by accident; this, that nothing leads outside or beyond a blob."""
    blobs = {blob.path: blob for blob in manifest.blobs}
    for blob in manifest.blobs:
        if not _BLOB_PATH.fullmatch(blob.path):
            raise ValueError(f"the blob name {blob.path!r} is not one that a backup writes")
        if not 0 <= blob.header_size <= blob.size:
            raise ValueError(f"{blob.path}: a header of {blob.header_size} bytes in a blob of {blob.size}")
    for record in manifest.workers:
        for name, info in record.tensors.items():
            if info.blob not in blobs:
                raise ValueError(f"the tensor {name!r} is in {info.blob!r}, which is not listed among the blobs")
            if min(info.shape, default=0) < 0:
                raise ValueError(f"the tensor {name!r} has the shape {info.shape}")
            blob = blobs[info.blob]
            if not blob.header_size <= info.start <= info.start + tensor_bytes(info) <= blob.size:
                raise ValueError(f"the tensor {name!r} reaches beyond its blob {info.blob}")
