"""`kdc rollback`, and the function of the same name: training goes back to an older backup."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks.backups import finite
from keras_dist_callbacks.backups import rollback as backups
from keras_dist_callbacks.backups.snapshot import Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import BackupError, ConfigError
from keras_dist_callbacks.checkpoints import files, taken_back
from keras_dist_callbacks.cli import formatting, inventory
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.storage.storage import Storage


@dataclass(frozen=True)
class RolledBack:
    """What a rollback has changed, or its undoing.

    Attributes:
        path: The backup directory, without credentials.
        newest: The backup from which training continues, such as `"1-7"`; `"start"`: it begins again.
        position: Where that was taken, in words; None at the start.
        before: The backup from which it would have continued.
        moved: Those that do not count any more; after an undoing, those that count again.
        checkpoints: Likewise, the files of `ModelCheckpoint`.
        dry_run: Nothing was changed.
        not_finite: The tensors of `newest` that hold NaN or infinity; all values were looked at.
    """

    path: str
    newest: str
    position: str | None
    before: str
    moved: tuple[str, ...]
    checkpoints: tuple[str, ...]
    dry_run: bool
    not_finite: tuple[str, ...] = ()


def rollback(
    backup_dir: str | os.PathLike[str],
    *,
    to: str | None = None,
    before_step: int | None = None,
    before_epoch: int | None = None,
    undo: bool = False,
    dry_run: bool = False,
    force: bool = False,
    checkpoints: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RolledBack:
    """Makes an older backup the newest one, so that the next start of the job continues from there.

    The backup is read and verified first. A run that still writes to the directory is fenced: it ends with a
    `FencedError`, and nothing that it saves counts. The later backups stay in `rolled-back/` until a run has saved a
    new one; until then `undo=True` takes the rollback back.

    Example:
        ```python
        kdc.rollback("gs://bucket/run1/backup", to="start")  # or to="1-7", before_epoch=12, undo=True
        ```

    Args:
        backup_dir: The directory of `BackupAndRestore` or `Checkpointer`.
        to: A backup as `kdc ls` names it, such as `"1-7"`; `"start"` lets training begin again.
        before_step: The newest backup with fewer steps than that.
        before_epoch: The newest backup with fewer complete epochs than that.
        undo: The backups that the newest rollback has taken back count again.
        dry_run: Change nothing.
        force: Also while a run seems to be writing.
        checkpoints: The directory of a `ModelCheckpoint`, whose files of later steps move to `rolled-back/` too. What
            stays may be the best or the newest one for those who look for it.
        storage_options: Passed to the fsspec file system.

    Returns:
        What was changed.

    Raises:
        ConfigError: There is no such backup, or it is the newest already.
        BackupError: A run may be writing to the directory.
        DamagedBackupError: The backup is damaged.
        StorageError: The store failed.
    """
    storage = Storage.open(validation.path("backup_dir", backup_dir), storage_options)
    ways = {
        "to": validation.check("to", to, str | None),
        "before_step": validation.check("before_step", before_step, validation.number_of("steps", 1) | None),
        "before_epoch": validation.check("before_epoch", before_epoch, validation.number_of("epochs", 1) | None),
        "undo": validation.check("undo", undo, bool) or None,
    }
    dry_run, force = validation.check("dry_run", dry_run, bool), validation.check("force", force, bool)
    store = BackupStore(storage)
    if not (dry_run or force) and (why := live_run(store)):
        raise BackupError(
            f"{storage.display()}: {why}; force=True rolls back all the same, and ends it with its next save"
        )
    files = None if checkpoints is None else Storage.open(validation.path("checkpoints", checkpoints), storage_options)
    return roll_back(store, ways, files, dry_run=dry_run)


def roll_back(
    store: BackupStore, ways: Mapping[str, Any], checkpoints: Storage | None = None, *, dry_run: bool
) -> RolledBack:
    """As `rollback`; `ways` are its arguments that say where to, by name, of which one is not None."""
    given = {name: value for name, value in ways.items() if value is not None}
    if len(given) != 1:
        got = ", ".join(given) or "none of them"
        raise ConfigError(f"name one of to, before_step, before_epoch and undo: got {got}")
    ((way, value),) = given.items()
    change = backups.plan_undo(store) if way == "undo" else backups.plan(store, _target(store, way, value))
    newest = change.newest
    names: list[str] = []
    if checkpoints is not None:
        place = taken_back.place_of(None if newest is None else newest.position)
        there = files.find(checkpoints).checkpoints
        names = taken_back.set_aside(checkpoints) if way == "undo" else taken_back.later_than(there, place)
    if not dry_run:
        (backups.undo if way == "undo" else backups.roll_back)(store, change)
    if not dry_run and checkpoints is not None:
        (taken_back.move_back if way == "undo" else taken_back.move_aside)(checkpoints, names)
    return RolledBack(
        path=store.storage.display(),
        newest=backups.START if newest is None else newest.id.label,
        position=None if newest is None else formatting.position(newest.position),
        before=change.before.label,
        moved=tuple(commit.label for commit in change.moved),
        checkpoints=tuple(names),
        dry_run=dry_run,
        not_finite=change.not_finite,
    )


def _target(store: BackupStore, way: str, value: Any) -> Manifest | None:
    if way == "to":
        return backups.named(store, value)
    if way == "before_step":
        return backups.newest_before(store, lambda one: one.position.step < value, f"before step {value}")
    return backups.newest_before(store, lambda one: one.position.epoch < value, f"before the end of epoch {value}")


def live_run(store: BackupStore) -> str:
    """Why a run may be writing to the directory; empty if none seems to."""
    life = inventory.liveness(inventory.take_inventory(store))
    return (
        f"a run may still be writing (generation {life.generation}: {life.why}): end it first" if life.running else ""
    )


def show_rollback(page: Page, found: RolledBack) -> None:
    """Prints what `kdc rollback` shows."""
    would = "would continue" if found.dry_run else "continues"
    where = "begins again" if found.position is None else f"{would} from {found.newest}, {found.position}"
    page.line(f"{found.path}: training {where} (it was {found.before})", "bold" if found.dry_run else "green")
    page.facts([("moved", ", ".join([*found.moved, *found.checkpoints]))])
    if found.not_finite:
        page.line(
            f"{found.newest} holds values that are not finite ({finite.in_words(found.not_finite)}), and training "
            "would continue with them: go back further",
            "red",
        )
    if not found.dry_run:
        page.line(
            "The next start of the job continues there. Until it has saved, `kdc rollback --undo` takes this back"
        )
