"""A manifest as bytes: JSON that is sealed with the digest of its own text. Pure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import xxhash

from keras_dist_callbacks.backups.codec import tensor_bytes
from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.backups.records import MAX_MANIFEST_BYTES, checked, parse
from keras_dist_callbacks.backups.snapshot import BlobInfo, Manifest, Position, TensorInfo
from keras_dist_callbacks.backups.topics import Info, check_complete, check_topics
from keras_dist_callbacks.errors import BackupMismatchError, DamagedBackupError

FORMAT_VERSION = 1
FORMAT_NAME = "keras_dist_callbacks backup"
_SEALED = re.compile(rb'\{"digest":"xxh3_128:([0-9a-f]{32})","manifest":')
_VARIABLE = re.compile(r"variable/.+@[0-9]{1,6}", re.DOTALL)


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


def decode_manifest(content: bytes, where: str, limit: int = MAX_MANIFEST_BYTES) -> Manifest:
    """Reads and checks a manifest.

    Args:
        content: The file.
        where: Its path, for messages.
        limit: Bytes that it may have.

    Raises:
        DamagedBackupError: It is not what was written, or names what no backup may name.
        BackupMismatchError: A newer version of this package wrote it.
    """
    body = _unseal(content, where, limit)
    _check_version(body.pop("version", None), where)
    manifest: Manifest = checked(body, Manifest, where)
    try:
        if encode_manifest(manifest) != content:
            raise ValueError("it is not written as a backup writes it: keys that are double, unknown or out of order")
        _check_places(manifest)
    except (ValueError, RecursionError) as error:
        raise DamagedBackupError(f"{where} is no manifest: {error}") from error
    check_workers(manifest, where)
    return manifest


def _unseal(content: bytes, where: str, limit: int) -> dict[str, Any]:
    seal = _SEALED.match(content)
    if seal is None or not content.endswith(b"}"):
        raise DamagedBackupError(f"{where} is no manifest: {'it is empty' if not content else 'its frame is broken'}")
    text = memoryview(content)[seal.end() : -1]
    if xxhash.xxh3_128_hexdigest(text) != seal.group(1).decode():
        raise DamagedBackupError(f"{where}: the manifest differs from its own digest")
    body = parse(text, where, limit)
    if not isinstance(body, dict) or body.pop("format", None) != FORMAT_NAME:
        raise DamagedBackupError(f"{where} is the manifest of something else")
    return body


def _check_version(version: object, where: str) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedBackupError(f"{where} has the format version {version!r}, which is none")
    if version > FORMAT_VERSION:
        raise BackupMismatchError(
            f"{where} has format version {version}; this keras-dist-callbacks reads up to {FORMAT_VERSION}: "
            "upgrade it (nothing was changed)"
        )


def check_workers(manifest: Manifest, where: str) -> None:
    """Makes sure that all is there that a worker needs to go on, and nothing that this version would not put back.

    Raises:
        DamagedBackupError: That is not so.
    """
    checked(manifest.info, Info, f"{where}: info")
    if not manifest.workers:
        raise DamagedBackupError(f"{where} holds the state of no worker")
    _check_position(manifest.position, where)
    chief = manifest.workers[0]
    for worker, record in enumerate(manifest.workers):
        place = f"{where}: worker {worker}"
        check_topics(record.state, {**chief.tensors, **record.tensors}.keys(), place)
        state = {**chief.state, **record.state}
        check_complete(state, manifest.position.kind == "within", place)
        if manifest.position.epoch < state.get("first_epoch", 0):
            raise DamagedBackupError(f"{place}: training began with a later epoch than {manifest.position.epoch}")


def _check_position(position: Position, where: str) -> None:
    within = position.kind == "within"
    if position.batch > position.step or within != bool(position.batch):
        raise DamagedBackupError(f"{where}: batch {position.batch} {position.kind} and step {position.step} do not fit")


def _check_places(manifest: Manifest) -> None:
    """That nothing leads outside or beyond a blob, and no two tensors have bytes in common unless all of them."""
    blobs = {blob.path: blob for blob in manifest.blobs}
    for blob in manifest.blobs:
        if blob_generation(blob.path) != manifest.id.generation:
            raise ValueError(f"the blob name {blob.path!r} is not one that a backup writes there")
        if not 8 <= blob.header_size <= min(blob.size, MAX_MANIFEST_BYTES):
            raise ValueError(f"{blob.path}: a header of {blob.header_size} bytes in a blob of {blob.size}")
    if len(blobs) < len(manifest.blobs):
        raise ValueError("a blob is listed twice")
    ranges: dict[str, set[tuple[int, int]]] = {path: set() for path in blobs}
    for record in manifest.workers:
        for name, info in record.tensors.items():
            ranges[_blob_of(name, info, blobs).path].add((info.start, info.start + tensor_bytes(info)))
    for path, found in ranges.items():
        if not found:
            raise ValueError(f"{path} is listed, but holds no tensor")
        filled = sorted((start, end) for start, end in found if end > start)
        if any(after[0] < before[1] for before, after in itertools.pairwise(filled)):
            raise ValueError(f"{path}: tensors overlap")


def _blob_of(name: str, info: TensorInfo, blobs: Mapping[str, BlobInfo]) -> BlobInfo:
    if name.startswith("variable/") and not _VARIABLE.fullmatch(name):
        raise ValueError(f"the tensor {name!r} does not say of which replica it is")
    if info.blob not in blobs:
        raise ValueError(f"the tensor {name!r} is in {info.blob!r}, which is not listed among the blobs")
    blob = blobs[info.blob]
    if not blob.header_size <= info.start <= info.start + tensor_bytes(info) <= blob.size:
        raise ValueError(f"the tensor {name!r} reaches beyond its blob {info.blob}")
    return blob
