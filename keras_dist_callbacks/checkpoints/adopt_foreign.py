"""Starts from the newest checkpoint of another tool that loads, the same one on every worker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from keras_dist_callbacks.checkpoints import foreign
from keras_dist_callbacks.checkpoints.foreign import ForeignCheckpoint
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.errors import BackupMismatchError, ConfigError
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.terminal import warn

_TAG = "make_or_restore_model, adopting"
_TIMEOUT = 1800.0  # seconds that workers wait while another one downloads

Load = Callable[[Path], Any]


def restore_latest_loadable(
    cluster: Cluster, storage: Storage, template: str | None, into: Path, loaders: Mapping[str, Load]
) -> tuple[Any, ForeignCheckpoint] | None:
    """Loads the newest foreign checkpoint on every worker; one that does not load anywhere is passed over.

    Args:
        cluster: The workers; all call this.
        storage: Where they are.
        template: As in `foreign.find`.
        into: A local directory for copies.
        loaders: For each kind what makes a model of a local copy, whose path it gets (of `"tf"` without `.index`).

    Returns:
        The model and where it is from; None if no other tool left anything.

    Raises:
        BackupMismatchError: There are foreign checkpoints, but none loads; the message has the reason of each.
        StorageError: The store cannot be read.
    """
    told = cluster.on_chief(lambda: foreign.find(storage, template), _TAG, _TIMEOUT) or []
    reasons: list[str] = []
    for fields in cluster.broadcast([vars(checkpoint) for checkpoint in told], _TAG, kind=list[dict[str, Any]]):
        checkpoint = ForeignCheckpoint(**{**fields, "files": tuple(fields["files"])})
        _copy(cluster, storage, checkpoint.files, into)
        model, reason = _try_to_load(cluster, loaders[checkpoint.kind], into / checkpoint.name)
        if reason is None:
            _report_skipped(cluster, storage, reasons)
            return model, checkpoint
        reasons.append(f"{storage.display(checkpoint.name)}: {reason}")
    if reasons:
        what = f"no checkpoint of another tool in {storage.display()} loads: {'; '.join(reasons)}"
        raise BackupMismatchError(f"{what}. Mend build_fn, or leave adopt out to begin with a new model")
    return None


def _copy(cluster: Cluster, storage: Storage, files: Sequence[str], into: Path) -> None:
    def download() -> dict[str, str]:
        for name in files:
            storage.download(name, into / name)
        return {name: _digest(into / name) for name in files}

    cluster.require_same(cluster.agree(download, _TAG, _TIMEOUT), _TAG, _TIMEOUT)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _try_to_load(cluster: Cluster, load: Load, path: Path) -> tuple[Any, str | None]:
    model, reason = None, None
    try:
        model = load(path)
    except ConfigError:
        raise  # build_fn's model is at fault, not the file
    except Exception as error:  # noqa: BLE001 - Keras' and TensorFlow's readers have errors of many types; all are told
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    reasons = cluster.gather(reason, _TAG, _TIMEOUT, kind=str | None)
    return model, next((told for told in reasons if told is not None), None)


def _report_skipped(cluster: Cluster, storage: Storage, reasons: Sequence[str]) -> None:
    if reasons and cluster.is_chief:
        warn(
            f"newer checkpoints in {storage.display()} do not load and are passed over: {'; '.join(reasons)}",
            UserWarning,
        )
