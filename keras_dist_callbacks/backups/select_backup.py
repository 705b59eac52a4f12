"""Which commit a run continues from: the newest that is intact."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from keras_dist_callbacks.backups.names import BLOBS, COMMITS, DAMAGED, OWNERS
from keras_dist_callbacks.backups.reading import Allocate
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest, WorkerState
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError
from keras_dist_callbacks.base.terminal import say, warn

_LISTINGS = 5
_NAME = re.compile(r"[A-Za-z0-9./_-]{1,80}")
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


def latest_intact(
    store: BackupStore, workers: int, allocate: Allocate | None = None, *, verbose: bool = True
) -> tuple[CommitId, WorkerState] | None:
    """The newest intact commit and the chief's state in it; None if nothing was ever committed.

    Damaged ones that are newer are quarantined, with a warning each.

    Args:
        store: The run's.
        workers: How many workers there are now.
        allocate: Allocates memory for a tensor.
        verbose: Print that training starts without a backup because an earlier run committed none.

    Raises:
        DamagedBackupError: No commit is intact. Nothing was changed.
        StorageError: A symbolic link is in the way; nothing would be written through it either.
    """

    def read(commit: CommitId) -> WorkerState:
        manifest = store.manifest(commit)
        state = load(store, manifest, workers, _CHIEF, allocate)
        if len(manifest.workers) == workers > 1:  # what the chief does not need is verified too, for the others
            store.verify(manifest, but_not=manifest.workers[0].tensors.values())
        return state

    store.storage.refuse_links((OWNERS, BLOBS, COMMITS, DAMAGED))
    found, damaged, vanished = _search(store, read)
    if found is None and vanished:
        return None
    # A manifest that cannot be read, of a run that never finished a commit, is a write that was interrupted: nothing is
    # lost with it. Any other one without an intact backup next to it is a loss, and nothing may be changed.
    finished = [c for c in damaged if store.has_committed(c.generation) or store.is_readable(c)]
    if found is None and finished:
        raise DamagedBackupError(_nothing_intact(store.storage.display(), list(damaged.values())))
    for commit, reason in damaged.items():
        warn(f"a damaged backup was quarantined: {reason}")
        store.quarantine(commit)
    if found is None and (why := store.why_no_backup()):
        say(f"{store.storage.display()}: {why}; starting from the beginning", verbose=verbose)
    return found


def find_backup(
    store: BackupStore, name: str | None, workers: int, worker: int = _CHIEF
) -> tuple[CommitId, WorkerState]:
    """An intact commit and a worker's state in it, for a reader: nothing is changed.

    Args:
        store: Of a run that may train meanwhile, and delete what it does not need any more.
        name: Which commit, as `CommitId.matches_name` takes it; None is the newest that is intact.
        workers: How many workers there are now; 0: as many as the backup was made with.
        worker: Which of them this is.

    Raises:
        ConfigError: No backup was found, or none of that name.
        DamagedBackupError: It is damaged, or no backup is intact.
    """

    def read(commit: CommitId) -> WorkerState:
        manifest = store.manifest(commit)
        return load(store, manifest, workers or len(manifest.workers), worker)

    found, damaged, _ = _search(store, read, name)
    if found is not None:
        for passed in damaged.values():
            warn(f"a damaged backup was skipped: {passed}")
        return found
    errors = list(damaged.values())
    if errors and name is not None:
        raise errors[0]  # of the others nothing is known
    if errors:
        raise DamagedBackupError(_nothing_intact(store.storage.display(), errors))
    raise ConfigError(not_found(store, name))


def _search(
    store: BackupStore, read: Callable[[CommitId], WorkerState], name: str | None = None
) -> tuple[tuple[CommitId, WorkerState] | None, dict[CommitId, DamagedBackupError], bool]:
    """The newest commit that can be read, those that are damaged, and whether any was deleted meanwhile."""
    for _ in range(_LISTINGS):
        damaged: dict[CommitId, DamagedBackupError] = {}
        vanished = False
        for commit in reversed([commit for commit in store.commits() if name is None or commit.matches_name(name)]):
            try:
                return (commit, read(commit)), damaged, vanished
            except DamagedBackupError as error:
                if store.storage.exists(commit.name):
                    damaged[commit] = error
                else:
                    vanished = True
        if not vanished:
            break  # else a run that is still active has pruned what was listed: look again
    return None, damaged, vanished


def not_found(store: BackupStore, name: str | None, argument: str = "commit") -> str:
    """Says that no backup was found, or none of the name that an argument gives, and which there are."""
    known = ", ".join(commit.label for commit in reversed(store.commits()[-5:]))
    where = store.storage.display()
    if name is None or not known:
        return f"{where} holds no backup: give the backup_dir of a run that has saved"
    shown = repr(name) if _NAME.fullmatch(name) else "..."  # anything else may be an URL with a credential
    return f"{where}: no backup is named {argument}={shown}; the newest: {known}"


def _nothing_intact(directory: str, errors: list[DamagedBackupError]) -> str:
    shared = ""
    if len(errors) > 1 and len({str(error) for error in errors}) == 1:
        shared = (
            " All of them need that file, because unchanged tensors are written once; double_checkpoint=True lets two "
            "successive backups share no file."
        )
    return (
        f"none of the {len(errors)} backups in {directory} is intact; the newest: {errors[0]}.{shared} Nothing was "
        "changed: restore the files, or start with another directory"
    )
