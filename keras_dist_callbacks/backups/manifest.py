"""What a manifest consists of beyond its fields: the topics of a worker's state, and the names of blobs. Pure.

A topic of a worker's state that is not listed here is one that this version could not put back: such a backup is
refused, because to leave it out in silence would be to call a continuation exact that is not. A new topic needs a new
format version. What a topic holds is checked as far as its kind goes; what the seal promises is not relied upon: a
manifest that makes no sense is damage, for whoever reads it, before anything of it is used.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.codec import tensor_bytes
from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES, Format, checked
from keras_dist_callbacks.backups.snapshot import JSON, VARIABLE, Manifest
from keras_dist_callbacks.errors import DamagedBackupError, KdcError

CALLBACK = "callback:"
"""The prefix of a callback's name."""
USER_STATE = "user"
"""The topic that a loop's backup has and a fit's has not: the user's own state."""
ENVIRONMENT = "environment"
"""The topic with the worker's numerical environment: versions, processors, switches."""
PYTHON = "python_state"
"""The topic with what training has changed in the user's objects: by path, what it is now and a digest of it."""
INPUT_PYTHON = "input_python_state"
"""The same of the input's Python code, as it was when the epoch began."""
TRACED = "traced_state"
"""The same, as it was when TensorFlow last traced the train step; none before that, and none in eager mode."""

COMPILED = "compiled"
"""The topic of a run that has compiled its model again during fit(), or given it another optimizer."""
OPTIMIZED = "optimized_weights"
"""The topic with the places of the weights for which an optimizer was built, where the names of slots do not tell."""

MANIFEST = Format("keras_dist_callbacks backup", 1, Manifest, MAX_MANIFEST_BYTES, allow_nan=True)
TOPICS = frozenset(
    [
        *("rng", "rng_at_epoch", "rng_before_epoch", "rng_at_input", "fit", "num_batches", "first_epoch"),
        *("num_validations", "shares_input", "is_finalized", "stop_training", "logs", "metric_variables"),
        *("input", "input_variables", "order", "untracked_variables", "epochs_by_count"),
        *(PYTHON, TRACED, INPUT_PYTHON, ENVIRONMENT, COMPILED, OPTIMIZED, USER_STATE),
    ]
)


class _RandomStates(TypedDict):
    python: tuple[int, list[int], float | None]
    numpy: tuple[str, list[int], int, int, float]
    tensorflow: dict[str, JSON]


class _Order(TypedDict):
    seed: Annotated[int, msgspec.Meta(ge=0)]
    epoch: int


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("rng_at_epoch", "rng_before_epoch", "rng_at_input"), _RandomStates | None),
    **dict.fromkeys((PYTHON, TRACED, INPUT_PYTHON, ENVIRONMENT), dict[str, JSON] | None),
    "metric_variables": list[str],
    **dict.fromkeys(("first_epoch", "num_validations"), int),
    **dict.fromkeys(("is_finalized", "stop_training", COMPILED), bool),
    **dict.fromkeys(("fit", "logs"), dict[str, JSON]),
    **dict.fromkeys(("input_variables", "untracked_variables"), list[JSON]),
    "rng": _RandomStates,
    "shares_input": bool | None,
    "epochs_by_count": list[list[int]],
    OPTIMIZED: list[int],
    "order": _Order,
}
_ALWAYS = ("rng", "metric_variables", findings.SAVED + "input")
_OF_FIT = ("first_epoch", "num_batches", "num_validations", "stop_training")
_WITHIN_FIT = ("rng_at_epoch", "logs")


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the manifest as a record."""
    return MANIFEST.encode(manifest)


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Reads and checks a manifest.

    Args:
        content: The file.
        where: Its path, for messages.

    Raises:
        DamagedBackupError: It is not what was written, or names what no backup may name.
        BackupMismatchError: A newer version of this package wrote it.
    """
    manifest = MANIFEST.decode(content, where)
    try:
        _check_tensors(manifest, where)
        check_topics(manifest, where)
        _check_values(manifest, where)
    except KdcError:
        raise
    except Exception as error:  # whatever it is, the content has raised it
        raise DamagedBackupError(f"{where} makes no sense: {type(error).__name__} {error}") from error
    return manifest


def _check_tensors(manifest: Manifest, where: str) -> None:
    """Makes sure that each tensor lies in a blob that a backup may name."""
    blobs = {blob.path: blob for blob in manifest.blobs}
    for path in blobs:
        if blob_generation(path) != manifest.id.generation:
            raise DamagedBackupError(f"{where}: the blob name {path!r} is not valid")
    if not manifest.workers:
        raise DamagedBackupError(f"{where} holds the state of no worker")
    for name, info in (item for record in manifest.workers for item in record.tensors.items()):
        blob = blobs.get(info.blob)
        if blob is None or not blob.header_size <= info.start <= blob.size - tensor_bytes(info):
            raise DamagedBackupError(f"{where}: the tensor {name!r} lies in none of its blobs")
        if name.startswith(f"{VARIABLE}/"):
            int(name.rpartition("@")[2])  # the replica


def _check_values(manifest: Manifest, where: str) -> None:
    """Makes sure that what a topic holds is of its kind, and that no topic is missing without which nothing resumes."""
    checked(manifest.info.get("created"), float | None, f"{where}: the time")
    for number, record in enumerate(manifest.workers):
        for topic, value in record.state.items():
            if value is not None or not number:  # see `WorkerRecord`
                kind = findings.SAVED_LIST if topic.startswith(findings.SAVED) else _KINDS.get(topic, JSON)
                checked(value, kind, f"{where}: the topic {topic!r}")
    chief = manifest.workers[0].state
    of_fit = () if USER_STATE in chief else _OF_FIT
    within = _WITHIN_FIT if of_fit and manifest.position.kind == "within" else ()
    needed = (*_ALWAYS, *of_fit, *within)
    missing = [topic for topic in needed if topic not in chief]
    if missing:
        raise DamagedBackupError(f"{where} does not hold the topics {', '.join(missing)}")


def check_topics(manifest: Manifest, where: str) -> None:
    """Makes sure that a manifest holds nothing that this version would not put back.

    Raises:
        DamagedBackupError: It does.
    """
    position = manifest.position
    if (position.kind == "within") != bool(position.batch):  # as after an exception before an epoch's first step
        raise DamagedBackupError(f"{where}: batch {position.batch} {position.kind} is not a place to resume from")
    for topic, value in (item for record in manifest.workers for item in record.state.items()):
        is_none = value is None and topic in manifest.workers[0].tensors  # see `WorkerRecord`
        if not topic.startswith((CALLBACK, findings.SAVED)) and topic not in TOPICS and not is_none:
            raise DamagedBackupError(f"{where}: the topic {topic!r} is unknown")
