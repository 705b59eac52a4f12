"""`kdc ls`: backups and checkpoints in a directory, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_dist_callbacks.backups.snapshot import BlobInfo, Manifest, WorkerState
from keras_dist_callbacks.backups.verdict import conditions as open_conditions
from keras_dist_callbacks.backups.verdict import inexact_reasons, verdict_of
from keras_dist_callbacks.checkpoints.files import Listing
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.inventory import Entry


@dataclass(frozen=True)
class CommitRow:
    """One commit; what only its manifest tells is None if that cannot be read.

    Attributes:
        commit: Its short name, generation and sequence.
        name: Its path in the directory.
        generation: The run that wrote it.
        state: `"ok"`, `"damaged"`, `"too new"` or `"unfinished"`; contents of blobs are not read for this.
        problem: What is wrong with it.
        kind: `"within"` an epoch, `"between"` epochs or at the `"end"`.
        epoch: Epochs finished.
        batch: Batches trained in the running epoch.
        step: Batches trained in all.
        position: The last three in words.
        done: Whether training had ended.
        created: When it was written, in seconds since 1970.
        age_seconds: How long ago that is.
        bytes: Size of all blobs that it refers to.
        new_bytes: Size of those among them that the commit before does not refer to.
        exact: Whether going on from it is exact, as far as the backup alone tells, with nothing unseen.
        verdict: `"exact"`, `"exact if"` or `"not exact"`.
        inexact_reasons: Why it is not.
        conditions: What could not be seen: it is exact if these hold.
    """

    commit: str
    name: str
    generation: int
    state: str
    problem: str | None = None
    kind: str | None = None
    epoch: int | None = None
    batch: int | None = None
    step: int | None = None
    position: str | None = None
    done: bool | None = None
    created: float | None = None
    age_seconds: float | None = None
    bytes: int | None = None
    new_bytes: int | None = None
    exact: bool | None = None
    verdict: str | None = None
    inexact_reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointRow:
    """One file that `ModelCheckpoint` published, by its record; the content is not read."""

    name: str
    kind: str
    epoch: int
    step: int
    monitor: str | None
    value: float | None
    best_only: bool
    bytes: int
    generation: int
    published_name: str


@dataclass(frozen=True)
class DirectoryListing:
    """What `kdc ls` shows.

    Attributes:
        url: The directory, without credentials.
        commits: The newest first.
        bytes: Size of all blobs that the commits refer to, each counted once.
        checkpoints: The newest first.
        checkpoint_problems: What is wrong with checkpoints, one sentence each.
        without_record: Model files that are incomplete, or of other programs.
        earlier_runs: Whether a run began here, be it without any commit.
    """

    url: str
    commits: tuple[CommitRow, ...]
    bytes: int
    checkpoints: tuple[CheckpointRow, ...]
    checkpoint_problems: tuple[str, ...]
    without_record: tuple[str, ...]
    earlier_runs: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of ours."""
        found = (self.commits, self.checkpoints, self.checkpoint_problems, self.without_record)
        return not any(found) and not self.earlier_runs

    @property
    def has_problem(self) -> bool:
        """Whether anything is damaged."""
        return bool(self.checkpoint_problems) or any(row.state == "damaged" for row in self.commits)


def list_directory(
    url: str,
    entries: Sequence[Entry],
    stored: Mapping[str, int],
    checkpoints: Listing,
    without_record: Sequence[str],
    *,
    earlier_runs: bool,
    now: float,
) -> DirectoryListing:
    """Puts together what `kdc ls` shows.

    Args:
        url: The directory, without credentials.
        entries: The commits, the newest last.
        stored: Sizes of the stored blobs.
        checkpoints: What was published there.
        without_record: Model files without a record, those of other tools included.
        earlier_runs: Whether a run began here.
        now: The time.
    """
    rows = []
    before: frozenset[BlobInfo] = frozenset()
    for entry in entries:
        rows.append(commit_row(entry, before, stored, now))
        if entry.manifest is not None:
            before = frozenset(entry.manifest.blobs)
    blobs = {blob for entry in entries if entry.manifest for blob in entry.manifest.blobs}
    return DirectoryListing(
        url,
        tuple(reversed(rows)),
        sum(blob.size for blob in blobs),
        tuple(map(checkpoint_row, checkpoints.checkpoints)),
        checkpoints.problems,
        tuple(without_record),
        earlier_runs,
    )


def commit_row(entry: Entry, before: frozenset[BlobInfo], stored: Mapping[str, int], now: float) -> CommitRow:
    """One commit as `kdc ls` shows it; `before` are the blobs of the commit before it."""
    manifest = entry.manifest
    if manifest is None:
        return CommitRow(entry.label, entry.id.name, entry.id.generation, entry.state, entry.problem)
    problem = _missing(manifest, stored)
    created = created_at(manifest)
    reasons, conditions = verdict_of_manifest(manifest)
    verdict = verdict_of(reasons, conditions)
    return CommitRow(
        commit=entry.label,
        name=entry.id.name,
        generation=entry.id.generation,
        state="damaged" if problem else "ok",
        problem=problem,
        kind=manifest.position.kind,
        epoch=manifest.position.epoch,
        batch=manifest.position.batch,
        step=manifest.position.step,
        position=formatting.position(manifest.position),
        done=manifest.done,
        created=created,
        age_seconds=None if created is None else now - created,
        bytes=sum(blob.size for blob in manifest.blobs),
        new_bytes=sum(blob.size for blob in manifest.blobs if blob not in before),
        exact=verdict == "exact",
        verdict=verdict,
        inexact_reasons=reasons,
        conditions=conditions,
    )


def checkpoint_row(checkpoint: Checkpoint) -> CheckpointRow:
    """One checkpoint as `kdc ls` shows it."""
    record = checkpoint.record
    return CheckpointRow(
        name=checkpoint.name,
        kind=checkpoint.kind,
        epoch=record.epoch,
        step=record.step,
        monitor=record.monitor,
        value=record.value,
        best_only=record.best_only,
        bytes=checkpoint.file_size,
        generation=record.generation,
        published_name=record.published_name,
    )


def created_at(manifest: Manifest) -> float | None:
    """When a commit was written, if it says so."""
    created = manifest.info.get("created")
    return float(created) if isinstance(created, int | float) else None


def verdict_of_manifest(manifest: Manifest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why no continuation of a commit can be exact, and on what it depends; another run may change more."""
    unchanged = {"seed": "unknown", "replicas": 1, **manifest.info}
    found: dict[str, None] = {}
    conditions: dict[str, None] = {}
    for worker, record in enumerate(manifest.workers):
        state = {**manifest.workers[0].state, **record.state}
        saved = WorkerState(manifest.position, {}, state, manifest.info)
        for reason in inexact_reasons(saved, unchanged):
            found[reason.replace("this worker's", f"worker {worker}'s")] = None
        conditions.update(dict.fromkeys(open_conditions(saved)))
    return tuple(found), tuple(conditions)


def _missing(manifest: Manifest, stored: Mapping[str, int]) -> str | None:
    for blob in manifest.blobs:
        if blob.path not in stored:
            return f"{blob.path} is missing"
        if stored[blob.path] != blob.size:
            return f"{blob.path} is {stored[blob.path]} bytes long instead of {blob.size}"
    return None
