"""`kdc verify`: reads everything that backups and checkpoints consist of; changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from keras_dist_callbacks.backups.snapshot import BlobInfo, Manifest, TensorInfo, WorkerRecord
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.files import Listing
from keras_dist_callbacks.checkpoints.record import EXTENSIONS, Checkpoint
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.inventory import Entry
from keras_dist_callbacks.errors import DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage

Advance = Callable[[int], None]
"""Is told how many bytes were read."""


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


@dataclass
class BackupVerifier:
    """Verifies commits blob by blob; one that several commits refer to for the same tensors is read once."""

    store: BackupStore
    advance: Advance = lambda count: None
    _seen: dict[tuple[BlobInfo, frozenset[TensorInfo]], str | None] = field(default_factory=dict)

    def verdict(self, entry: Entry) -> Verdict | None:
        """Verifies a commit; None if a running fit has deleted it meanwhile."""
        if entry.manifest is None:
            return Verdict(entry.id.name, "backup", entry.state, problem=entry.problem)
        problem = self.problem(entry.manifest)
        if problem and not self.store.storage.exists(entry.id.name):
            return None
        return Verdict(
            entry.id.name,
            "backup",
            "damaged" if problem else "whole",
            formatting.position(entry.manifest.position),
            sum(blob.size for blob in entry.manifest.blobs),
            problem,
        )

    def problem(self, manifest: Manifest) -> str | None:
        """What is wrong with a commit; None if it is whole."""
        problems = [self._problem_of(part) for part in _parts(manifest)]
        return next((problem for problem in problems if problem), None)

    def _problem_of(self, part: Manifest) -> str | None:
        (blob,) = part.blobs or (None,)
        wanted = frozenset(part.workers[0].tensors.values())
        if blob is not None and (blob, wanted) in self._seen:
            self.advance(blob.size)
            return self._seen[blob, wanted]
        try:
            self.store.verify(part)
            problem = None
        except DamagedBackupError as error:
            problem = str(error)
        if blob is not None:
            self._seen[blob, wanted] = problem
            self.advance(blob.size)
        return problem


def work(entries: Sequence[Entry], published: Sequence[Checkpoint]) -> int:
    """How many bytes there are to verify."""
    blobs = sum(blob.size for entry in entries if entry.manifest for blob in entry.manifest.blobs)
    return blobs + sum(checkpoint.file_size for checkpoint in published)


def verify_checkpoint(storage: Storage, checkpoint: Checkpoint, advance: Advance) -> Verdict | None:
    """Verifies a checkpoint; None if a running fit has deleted it meanwhile."""
    where, size = f"epoch {checkpoint.record.epoch}", checkpoint.file_size
    verdict = Verdict(checkpoint.name, "checkpoint", "whole", where, size)
    try:
        files.verify(storage, checkpoint.name)
    except FileNotFoundError:
        return None
    except DamagedBackupError as error:
        return dataclasses.replace(verdict, state="damaged", problem=str(error))
    finally:
        advance(size)
    return verdict


def problem_verdicts(storage: Storage, listing: Listing) -> list[Verdict]:
    """Checkpoints whose records are damaged or missing."""
    names = {info.name for info in storage.files() if info.name.endswith(EXTENSIONS)} if listing.problems else set()

    def name_in(problem: str) -> str:
        return max((name for name in names if storage.display(name) in problem), key=len, default="")

    return [Verdict(name_in(problem), "checkpoint", "damaged", problem=problem) for problem in listing.problems]


def _parts(manifest: Manifest) -> Iterator[Manifest]:
    """The manifest cut into one for each blob, each with what is in that blob."""
    by_blob: dict[str, dict[str, TensorInfo]] = {blob.path: {} for blob in manifest.blobs}
    for worker, record in enumerate(manifest.workers):
        for name, info in record.tensors.items():
            by_blob.setdefault(info.blob, {})[f"{worker}:{name}"] = info
    known = {blob.path: blob for blob in manifest.blobs}
    for path, tensors in by_blob.items():
        blobs = (known[path],) if path in known else ()
        yield dataclasses.replace(manifest, blobs=blobs, workers=(WorkerRecord(tensors),))
