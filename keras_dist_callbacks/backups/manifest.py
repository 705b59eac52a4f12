"""A manifest as a record, and what it must say beyond its schema. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping

from keras_dist_callbacks.backups.codec import tensor_bytes
from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES, Format, checked
from keras_dist_callbacks.backups.snapshot import BlobInfo, Manifest, Position, TensorInfo
from keras_dist_callbacks.backups.state_schema import Info, check_complete, check_topics
from keras_dist_callbacks.errors import DamagedBackupError

MANIFEST = Format("keras_dist_callbacks backup", 1, Manifest, MAX_MANIFEST_BYTES, allow_nan=True)
_VARIABLE = re.compile(r"variable/.+@[0-9]{1,6}", re.DOTALL)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as a record."""
    return MANIFEST.encode(manifest)


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
    manifest = dataclasses.replace(MANIFEST, max_bytes=limit).decode(content, where)
    try:
        _check_places(manifest)
    except ValueError as error:
        raise DamagedBackupError(f"{where} is not a valid manifest: {error}") from error
    check_content(manifest, where)
    return manifest


def check_content(manifest: Manifest, where: str) -> None:
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
    blobs = _checked_blobs(manifest)
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


def _checked_blobs(manifest: Manifest) -> dict[str, BlobInfo]:
    for blob in manifest.blobs:
        if blob_generation(blob.path) != manifest.id.generation:
            raise ValueError(f"the blob name {blob.path!r} is not one that a backup writes there")
        if not 8 <= blob.header_size <= min(blob.size, MAX_MANIFEST_BYTES):
            raise ValueError(f"{blob.path}: a header of {blob.header_size} bytes in a blob of {blob.size}")
    blobs = {blob.path: blob for blob in manifest.blobs}
    if len(blobs) < len(manifest.blobs):
        raise ValueError("a blob is listed twice")
    return blobs


def _blob_of(name: str, info: TensorInfo, blobs: Mapping[str, BlobInfo]) -> BlobInfo:
    if name.startswith("variable/") and not _VARIABLE.fullmatch(name):
        raise ValueError(f"the tensor {name!r} does not say of which replica it is")
    if info.blob not in blobs:
        raise ValueError(f"the tensor {name!r} is in {info.blob!r}, which is not listed among the blobs")
    blob = blobs[info.blob]
    if not blob.header_size <= info.start <= info.start + tensor_bytes(info) <= blob.size:
        raise ValueError(f"the tensor {name!r} reaches beyond its blob {info.blob}")
    return blob
