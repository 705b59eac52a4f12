"""What a manifest consists of beyond its fields: the topics of a worker's state, and the names of blobs. Pure.

A topic of a worker's state that is not listed here is one that this version could not put back: such a backup is
refused, because to leave it out in silence would be to call a continuation exact that is not. A new topic needs a new
format version. What a topic holds is not checked: the seal tells whether it is what this package wrote.
"""

from __future__ import annotations

from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES, Format
from keras_dist_callbacks.backups.snapshot import LOCAL_STATE_DROPPED, Manifest
from keras_dist_callbacks.errors import DamagedBackupError

CALLBACK = "callback:"
"""The prefix of a callback's name."""
USER_STATE = verdict.USER_STATE
ENVIRONMENT = "environment"
"""The topic with the worker's numerical environment: versions, processors, switches."""
PYTHON = "python_state"
"""The topic with what training has changed in the user's objects: by path, what it is now and a digest of it."""
INPUT_PYTHON = "input_python_state"
"""The same of the input's Python code, as it was when the epoch began."""
TRACED = "traced_state"
"""The same, as it was when TensorFlow last traced the train step; none before that, and none in eager mode."""

COMPILED = "compiled"
"""The topic with what callbacks have changed of the compiled model: the config of a new optimizer, modes."""

MANIFEST = Format("keras_dist_callbacks backup", 1, Manifest, MAX_MANIFEST_BYTES, allow_nan=True)
TOPICS = frozenset(
    [
        *("rng", "rng_at_epoch", "rng_before_epoch", "rng_at_input", "fit", "num_batches", "first_epoch"),
        *("num_validations", "shares_input", "is_finalized", "stop_training", "logs", "metric_variables"),
        *("input", "input_variables", "untracked_variables", "epochs_by_count", LOCAL_STATE_DROPPED),
        *(PYTHON, TRACED, INPUT_PYTHON, ENVIRONMENT, COMPILED, USER_STATE),
        *(verdict.LOST, verdict.UNTRACKED_INPUT, verdict.RANDOM_OPERATIONS, verdict.NOT_SAVED),
        *(verdict.CONDITIONS, verdict.EARLIER_RESUMES, verdict.CALLBACKS_NOT_CALLED),
    ]
)


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
    for blob in manifest.blobs:
        if blob_generation(blob.path) != manifest.id.generation:
            raise DamagedBackupError(f"{where}: the blob name {blob.path!r} is not valid")
    check_topics(manifest, where)
    return manifest


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
        if not topic.startswith(CALLBACK) and topic not in TOPICS and not is_none:
            raise DamagedBackupError(f"{where}: the topic {topic!r} is unknown")
