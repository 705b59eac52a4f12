"""Going back: an older backup becomes the newest one, by one exclusive create.

The owner record of a new generation says to which commit training goes back. From then on the commits after it do not
count, a run that still writes is fenced, and whatever that was about to commit comes too late. To move the manifests
aside is tidying. `undo` takes the same way: the next generation says that the rollback does not hold, and the newest
manifest is the first that is moved back. Until one is, the rollback holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keras_dist_callbacks.backups.journal import JOURNAL
from keras_dist_callbacks.backups.names import BLOBS, COMMITS, DAMAGED, OWNERS, ROLLED_BACK
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES
from keras_dist_callbacks.backups.select_backup import not_found
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupError, ConfigError

START = "start"
_BY = "rollback"


@dataclass(frozen=True)
class Change:
    """What a rollback, or its undoing, changes.

    Attributes:
        newest: What training continues from afterwards; None: it begins again.
        before: What it would have continued from.
        moved: What does not count any more, or counts again, the newest first.
        not_finite: The tensors of `newest` that hold NaN or infinity.
    """

    newest: Manifest | None
    before: CommitId
    moved: tuple[CommitId, ...]
    not_finite: tuple[str, ...] = ()


def named(store: BackupStore, name: str) -> Manifest | None:
    """Returns the backup of a name; None for `START`.

    Raises:
        ConfigError: There is none.
    """
    if name == START:
        return None
    found = [commit for commit in store.commits() if commit.matches_name(name)]
    if len(found) != 1:
        raise ConfigError(not_found(store, name, "to"))
    return store.manifest(found[0])


def newest_before(store: BackupStore, is_before: Callable[[Manifest], bool], what: str) -> Manifest:
    """Returns the newest backup that fulfils something.

    Args:
        store: The directory.
        is_before: Says that of one.
        what: The same in words.

    Raises:
        ConfigError: None does.
    """
    found = next(filter(is_before, map(store.manifest, reversed(store.commits()))), None)
    if found is None:
        raise ConfigError(f"{store.storage.display()} holds no backup {what}: `kdc ls` shows those that there are")
    return found


def plan(store: BackupStore, target: Manifest | None) -> Change:
    """Returns what going back to a backup changes, once all of that was read and verified.

    Raises:
        ConfigError: It is the newest already, or there is none.
        DamagedBackupError: It is damaged.
    """
    store.storage.refuse_links((OWNERS, BLOBS, COMMITS, DAMAGED, ROLLED_BACK))
    commits = store.commits()
    if not commits:
        raise ConfigError(not_found(store, None))
    if target is not None and target.id == commits[-1]:
        raise ConfigError(f"{store.storage.display()}: {target.id.label} is the newest backup already")
    infinite = () if target is None else store.not_finite(target)
    later = tuple(commit for commit in reversed(commits) if target is None or commit > target.id)
    return Change(target, commits[-1], later, infinite)


def roll_back(store: BackupStore, change: Change) -> None:
    """Makes a backup the newest one; a run that still writes is fenced.

    Raises:
        BackupError: No number is free for a generation.
        StorageError: The store failed; if the owner record was created, the rollback holds.
    """
    to = "" if change.newest is None else change.newest.id.file_name
    journal = store.manifest(change.before).info.get(JOURNAL)  # that of the target knows nothing of what came after it
    store.claim({JOURNAL: journal}, _BY, rolled_back_to=to, rolled_back_from=change.before.label)
    tidy(store)


def tidy(store: BackupStore) -> None:
    """Moves the manifests that do not count any more out of `commits/`."""
    for name, commit in store.taken_back().items():
        if name == commit.name:
            _move(store, name, f"{ROLLED_BACK}/{commit.file_name}")


def plan_undo(store: BackupStore) -> Change:
    """Returns what the end of the newest rollback changes.

    Raises:
        ConfigError: There is none, or a run has saved since.
    """
    rollbacks, back = store.rollbacks(), store.taken_back()
    where = store.storage.display()
    if not back:
        raise ConfigError(f"{where}: there is no rollback that could be undone")
    commits = store.commits()
    if rollbacks and any(commit.generation > rollbacks[-1][0] for commit in commits):
        raise ConfigError(f"{where}: a run has saved a backup since the rollback, which can be undone no more")
    moved = tuple(sorted(set(back.values()), reverse=True))
    newest = next(name for name, commit in back.items() if commit == moved[0])
    manifest = store.manifest_in(newest, moved[0])
    store.verify(manifest)
    return Change(manifest, commits[-1] if commits else moved[-1], moved)


def undo(store: BackupStore, change: Change) -> None:
    """Makes the backups count again that the newest rollback has taken back; as `roll_back`.

    Raises:
        BackupError: As of `roll_back`.
    """
    rollbacks = store.rollbacks()
    if rollbacks:  # else a process that was undoing it has ended in the midst
        store.claim({}, _BY, undoes=rollbacks[-1][0])
    there = {commit: name for name, commit in store.taken_back().items()}
    for commit in change.moved:
        if there.get(commit, commit.name) != commit.name:
            _move(store, there[commit], commit.name)


def _move(store: BackupStore, name: str, to: str) -> None:
    storage = store.storage
    try:
        content = storage.read(name, 0, MAX_MANIFEST_BYTES)
        storage.create(to, [content])
    except FileNotFoundError:
        return  # moved already
    except FileExistsError:  # by one that ended before it deleted the other
        if storage.read(to, 0, MAX_MANIFEST_BYTES) != content:
            raise BackupError(
                f"{storage.display(to)} exists, and differs from {storage.display(name)}, which would take its place: "
                "move one of them elsewhere"
            ) from None
    storage.delete(name)
