"""`kdc show`: everything that one commit's manifest or one checkpoint holds."""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.backups.codec import dtype_of
from keras_dist_callbacks.backups.findings import FINDINGS
from keras_dist_callbacks.backups.snapshot import JSON, VARIABLES, Manifest, WorkerRecord
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError
from keras_dist_callbacks.checkpoints import files, retention
from keras_dist_callbacks.checkpoints.files import Problem
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.checkpoints.retention import Standing
from keras_dist_callbacks.cli import formatting, listing
from keras_dist_callbacks.cli.formatting import Cell, Page
from keras_dist_callbacks.cli.inventory import Entry, blob_sizes, judge
from keras_dist_callbacks.cli.listing import CheckpointRow, CommitRow
from keras_dist_callbacks.cli.output import Target
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

_VERSIONS = ("python", "keras", "tensorflow")
_METADATA, _WEIGHTS = "metadata.json", "model.weights.h5"
_SHOWN_TENSORS = 40
_OPTIMIZER = "optimizer/"


@dataclass(frozen=True)
class TensorRow:
    """A tensor of a commit or a checkpoint.

    Attributes:
        name: Its name, without what says that it is a variable.
        kind: `"variable"`, or what else it belongs to.
        replica: Which replica's component of a variable it is.
        dtype: Its type.
        shape: Its shape.
        bytes: Its size.
        workers: The workers that have a value of their own; one alone stands for all that follow it.
    """

    name: str
    kind: str
    replica: int | None
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    workers: tuple[int, ...]


@dataclass(frozen=True)
class BlobRow:
    """A file that a commit refers to; `stored` is the size in the store, None if it is missing there."""

    path: str
    bytes: int
    stored: int | None
    new: bool


@dataclass(frozen=True)
class CommitDetails:
    """What `kdc show` shows.

    Attributes:
        url: The directory, without credentials.
        commit: What `kdc ls` shows of it.
        versions: Of Python, Keras and TensorFlow.
        run: What else the run said of itself: strategy, workers, replicas, seed, model, batches.
        callbacks: Those whose state is held.
        random_states: Whose random states are held.
        python_state: Whose Python state has changed since the start: callbacks, functions, classes, modules.
        tensors: In the order of the model.
        tensor_bytes: Of all values of all tensors; equal ones are stored once.
        blobs: The files.
    """

    url: str
    commit: CommitRow
    versions: Mapping[str, JSON]
    run: Mapping[str, JSON]
    callbacks: tuple[str, ...]
    random_states: tuple[str, ...]
    python_state: tuple[str, ...]
    tensors: tuple[TensorRow, ...]
    tensor_bytes: int
    blobs: tuple[BlobRow, ...]


def describe_commit(target: Target, entries: Sequence[Entry], entry: Entry) -> CommitDetails:
    """Everything about one commit.

    Args:
        target: The directory.
        entries: All commits in it, the newest last.
        entry: One of them.

    Raises:
        DamagedBackupError: It cannot be read.
    """
    manifest = entry.readable()
    before = [e.manifest.blobs for e in entries if e.id < entry.id and e.manifest is not None]
    earlier = frozenset(before[-1] if before else ())
    stored = blob_sizes(target.storage, [entry])
    topics = [topic.partition("/") for topic in dict.fromkeys(t for record in manifest.workers for t in record.state)]
    tensors = _tensor_rows(manifest)
    return CommitDetails(
        url=target.url,
        commit=listing.commit_row(judge(entry, stored), earlier),
        versions={key: manifest.info[key] for key in _VERSIONS if key in manifest.info},
        run={key: value for key, value in manifest.info.items() if key not in (*_VERSIONS, "created")},
        callbacks=tuple(name for part, _, name in topics if part == "callbacks" and name != FINDINGS),
        random_states=_random_states(manifest.workers[0]),
        python_state=_owners_of_python_state(manifest.workers[0]),
        tensors=tensors,
        tensor_bytes=sum(row.bytes * len(row.workers) for row in tensors),
        blobs=tuple(BlobRow(b.path, b.size, stored.get(b.path), b not in earlier) for b in manifest.blobs),
    )


def _tensor_rows(manifest: Manifest) -> tuple[TensorRow, ...]:
    """One row for each tensor; workers that have values of their own of the same type and shape share it."""
    found: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for worker, record in enumerate(manifest.workers):
        for name, info in record.tensors.items():
            found.setdefault((name, info.dtype, info.shape), []).append(worker)
    rows = []
    for (name, dtype, shape), workers in found.items():
        kind, _, variable = name.partition("/")
        shown, _, replica = variable.rpartition("@") if kind == VARIABLES else (name, "", "")
        size = dtype_of(dtype).itemsize * math.prod(shape)
        rows.append(TensorRow(shown, kind, int(replica) if replica else None, dtype, shape, size, tuple(workers)))
    return tuple(rows)


def _random_states(chief: WorkerRecord) -> tuple[str, ...]:
    found = ["python", "numpy", "tensorflow"]  # no manifest is read that lacks one
    found += sorted(chief.state["random/now"].keys() - {*found})  # such as torch's
    if "generator" in chief.state["random/now"]["tensorflow"]:
        found.append("tf.random global generator")
    generators = {info.key for info in chief.tensors.values() if "seed_generator" in info.key}
    if generators:
        found.append(f"keras seed generators: {len(generators)}")
    if chief.state.get("random_at_epoch/entered"):
        found.append("as of the epoch's begin")
    return tuple(found)


def _owners_of_python_state(chief: WorkerRecord) -> tuple[str, ...]:
    roots = (str(path).partition("/")[0] for path in chief.state.get("objects/changed") or {})
    return tuple(dict.fromkeys(root.replace("~1", "/").replace("~0", "~") for root in roots))


def show_commit(page: Page, details: CommitDetails, *, every_tensor: bool) -> None:
    """Prints what `kdc show` shows of a backup."""
    row = details.commit
    page.line(f"{details.url}/{row.name}", "bold")
    versions = ", ".join(f"{name} {version}" for name, version in details.versions.items())
    run = [(key.replace("_", " "), "-" if v is None else str(v).removeprefix("_")) for key, v in details.run.items()]
    facts: list[tuple[str, Cell]] = [
        ("position", f"{row.position} (step {row.step})"),
        ("state", formatting.styled(row.state if row.state != "ok" else "finished" if row.done else "not finished")),
        ("written", formatting.moment(row.created, row.age_seconds)),
        ("resume", formatting.styled(row.verdict or "-")),
        ("generation", str(row.generation)),
        ("versions", versions or "-"),
        *run,
        ("random states", ", ".join(details.random_states)),
        ("callbacks", "\n".join(details.callbacks) or "none"),
        ("Python state", "\n".join(details.python_state) or "none"),
    ]
    page.facts(facts)
    listing.print_notes(page, [row])
    page.line("")
    page.line(f"{formatting.count(len(details.blobs), 'blob')}, {formatting.size(row.bytes)}", "bold")
    blobs = ((b.path, formatting.size(b.bytes), formatting.styled(_state_of(b))) for b in details.blobs)
    page.table(("blob", ">size", ""), blobs)
    _show_tensors(page, details.tensors, details.tensor_bytes, every_tensor=every_tensor)


def _state_of(blob: BlobRow) -> str:
    if blob.stored != blob.bytes:
        return "damaged"
    return "new" if blob.new else "as before"


def _show_tensors(page: Page, tensors: Sequence[TensorRow], total: int, *, every_tensor: bool) -> None:
    """One line for each variable: its replicas and workers are counted, not listed."""
    page.line("")
    page.line(f"{formatting.count(len(tensors), 'tensor')}, {formatting.size(total)}", "bold")
    shown = tensors if every_tensor else tensors[:_SHOWN_TENSORS]
    merged: dict[tuple[str, str, tuple[int, ...]], list[TensorRow]] = {}
    for row in shown:
        merged.setdefault((row.name, row.dtype, row.shape), []).append(row)
    rows = (
        (name, dtype, " x ".join(map(str, shape)) or "scalar", formatting.size(members[0].bytes), _copies(members))
        for (name, dtype, shape), members in merged.items()
    )
    page.table(("tensor", "type", "shape", ">size", ""), rows)
    if len(shown) < len(tensors):
        page.line(f"  and {len(tensors) - len(shown):,} more: add --all", "dim")


def _copies(members: Sequence[TensorRow]) -> str:
    replicas = f"{len(members)} replicas" if len(members) > 1 else ""
    workers = sorted({worker for member in members for worker in member.workers})
    apart = f"workers {', '.join(map(str, workers))}" if workers != [0] else ""
    return ", ".join(filter(None, (replicas, apart)))


@dataclass(frozen=True)
class CheckpointDetails:
    """What `kdc show` shows of a checkpoint.

    Attributes:
        url: The directory, without credentials.
        checkpoint: What `kdc ls` shows of it.
        state: The file was read and compared with its digest.
        problem: What is wrong with it.
        template: That of its file name.
        sequence: Its position among the files of its run.
        digest: xxh3_128 of the bytes before the record, in hex.
        written: When the file was last written, in seconds since 1970; None if it is missing.
        age_seconds: How long ago that is.
        saved_by: What the file says of who saved it and when.
        tensors: In the order of the file.
        tensor_bytes: Of all values of all tensors.
        others: What is wrong with others in the directory: one of them may be newer.
    """

    url: str
    checkpoint: CheckpointRow
    state: Literal["intact", "damaged"]
    problem: str | None
    template: str
    sequence: int
    digest: str
    written: float | None
    age_seconds: float | None
    saved_by: Mapping[str, str]
    tensors: tuple[TensorRow, ...]
    tensor_bytes: int
    others: tuple[Problem, ...] = ()


def choose(storage: Storage, published: files.Listing, name: str) -> Checkpoint | None:
    """The checkpoint of that name, without a name the newest; None if the directory has none at all.

    Raises:
        ConfigError: No record has that name.
        DamagedBackupError: There are checkpoints, but no record can be read.
    """
    found = next((one for one in published.checkpoints if name in ("", one.name)), None)
    if found is not None:
        return found
    if not name:
        if published.problems:
            raise DamagedBackupError(f"{'; '.join(map(str, published.problems))}. `kdc verify` checks all")
        return None
    problem = next((problem for problem in published.problems if problem.name == name), None)
    if problem is not None:
        raise DamagedBackupError(str(problem))
    known = ", ".join(one.name for one in published.checkpoints[:5])
    advice = f"the newest: {known}" if known else "`kdc ls` lists what is there"
    raise ConfigError(f"{storage.display()}: no checkpoint with a record is named {name!r}; {advice}")


def describe_checkpoint(
    storage: Storage, checkpoint: Checkpoint, others: tuple[Problem, ...] = ()
) -> CheckpointDetails:
    """Reads a checkpoint completely and describes it.

    Args:
        storage: The directory.
        checkpoint: What the last bytes of the file contain.
        others: What is wrong with others there.
    """
    tensors: tuple[TensorRow, ...] = ()
    saved_by: Mapping[str, str] = {}
    problem, written = None, None
    path = storage.display(checkpoint.name)
    standing = retention.standings(files.find(storage)).get(checkpoint.name, Standing())
    with temporary.directory("show") as copies:
        try:
            written = storage.modified(checkpoint.name)
            checkpoint = files.fetch(storage, checkpoint.name, copies)
            saved_by, tensors = _read(copies / checkpoint.name, path)
        except FileNotFoundError:
            problem = f"{path} was deleted meanwhile"
        except DamagedBackupError as error:
            problem = str(error)
    return CheckpointDetails(
        url=storage.display(),
        checkpoint=listing.checkpoint_row(checkpoint, standing),
        state="damaged" if problem else "intact",
        problem=problem,
        template=checkpoint.record.template,
        sequence=checkpoint.record.sequence,
        digest=checkpoint.record.digest,
        written=written,
        age_seconds=None if written is None else time.time() - written,
        saved_by=saved_by,
        tensors=tensors,
        tensor_bytes=sum(row.bytes for row in tensors),
        others=others,
    )


def show_checkpoint(page: Page, details: CheckpointDetails, *, every_tensor: bool) -> None:
    """Prints what `kdc show` shows of a checkpoint."""
    row = details.checkpoint
    page.line(f"{details.url}/{row.name}", "bold")
    facts: list[tuple[str, Cell]] = [
        ("position", f"{formatting.count(row.epoch, 'epoch')} finished (step {row.step})"),
        ("state", formatting.styled(details.state)),
        ("written", formatting.moment(details.written, details.age_seconds)),
        ("holds", "the complete model" if row.kind == "model" else "weights and optimizer"),
        ("monitored", listing.monitored(row)),
        ("kept by", ", ".join(row.kept_by) or "-"),
        ("template", details.template),
        *([("published as", row.published_name)] if row.name != row.published_name else []),
        ("generation", f"{row.generation}, file {details.sequence} of its run"),
        ("digest", details.digest),
        *((name.replace("_", " "), value) for name, value in details.saved_by.items()),
    ]
    page.facts(facts)
    page.notes([(row.name, details.problem), *(("damaged", str(problem)) for problem in details.others)], "red")
    if details.tensors:
        _show_tensors(page, details.tensors, details.tensor_bytes, every_tensor=every_tensor)


def _read(file: Path, shown: str) -> tuple[Mapping[str, str], tuple[TensorRow, ...]]:
    """What the file itself says; nothing of the model is made."""
    try:
        if file.name.endswith(".weights.h5"):
            return {}, _tensors(file)
        with zipfile.ZipFile(file) as archive:
            said = record_io.parse(archive.read(_METADATA), f"{shown}: {_METADATA}")
            saved_by = {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}
            with archive.open(_WEIGHTS) as weights:
                return saved_by, _tensors(weights)
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        if isinstance(error, DamagedBackupError):
            raise
        raise DamagedBackupError(f"{shown} is not a file as Keras writes it: {type(error).__name__} {error}") from error


def _tensors(file: Any) -> tuple[TensorRow, ...]:
    import h5py

    found: list[TensorRow] = []

    def add(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        dtype = str(item.attrs.get("dtype", item.dtype))  # types that HDF5 has not are named there
        kind = "optimizer" if name.startswith(_OPTIMIZER) else "variable"
        found.append(TensorRow(name, kind, None, dtype, tuple(item.shape or ()), int(item.nbytes), (0,)))

    with h5py.File(file, "r") as content:
        content.visititems(add)
    return tuple(found)
