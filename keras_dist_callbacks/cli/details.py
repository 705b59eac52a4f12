"""`kdc show`: what one commit's manifest or one checkpoint's record holds, next to what `kdc ls` says of it."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_dist_callbacks.backups import journal as journals
from keras_dist_callbacks.backups.findings import FINDINGS
from keras_dist_callbacks.backups.journal import JOURNAL, Journal
from keras_dist_callbacks.backups.packing import dtype_of
from keras_dist_callbacks.backups.snapshot import JSON, VARIABLES, Manifest
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError
from keras_dist_callbacks.base.validation import convert
from keras_dist_callbacks.checkpoints import files, retention
from keras_dist_callbacks.checkpoints.files import Problem
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.cli import formatting, listing, upkeep
from keras_dist_callbacks.cli.formatting import Cell, Page
from keras_dist_callbacks.cli.inventory import Entry, State
from keras_dist_callbacks.cli.listing import CheckpointRow, CommitRow
from keras_dist_callbacks.cli.output import Target
from keras_dist_callbacks.storage.storage import Storage

_VERSIONS = ("python", "keras", "tensorflow")
_SHOWN_TENSORS = 40


@dataclass(frozen=True)
class TensorRow:
    """A tensor of a commit, or several of one name, type and shape: those of replicas and workers.

    Attributes:
        name: Its name, without what says that it is a variable.
        kind: `"variables"`, or what else it belongs to.
        dtype: Its type.
        shape: Its shape.
        bytes: Its size.
        values: How many are saved: one of each replica and worker that has its own.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    values: int


@dataclass(frozen=True)
class CommitDetails:
    """What `kdc show` shows.

    Attributes:
        url: The directory, without credentials.
        commit: What `kdc ls` shows of it.
        versions: Of Python, Keras and TensorFlow.
        run: What else the run said of itself: strategy, workers, replicas, seed, model, batches.
        callbacks: Those whose state is held.
        python_state: Whose Python state has changed since the start: callbacks, functions, classes, modules.
        tensors: In the order of the model.
    """

    url: str
    commit: CommitRow
    versions: Mapping[str, JSON]
    run: Mapping[str, JSON]
    callbacks: tuple[str, ...]
    python_state: tuple[str, ...]
    tensors: tuple[TensorRow, ...]


def describe_commit(target: Target, entries: Sequence[Entry], entry: Entry) -> CommitDetails:
    """Everything about one commit.

    Args:
        target: The directory.
        entries: All commits in it, the newest last.
        entry: One of them.

    Raises:
        DamagedBackupError: It cannot be read.
    """
    manifest = entry.manifest
    if manifest is None:
        raise DamagedBackupError(f"{entry.problem}. `kdc ls` shows the other backups")
    topics = [topic.partition("/") for topic in dict.fromkeys(t for record in manifest.workers for t in record.state)]
    paths = manifest.workers[0].state.get("objects/changed") or {}
    owners = (path.partition("/")[0] for path in paths)  # a path begins with the owner, escaped as in a JSON pointer
    return CommitDetails(
        url=target.url,
        commit=next(row for row in listing.commit_rows(entries) if row.name == entry.id.name),
        versions={key: manifest.info[key] for key in _VERSIONS if key in manifest.info},
        run={key: value for key, value in manifest.info.items() if key not in (*_VERSIONS, "created")},
        callbacks=tuple(name for part, _, name in topics if part == "callbacks" and name != FINDINGS),
        python_state=tuple(dict.fromkeys(owner.replace("~1", "/").replace("~0", "~") for owner in owners)),
        tensors=tuple(_tensor_rows(manifest)),
    )


def _tensor_rows(manifest: Manifest) -> Iterator[TensorRow]:
    found = collections.Counter[tuple[str, str, str, tuple[int, ...]]]()
    for name, info in (item for record in manifest.workers for item in record.tensors.items()):
        kind, _, variable = name.partition("/")
        shown = variable.rpartition("@")[0] if kind == VARIABLES else name
        found[shown, kind, info.dtype, info.shape] += 1
    for (name, kind, dtype, shape), values in found.items():
        yield TensorRow(name, kind, dtype, shape, dtype_of(dtype).itemsize * math.prod(shape), values)


def show_commit(page: Page, details: CommitDetails, *, every_tensor: bool) -> None:
    """Prints what `kdc show` shows of a backup."""
    row = details.commit
    page.line(f"{details.url}/{row.name}", "bold")
    versions = ", ".join(f"{name} {version}" for name, version in details.versions.items())
    others = {key: value for key, value in details.run.items() if key not in (JOURNAL, "warnings", "seconds", "begun")}
    run = [(key.replace("_", " "), "-" if v is None else str(v).removeprefix("_")) for key, v in others.items()]
    if journal := details.run.get(JOURNAL):
        run.append(("time so far", journals.summary(convert(journal, Journal))))
    facts: list[tuple[str, Cell]] = [
        ("position", f"{row.position} (step {row.step})"),
        ("state", formatting.styled(row.state if row.state != "ok" else "finished" if row.done else "not finished")),
        ("written", formatting.moment(row.created, row.age_seconds)),
        ("resume", formatting.styled(row.verdict or "-")),
        ("generation", str(row.generation)),
        ("versions", versions or "-"),
        *run,
        ("callbacks", "\n".join(details.callbacks) or "none"),
        ("Python state", "\n".join(details.python_state) or "none"),
    ]
    page.facts(facts)
    listing.print_notes(page, [row])
    total, shown = len(details.tensors), details.tensors if every_tensor else details.tensors[:_SHOWN_TENSORS]
    rows = (
        (t.name, t.dtype, " x ".join(map(str, t.shape)) or "scalar", formatting.size(t.bytes), str(t.values))
        for t in shown
    )
    page.line(f"\n{formatting.count(total, 'tensor')}, {formatting.size(row.bytes)} in files", "bold")
    page.table(("tensor", "type", "shape", ">size", ">values"), rows)
    if len(shown) < total:
        page.line(f"  and {total - len(shown):,} more: add --all", "dim")


@dataclass(frozen=True)
class CheckpointDetails:
    """What `kdc show` shows of a checkpoint.

    Attributes:
        url: The directory, without credentials.
        checkpoint: What `kdc ls` shows of it.
        state: The file was read and compared with its digest.
        problem: What is wrong with it.
        written: When the file was last written, in seconds since 1970; None if it is missing.
        age_seconds: How long ago that is.
        others: What is wrong with others in the directory: one of them may be newer.
    """

    url: str
    checkpoint: CheckpointRow
    state: State
    problem: str | None
    written: float | None
    age_seconds: float | None
    others: tuple[Problem, ...] = ()


def choose(storage: Storage, published: files.Listing, name: str) -> Checkpoint | None:
    """The checkpoint of that name, without a name the newest; None if the directory has none at all.

    Raises:
        ConfigError: No record has that name.
        DamagedBackupError: There are checkpoints, but no record can be read.
    """
    found = next((one for one in published.checkpoints if name in ("", one.name)), None)
    damaged = [str(problem) for problem in published.problems if name in ("", problem.name)]
    if found is None and damaged:
        raise DamagedBackupError("; ".join(damaged))
    if found is None and name:
        known = ", ".join(one.name for one in published.checkpoints[:5])
        advice = f"the newest: {known}" if known else "`kdc ls` lists what is there"
        raise ConfigError(f"{storage.display()}: no checkpoint with a record is named {name!r}; {advice}")
    return found


def describe_checkpoint(
    storage: Storage, checkpoint: Checkpoint, published: files.Listing, *, is_named: bool
) -> CheckpointDetails:
    """Reads a checkpoint completely and describes it.

    Args:
        storage: The directory.
        checkpoint: What the last bytes of the file contain.
        published: All of the directory.
        is_named: Whether it was asked for; else a damaged one may be newer.
    """
    checked = upkeep.verify_checkpoint(storage, checkpoint, lambda size: None)
    written = storage.modified(checkpoint.name) if checked else None
    return CheckpointDetails(
        url=storage.display(),
        checkpoint=listing.checkpoint_row(checkpoint, retention.standings(published)),
        state=checked.state if checked else "damaged",
        problem=checked.problem if checked else f"{storage.display(checkpoint.name)} was deleted meanwhile",
        written=written,
        age_seconds=None if written is None else time.time() - written,
        others=() if is_named else published.problems,
    )


def show_checkpoint(page: Page, details: CheckpointDetails) -> None:
    """Prints what `kdc show` shows of a checkpoint."""
    row = details.checkpoint
    page.line(f"{details.url}/{row.name}", "bold")
    facts: list[tuple[str, Cell]] = [
        ("position", f"{formatting.count(row.epoch, 'epoch')} finished (step {row.step})"),
        ("state", formatting.styled(details.state)),
        ("written", formatting.moment(details.written, details.age_seconds)),
        ("holds", "the complete model" if row.kind == "model" else "weights and optimizer"),
        ("size", formatting.size(row.bytes)),
        ("monitored", listing.monitored(row)),
        ("kept by", ", ".join(row.kept_by) or "-"),
        ("template", row.template),
        *([("published as", row.published_name)] if row.name != row.published_name else []),
        ("generation", str(row.generation)),
    ]
    page.facts(facts)
    page.notes([(row.name, details.problem), *(("damaged", str(problem)) for problem in details.others)], "red")
