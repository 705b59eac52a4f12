"""`kdc verify`: reads everything that backups and checkpoints consist of; changes nothing."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_dist_callbacks.backups.names import DAMAGED, quarantined_name
from keras_dist_callbacks.backups.snapshot import BlobInfo, Manifest, TensorInfo, WorkerRecord
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.files import Listing
from keras_dist_callbacks.checkpoints.record import EXTENSIONS, Checkpoint
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.inventory import Entry
from keras_dist_callbacks.cli.output import Target, progress
from keras_dist_callbacks.errors import DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage

Advance = Callable[[int], None]
"""Is told how many bytes were read."""
Seen = dict[tuple[BlobInfo, frozenset[TensorInfo]], str | None]
"""What is wrong with each blob and those tensors in it that are of interest; None if nothing is."""


@dataclass(frozen=True)
class Verdict:
    """What reading one backup or checkpoint has shown.

    Attributes:
        name: Its path in the directory.
        kind: `"backup"` or `"checkpoint"`.
        state: `"whole"`, `"damaged"`, `"too new"` or `"unfinished"`.
        where: Its place in training, in words.
        bytes: Its size.
        problem: What is wrong with it.
    """

    name: str
    kind: str
    state: str
    where: str | None = None
    bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Verification:
    """What `kdc verify` shows."""

    url: str
    verdicts: tuple[Verdict, ...]
    set_aside: int = 0

    @property
    def all_intact(self) -> bool:
        """Whether nothing is wrong; what was never finished is no loss."""
        return all(verdict.state in {"whole", "unfinished"} for verdict in self.verdicts)


def verify_backup(store: BackupStore, entry: Entry, advance: Advance, seen: Seen) -> Verdict | None:
    """Verifies a backup blob by blob; None if a running fit has deleted it meanwhile.

    Args:
        store: The directory.
        entry: The backup.
        advance: Is told how many bytes were read.
        seen: What was verified before; a blob that several backups refer to for the same tensors is read once.
    """
    manifest = entry.manifest
    if manifest is None:
        return Verdict(entry.id.name, "backup", entry.state, problem=entry.problem)
    problem = None
    tensors: dict[str, set[TensorInfo]] = {blob.path: set() for blob in manifest.blobs}
    for info in (info for record in manifest.workers for info in record.tensors.values()):
        tensors[info.blob].add(info)
    for blob in manifest.blobs:
        key = blob, frozenset(tensors[blob.path])
        if key not in seen:
            seen[key] = _problem_of(store, manifest, *key)
        problem = problem or seen[key]
        advance(blob.size)
    if problem and not store.storage.exists(entry.id.name):
        return None
    state = "damaged" if problem else "whole"
    return Verdict(entry.id.name, "backup", state, formatting.position(manifest.position), work([entry]), problem)


def _problem_of(store: BackupStore, manifest: Manifest, blob: BlobInfo, infos: frozenset[TensorInfo]) -> str | None:
    record = WorkerRecord({str(number): info for number, info in enumerate(infos)})
    try:
        store.verify(dataclasses.replace(manifest, blobs=(blob,), workers=(record,)))
    except DamagedBackupError as error:
        return str(error)
    return None


def verify(target: Target, entries: Sequence[Entry], published: Listing) -> Verification:
    """Reads backups and checkpoints completely.

    Args:
        target: The directory.
        entries: The backups, the newest last.
        published: The checkpoints.
    """
    checkpoints = published.checkpoints
    with progress("verifying", work(entries, checkpoints)) as advance:
        seen: Seen = {}
        verdicts = [verify_backup(target.store, entry, advance, seen) for entry in reversed(entries)]
        verdicts += [_verify_checkpoint(target.storage, checkpoint, advance) for checkpoint in checkpoints]
    verdicts += _problem_verdicts(target.storage, published)
    set_aside = sum(quarantined_name(file.name) is not None for file in target.storage.files(DAMAGED))
    return Verification(target.url, tuple(verdict for verdict in verdicts if verdict is not None), set_aside)


def work(entries: Sequence[Entry], checkpoints: Sequence[Checkpoint] = ()) -> int:
    """How many bytes there are to verify."""
    blobs = sum(blob.size for entry in entries if entry.manifest for blob in entry.manifest.blobs)
    return blobs + sum(checkpoint.file_size for checkpoint in checkpoints)


def _verify_checkpoint(storage: Storage, checkpoint: Checkpoint, advance: Advance) -> Verdict | None:
    """Verifies a checkpoint; None if a running fit has deleted it meanwhile."""
    verdict = Verdict(checkpoint.name, "checkpoint", "whole", f"epoch {checkpoint.record.epoch}", checkpoint.file_size)
    try:
        files.verify(storage, checkpoint.name)
    except FileNotFoundError:
        return None
    except DamagedBackupError as error:
        return dataclasses.replace(verdict, state="damaged", problem=str(error))
    finally:
        advance(checkpoint.file_size)
    return verdict


def _problem_verdicts(storage: Storage, published: Listing) -> list[Verdict]:
    """Checkpoints whose records are damaged or missing."""
    names = [info.name for info in storage.files() if info.name.endswith(EXTENSIONS)] if published.problems else []
    verdicts = []
    for problem in published.problems:
        named = [name for name in names if storage.display(name) in problem]
        verdicts.append(Verdict(max(named, key=len, default=""), "checkpoint", "damaged", problem=problem))
    return verdicts


def show_verification(page: Page, found: Verification) -> None:
    """Prints what `kdc verify` shows."""
    page.line(found.url, "bold")
    rows = ((v.name, formatting.styled(v.state), v.where or "-", formatting.size(v.bytes)) for v in found.verdicts)
    page.table(("name", "", "position", ">size"), rows)
    page.notes(((v.name, v.problem) for v in found.verdicts), "red")
    if found.set_aside:
        number = formatting.count(found.set_aside, "damaged manifest")
        page.line(f"{number} in damaged/, quarantined by an earlier run")
    counts = collections.Counter(verdict.state for verdict in found.verdicts)
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    page.line(summary, "green" if found.all_intact else "bold red")
