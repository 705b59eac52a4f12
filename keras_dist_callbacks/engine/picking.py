"""Which commit a run goes on from: the newest that is whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keras_dist_callbacks.backups.names import BLOBS, COMMITS, DAMAGED, OWNERS
from keras_dist_callbacks.backups.reading import Allocate
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest, WorkerState
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.errors import DamagedBackupError
from keras_dist_callbacks.texts import warn

_LISTINGS = 5
_CHIEF = 0  # the index of the worker that picks


def load(
    store: BackupStore, manifest: Manifest, workers: int, worker: int, allocate: Allocate | None = None
) -> WorkerState:
    """The state of one worker, read and verified; that of all if there are now `workers` and were others before.

    Raises:
        DamagedBackupError: A blob is missing or differs from the manifest.
    """
    if len(manifest.workers) == workers:
        return store.load(manifest, worker, allocate)
    every = [store.load(manifest, saved) for saved in range(len(manifest.workers))]
    return dataclasses.replace(every[0], other_workers=tuple(state.tensors for state in every[1:]))


def newest_good(
    store: BackupStore, workers: int, allocate: Allocate | None = None
) -> tuple[CommitId, WorkerState] | None:
    """The newest whole commit and the chief's state in it; None if nothing was ever committed.

    Damaged ones that are newer are set aside, with a warning each.

    Raises:
        DamagedBackupError: There are commits, but none is whole. Nothing was changed.
        StorageError: A symbolic link is in the way; nothing would be written through it either.
    """
    store.storage.refuse_links((OWNERS, BLOBS, COMMITS, DAMAGED))
    for _ in range(_LISTINGS):
        found, vanished = _walk_back(store, workers, allocate)
        if found or not vanished:
            break  # else a run that still goes on has pruned what was listed: look again
    return found


def _walk_back(
    store: BackupStore, workers: int, allocate: Allocate | None
) -> tuple[tuple[CommitId, WorkerState] | None, bool]:
    """The newest good commit, and whether any was deleted while it was being read."""
    damaged: dict[CommitId, DamagedBackupError] = {}
    unfinished, vanished = 0, False
    for commit in reversed(store.commits()):
        try:
            state = _read_whole(store, commit, workers, allocate)
        except DamagedBackupError as error:
            if not store.storage.exists(commit.name):
                vanished = True
                continue
            damaged[commit] = error
            unfinished += not store.has_committed(commit.generation) and not store.is_readable(commit)
            continue
        _set_aside(store, damaged)
        return (commit, state), vanished
    if vanished:
        return None, True
    if unfinished < len(damaged):
        raise DamagedBackupError(_nothing_whole(store.storage.display(), list(damaged.values())))
    _set_aside(store, damaged)
    if damaged or store.has_leftovers():
        print(f"{store.storage.display()}: an earlier run committed no backup; starting fresh", flush=True)
    return None, False


def _read_whole(store: BackupStore, commit: CommitId, workers: int, allocate: Allocate | None) -> WorkerState:
    """The chief's state; what it does not need itself is verified too."""
    manifest = store.manifest(commit)
    state = load(store, manifest, workers, _CHIEF, allocate)
    if len(manifest.workers) == workers > 1:
        store.verify(manifest, but_not=manifest.workers[0].tensors.values())
    return state


def _set_aside(store: BackupStore, damaged: Mapping[CommitId, DamagedBackupError]) -> None:
    for commit, reason in damaged.items():
        warn(f"a damaged backup was set aside: {reason}")
        store.quarantine(commit)


def _nothing_whole(directory: str, errors: list[DamagedBackupError]) -> str:
    shared = ""
    if len(errors) > 1 and len({str(error) for error in errors}) == 1:
        shared = (
            " All of them need that file, because unchanged tensors are written once; double_checkpoint=True lets two "
            "successive backups share no file."
        )
    return (
        f"none of the {len(errors)} backups in {directory} is whole; the newest: {errors[0]}.{shared} Nothing was "
        "changed: restore the files, or start with another directory"
    )
