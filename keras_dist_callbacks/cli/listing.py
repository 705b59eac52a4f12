"""`kdc ls`: the backups and checkpoints in a directory, and the rows that `kdc show` begins with."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_dist_callbacks.backups import finite, verdict
from keras_dist_callbacks.backups.retention import Rules, kept
from keras_dist_callbacks.backups.retention import from_json as kept_rules
from keras_dist_callbacks.backups.snapshot import Manifest, WorkerState
from keras_dist_callbacks.backups.store import listed
from keras_dist_callbacks.base.terminal import first_few
from keras_dist_callbacks.base.validation import convert
from keras_dist_callbacks.checkpoints import files, retention
from keras_dist_callbacks.checkpoints.files import Problem
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.checkpoints.retention import Standing
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.formatting import Cell, Page
from keras_dist_callbacks.cli.inventory import Entry, State, created_at, read_entries
from keras_dist_callbacks.cli.output import Target

_BACKUP_HEADERS = ("backup", "position", ">step", ">age", ">size", ">frees", ">gen", "resume", "kept by", "")
_CHECKPOINT_HEADERS = ("checkpoint", ">epochs", "kind", ">step", "monitored", ">size", "kept by")


@dataclass(frozen=True)
class CommitRow:
    """One commit; what only its manifest holds is None if that cannot be read.

    Attributes:
        commit: Its short name, generation and sequence.
        name: Its path in the directory.
        generation: The run that wrote it.
        state: As in `Entry`.
        problem: What is wrong with it.
        kind: `"within"` an epoch, `"between"` epochs or at the `"end"`.
        epoch: The running one, counted from 1 as in `position`; if `kind` is not `"within"`, the last one that ended.
        batch: Batches trained in the running epoch.
        step: Batches trained in all.
        position: The last three in words.
        done: Whether training had ended.
        created: When it was written, in seconds since 1970.
        age_seconds: How long ago that is.
        bytes: Size of all blobs that it refers to.
        freed_bytes: Size of those among them that no other commit refers to: what deleting it would free.
        verdict: `"exact"`, `"exact if"` or `"not exact"`: how training continues from it, as far as it alone shows.
        inexact_reasons: Why it is not.
        conditions: What could not be inspected: it is exact if these hold.
        kept_by: The arguments of `BackupAndRestore` that keep it: `"max_to_keep"`, `"keep_every"`, as the newest commit
            says; `"finite"` for the newest one that holds no NaN. Empty for what is deleted after the next save.
        not_finite: The tensors that hold NaN or infinity.
    """

    commit: str
    name: str
    generation: int
    state: State
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
    freed_bytes: int | None = None
    verdict: str | None = None
    inexact_reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    kept_by: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointRow:
    """One file that `ModelCheckpoint` published, by its record; the content is not read.

    Attributes:
        name: Its name in the directory.
        kind: `"weights"` or `"model"`.
        epoch: How many epochs ended.
        step: Optimizer steps taken.
        monitor: Name of the monitored quantity.
        value: Its value, if it was a finite number.
        best_only: Whether it was saved because `value` was the best so far.
        bytes: Its size.
        generation: The run that wrote it.
        published_name: The name that it was saved under.
        template: The `filepath` that this was made from.
        is_best: Whether no file of its training that is in the directory has a better value.
        kept_by: The arguments of `ModelCheckpoint` that keep it: `"max_to_keep"`, `"keep_best"`, `"keep_every"`, or
            `"all"` without any of them; `"finite"` for the newest one that holds no NaN. Empty for copies, and for what
            is deleted after the next save.
        is_finite: Whether no weight is NaN or infinite.
    """

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
    template: str
    is_best: bool = False
    kept_by: tuple[str, ...] = ()
    is_finite: bool = True


@dataclass(frozen=True)
class DirectoryListing:
    """What `kdc ls` shows.

    Attributes:
        url: The directory, without credentials.
        commits: The newest first; contents of blobs are not read.
        bytes: Size of all blobs that the commits refer to, each counted once.
        checkpoints: The newest first.
        checkpoint_problems: What is wrong with checkpoints.
        without_record: What other programs have left.
        earlier_runs: What earlier runs did, where no commit is left; empty if none started here.
    """

    url: str
    commits: tuple[CommitRow, ...]
    bytes: int
    checkpoints: tuple[CheckpointRow, ...]
    checkpoint_problems: tuple[Problem, ...]
    without_record: tuple[str, ...]
    earlier_runs: str

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of ours."""
        found = (self.commits, self.checkpoints, self.checkpoint_problems, self.without_record, self.earlier_runs)
        return not any(found)

    @property
    def has_problem(self) -> bool:
        """Whether anything is damaged."""
        return bool(self.checkpoint_problems) or any(row.state == "damaged" for row in self.commits)


def list_directory(target: Target) -> DirectoryListing:
    """Reads what `kdc ls` shows."""
    entries = read_entries(target.store)
    published = files.find(target.storage)
    standings = retention.standings(published)
    rows = commit_rows(entries)
    blobs = {blob for entry in entries for blob in entry.blobs}
    return DirectoryListing(
        target.url,
        tuple(reversed(rows)),
        sum(blob.size for blob in blobs),
        tuple(checkpoint_row(one, standings) for one in published.checkpoints),
        published.problems,
        tuple(sorted(one.name for one in published.foreign)),
        "" if entries else target.store.why_no_backup(),
    )


def commit_rows(entries: Sequence[Entry]) -> list[CommitRow]:
    """Each commit, the newest last, with what keeps it and what no other one holds."""
    often = collections.Counter(blob.path for entry in entries for blob in entry.blobs)
    readable = [entry.manifest for entry in entries if entry.manifest is not None]
    rules = kept_rules(readable[-1].info.get("kept") or {}) if readable else Rules()
    why = dict(zip((manifest.id for manifest in readable), kept(list(map(listed, readable)), rules), strict=True))
    return [_commit_row(entry, often, () if rules.keep_all else why.get(entry.id, ())) for entry in entries]


def _commit_row(entry: Entry, often: Mapping[str, int], kept_by: tuple[str, ...]) -> CommitRow:
    manifest, commit = entry.manifest, entry.id
    row = CommitRow(commit.label, commit.name, commit.generation, entry.state, entry.problem or None, kept_by=kept_by)
    if manifest is None:
        return row
    created = created_at(manifest)
    outcome = verdict_of(manifest)
    return dataclasses.replace(
        row,
        **dataclasses.asdict(dataclasses.replace(manifest.position, epoch=formatting.epoch(manifest.position))),
        position=formatting.position(manifest.position),
        done=manifest.done,
        created=created,
        age_seconds=None if created is None else time.time() - created,
        bytes=sum(blob.size for blob in manifest.blobs),
        freed_bytes=sum(blob.size for blob in manifest.blobs if often[blob.path] == 1),
        verdict=outcome.word,
        inexact_reasons=outcome.reasons,
        conditions=outcome.conditions,
        not_finite=tuple(manifest.info.get("not_finite") or ()),
    )


def checkpoint_row(checkpoint: Checkpoint, standings: Mapping[str, Standing]) -> CheckpointRow:
    """One checkpoint as `kdc ls` shows it.

    Args:
        checkpoint: What the last bytes of the file contain.
        standings: What the rules of retention say of each file, by name.
    """
    record, standing = checkpoint.record, standings.get(checkpoint.name, Standing())
    its_own = {"name": checkpoint.name, "kind": checkpoint.kind, "bytes": checkpoint.file_size, **vars(standing)}
    values = {**dataclasses.asdict(record), **its_own, "is_finite": record.is_finite}
    row: CheckpointRow = convert(values, CheckpointRow)
    return row


def verdict_of(manifest: Manifest) -> verdict.Verdict:
    """Returns why no continuation of a commit can be exact, and on what it depends; another run may change more."""
    states = (manifest.complete_record(worker).state for worker in range(len(manifest.workers)))
    held = (verdict.found_in(WorkerState(manifest.position, {}, state, manifest.info)) for state in states)
    return verdict.Verdict(tuple(dict.fromkeys(itertools.chain.from_iterable(held))))


def show_listing(page: Page, listing: DirectoryListing) -> None:
    """Prints what `kdc ls` shows."""
    rows, published = listing.commits, listing.checkpoints
    if rows:
        summary = f"{formatting.count(len(rows), 'backup')}, {formatting.size(listing.bytes)} of tensors"
        page.line(f"{listing.url}: {summary}", "bold")
        page.table(_BACKUP_HEADERS, map(_commit_cells, rows), only_if_wide=_BACKUP_HEADERS[2:7])
        print_notes(page, rows)
    elif listing.earlier_runs:
        page.line(f"{listing.url}: {listing.earlier_runs}")
    if published or listing.checkpoint_problems:
        page.line(f"{listing.url}: {formatting.count(len(published), 'checkpoint')}", "bold")
    if published:
        cells = (
            (
                *(row.name, str(row.epoch), row.kind, f"{row.step:,}", monitored(row), formatting.size(row.bytes)),
                ", ".join(row.kept_by) or "-",
            )
            for row in published
        )
        page.table(_CHECKPOINT_HEADERS, cells, only_if_wide=_CHECKPOINT_HEADERS[2:6])
        renamed = (row for row in published if row.name != row.published_name)
        page.notes((row.name, f"a copy of {row.published_name}") for row in renamed)
        page.notes(((row.name, "not finite") for row in published if not row.is_finite), "red")
    page.notes((("damaged", str(problem)) for problem in listing.checkpoint_problems), "red")
    if listing.without_record:
        page.line(f"  {files.without_record(listing.without_record)}")


def print_notes(page: Page, rows: Sequence[CommitRow]) -> None:
    """What is wrong with commits, why continuing from them is not exact, or on what that depends."""
    page.notes(((row.commit, row.problem) for row in rows), "red")
    infinite = ((row.commit, f"not finite: {finite.in_words(row.not_finite)}") for row in rows if row.not_finite)
    page.notes(_once_each(infinite), "red")
    reasons = ((row.commit, reason) for row in rows for reason in row.inexact_reasons)
    page.notes(_once_each(reasons), "yellow")
    certain = (row for row in rows if not row.inexact_reasons)
    page.notes(_once_each((row.commit, f"exact if {text}") for row in certain for text in row.conditions), "cyan")


def _once_each(notes: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What several commits have in common is said once, with their names."""
    commits: dict[str, list[str]] = {}
    for commit, text in notes:
        commits.setdefault(text, []).append(commit)
    return ((", ".join(first_few(names)), text) for text, names in commits.items())


def monitored(row: CheckpointRow) -> str:
    """The monitored quantity of a checkpoint and its value."""
    value = "-" if row.value is None else f"{row.monitor} {row.value:.6g}"
    return value + (" (best)" if row.is_best else "")


def _commit_cells(row: CommitRow) -> tuple[Cell, ...]:
    step = "-" if row.step is None else f"{row.step:,}"
    figures = (step, formatting.age(row.age_seconds), formatting.size(row.bytes), formatting.size(row.freed_bytes))
    well = "not finite" if row.not_finite else "done" if row.done else ""
    state = formatting.styled(row.state if row.state != "ok" else well)
    resume = formatting.styled(row.verdict or "-")
    kept_by = ", ".join(row.kept_by) or "-"
    return (row.commit, row.position or "-", *figures, str(row.generation), resume, kept_by, state)
