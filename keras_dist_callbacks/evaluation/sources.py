"""Where a `SidecarEvaluator` finds checkpoints: files of `ModelCheckpoint`, and backups; read, and never touched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_dist_callbacks.backups import select_backup
from keras_dist_callbacks.backups.names import COMMITS
from keras_dist_callbacks.backups.snapshot import CommitId
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.checkpoints import end_note, files
from keras_dist_callbacks.checkpoints.files import Problem, damaged
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.evaluation.model import EvaluatedModel
from keras_dist_callbacks.storage.storage import Storage

_SAVED_SECONDS = 60.0
WORKERS = 1  # that hold the evaluated model; a backup of several is read completely


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that may be evaluated.

    Attributes:
        name: How results call it.
        content: Identifies its content, in its place.
        step: Training steps taken.
        epoch: Epochs finished.
        file: Its local copy, once it is taken; None for a backup.
    """

    name: str
    content: str
    step: int
    epoch: int
    file: Path | None = None

    @property
    def place(self) -> int:
        """Its place on a plot: the step, or the epoch where steps are not counted."""
        return self.step or self.epoch

    @property
    def key(self) -> str:
        """What distinguishes it from every other checkpoint."""
        return f"{self.place} {self.content}"


@dataclass(frozen=True)
class PollResult:
    """What there was at one moment.

    Attributes:
        candidates: The oldest first.
        problems: Files that are damaged.
        is_ended: Whether the newest training here has ended.
        failed: Whether the store could not be asked.
    """

    candidates: Sequence[Candidate] = ()
    problems: Sequence[Problem] = ()
    is_ended: bool = False
    failed: bool = False


class ModelFiles:
    """What `ModelCheckpoint` publishes.

    Args:
        storage: The directory.
        template: Only files made from this template, or of this name; None for all.
    """

    def __init__(self, storage: Storage, template: str | None) -> None:
        self._storage, self._template = storage, template
        self._known: dict[str, Checkpoint] = {}
        self._without_record: dict[str, float] = {}  # names, and since when they are known

    def poll(self) -> PollResult:
        """Returns the files, and whether the end of training is noted."""
        listing = files.find(self._storage, self._template)
        templates = listing.templates or ({self._template} if self._template else set())
        notes, problems = end_note.read_all(self._storage, templates)
        if any(note.is_ended for note in notes):  # the last files may have come since they were listed
            listing = files.find(self._storage, self._template)
        problems += [] if listing.checkpoints else self._lasting(one.name for one in listing.foreign)
        self._known = {_candidate(checkpoint).key: checkpoint for checkpoint in listing.checkpoints}
        return PollResult(
            [_candidate(checkpoint) for checkpoint in reversed(listing.checkpoints)],
            [*problems, *listing.problems],
            end_note.end_of(notes, listing) is not None,
        )

    def _lasting(self, names: Iterable[str]) -> list[Problem]:
        """Returns the first file where only some without a record are there, and stay: a write ends after a moment."""
        known, now = self._without_record, time.monotonic()
        self._without_record = {name: known.get(name, now) for name in names}
        lasting = sorted(name for name, since in self._without_record.items() if now - since > _SAVED_SECONDS)
        return [Problem(name, self._storage.display(name), "incomplete") for name in lasting[:1]]

    def take(self, candidate: Candidate, model: EvaluatedModel, directory: Path) -> Candidate | None:
        """Copies a file, compares it with its record and loads it into a model.

        Args:
            candidate: One of this source's.
            model: What gets it.
            directory: A local one for the copy.

        Returns:
            What was read, which may have replaced the candidate meanwhile; None if it was deleted or replaced.

        Raises:
            DamagedBackupError: It is there and damaged.
        """
        wanted = self._known[candidate.key]
        try:
            found = files.fetch(self._storage, wanted.name, directory)
        except FileNotFoundError:
            return None
        file = directory / found.name
        model.take_file(file, self._storage.display(found.name), found.record.step)
        return _candidate(found, file)


class Backups:
    """What `BackupAndRestore` and `Checkpointer` commit; the directory stays that of its owner.

    Args:
        storage: The directory.
        evaluated: Keys of what earlier processes evaluated: that there were backups is known from these.
    """

    def __init__(self, storage: Storage, evaluated: Iterable[str] = ()) -> None:
        self._storage = storage
        self._seen = any(key.partition(" ")[2].startswith(f"{COMMITS}/") for key in evaluated)
        self._known: dict[CommitId, tuple[Candidate, bool]] = {}

    def poll(self) -> PollResult:
        """Returns the backups, and whether the newest is that of the end, or all are gone."""
        store = BackupStore(self._storage)
        ruling = store.newest_generation()  # before the backups: a run that begins meanwhile is not missed
        problems: list[Problem] = []
        known: dict[CommitId, tuple[Candidate, bool]] = {}
        for commit in store.commits():
            try:
                known[commit] = self._known.get(commit) or _described(store, commit)
            except DamagedBackupError as error:
                if self._storage.exists(commit.name):
                    problems.append(damaged(self._storage, commit.name, error))
        self._known = known
        newest = max(known, default=None)
        if newest is None:
            is_ended = self._seen and not problems and ruling == 0  # deleted by the run at its end
        else:
            self._seen, is_ended = True, known[newest][1] and ruling == newest.generation
        return PollResult([known[commit][0] for commit in sorted(known)], problems, is_ended)

    def take(self, candidate: Candidate, model: EvaluatedModel, directory: Path) -> Candidate | None:
        """Reads a backup into a model, each tensor compared with its hash; arguments and errors as of `ModelFiles`."""
        (commit,) = (one for one, (known, _) in self._known.items() if known == candidate)
        store = BackupStore(self._storage)
        try:
            saved = select_backup.load(store, store.manifest(commit), WORKERS, 0)
        except DamagedBackupError:
            if self._storage.exists(commit.name):
                raise
            return None
        model.take_backup(saved, self._storage.display(commit.name))
        return candidate


Source = ModelFiles | Backups


def _candidate(checkpoint: Checkpoint, file: Path | None = None) -> Candidate:
    name, record = checkpoint.name, checkpoint.record
    return Candidate(name, f"{name} {record.digest}", record.step, record.epoch, file)


def _described(store: BackupStore, commit: CommitId) -> tuple[Candidate, bool]:
    """Returns a backup, and whether training had ended."""
    manifest = store.manifest(commit)
    position = manifest.position
    return Candidate(commit.label, commit.name, position.step, position.epoch), manifest.done
