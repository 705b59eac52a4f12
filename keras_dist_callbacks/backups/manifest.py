"""What a manifest consists of beyond its fields: the parts of a worker's state, and the names of blobs. Pure.

A part or topic that is not listed here is one that this version could not put back: such a backup is refused, because
to leave it out in silence would be to call a continuation exact that is not. A new one needs a new format version.
What a topic holds is checked as far as its kind goes; what the seal promises is not relied upon: a manifest that makes
no sense is damage, for whoever reads it, before anything of it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import FINDINGS
from keras_dist_callbacks.backups.journal import Journal
from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.backups.packing import tensor_bytes
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES, Format, checked
from keras_dist_callbacks.backups.snapshot import JSON, VARIABLES, FitPlace, Manifest, Warned
from keras_dist_callbacks.base.errors import DamagedBackupError, KdcError

MANIFEST = Format("keras_dist_callbacks backup", 1, Manifest, MAX_MANIFEST_BYTES, allow_nan=True)


class _RandomStates(TypedDict):
    python: tuple[int, list[int], float | None]
    numpy: tuple[str, list[int], int, int, float]
    tensorflow: dict[str, JSON]


class _Order(TypedDict):
    seed: Annotated[int, msgspec.Meta(ge=0)]
    epoch: int


_MAYBE_RANDOM: Any = _RandomStates | None
PARTS: Mapping[str, Mapping[str, Any] | None] = {
    "progress": {"fit": FitPlace, "is_finalized": bool, "stop_training": bool, "logs": dict[str, JSON]},
    "loop": {"user": JSON},
    "random": {"now": _RandomStates},
    "random_at_epoch": {"begun": _MAYBE_RANDOM, "entered": _MAYBE_RANDOM},
    "input": {
        **{"own": JSON, "variables": list[JSON], "random": _MAYBE_RANDOM, "order": _Order, "by_count": list[list[int]]},
        **{"fit": int, "num_batches": JSON, "first_epoch": int, "num_validations": int, "shares_input": bool | None},
    },
    "input_objects": {"changed": dict[str, JSON]},
    "compile": {"is_another": bool, "optimized": list[int]},
    VARIABLES: {"metrics": list[str]},
    "step": {"variables": list[JSON]},
    "objects": {"changed": dict[str, JSON], "traced": dict[str, JSON]},
    "callbacks": None,
    "environment": {"now": dict[str, JSON]},
    "unsaved": {},
    "facts": {},
    "architecture": {},
    "earlier": {},
    "engine": {},
}
"""The parts of a training's state, with the topics of each and their kinds; None: any topic, as of callbacks.

`fit()` has the part `progress`, a loop of the user's the part `loop`. `earlier` is what was found in the resumes that
the run began with, `engine` what was found after a capture.
"""

_OF_BOTH = ("random/now", "variables/metrics", f"input/{FINDINGS}")
_OF_FIT = ("progress/fit", "progress/stop_training", "input/first_epoch", "input/num_validations", "input/num_batches")
_WITHIN_FIT = ("random_at_epoch/entered", "progress/logs")


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
        if name.startswith(f"{VARIABLES}/"):
            int(name.rpartition("@")[2])  # the replica


def _check_values(manifest: Manifest, where: str) -> None:
    """Makes sure that what a topic holds is of its kind, and that no topic is missing without which nothing resumes."""
    for time in ("created", "begun"):
        checked(manifest.info.get(time), float | None, f"{where}: the time")
    checked(manifest.info.get("not_finite"), list[str] | None, f"{where}: what is not finite")
    checked(manifest.info.get("journal"), Journal | None, f"{where}: the journal")
    checked(manifest.info.get("seconds"), Annotated[float, msgspec.Meta(ge=0)] | None, f"{where}: how long it took")
    checked(manifest.info.get("warnings"), list[Warned] | None, f"{where}: the warnings")
    checked(manifest.info.get("kept"), dict[str, Annotated[float, msgspec.Meta(gt=0)]] | None, f"{where}: what is kept")
    for number, record in enumerate(manifest.workers):
        for topic, value in record.state.items():
            if value is not None or not number:  # see `WorkerRecord`
                checked(value, _kind_of(topic), f"{where}: the topic {topic!r}")
    chief = manifest.workers[0].state
    of_fit = () if f"loop/{FINDINGS}" in chief else _OF_FIT
    within = _WITHIN_FIT if of_fit and manifest.position.kind == "within" else ()
    missing = [topic for topic in (*_OF_BOTH, *of_fit, *within) if topic not in chief]
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
        if _kind_of(topic) is None and not is_none:
            raise DamagedBackupError(f"{where}: the topic {topic!r} is unknown")


def _kind_of(topic: str) -> Any:
    """Returns the kind of a topic's value; None if this version does not know the topic."""
    part, _, name = topic.partition("/")
    topics = PARTS.get(part, {})
    if name == FINDINGS and part in PARTS:
        return findings.SAVED_LIST
    return JSON if topics is None else topics.get(name)
