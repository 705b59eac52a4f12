"""`kdc verify`: reads everything that backups and checkpoints consist of; changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from keras_dist_callbacks.backups import artifacts
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.backups.sidecar import SIDECAR, Artifact
from keras_dist_callbacks.backups.snapshot import BlobInfo, Manifest, TensorInfo, WorkerRecord
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli import human
from keras_dist_callbacks.cli.inventory import Entry
from keras_dist_callbacks.errors import DamagedBackupError

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
    def all_whole(self) -> bool:
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
            human.position(entry.manifest.position),
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


def work(entries: Sequence[Entry], published: Sequence[Artifact]) -> int:
    """How many bytes there are to verify."""
    blobs = sum(blob.size for entry in entries if entry.manifest for blob in entry.manifest.blobs)
    return blobs + sum(artifact.size for artifact in published)


def verify_artifact(directory: CheckpointDirectory, artifact: Artifact, advance: Advance) -> Verdict | None:
    """Verifies an artefact; None if a running fit has deleted it meanwhile."""
    verdict = Verdict(artifact.name, "checkpoint", "whole", f"epoch {artifact.epoch}", artifact.size)
    try:
        artifacts.verify(directory, artifact)
    except DamagedBackupError as error:
        if not any(directory.has_note(place, artifact.name + SIDECAR) for place in directory.places):
            return None
        return dataclasses.replace(verdict, state="damaged", problem=str(error))
    finally:
        advance(artifact.size)
    return verdict


def problem_verdicts(directory: CheckpointDirectory, problems: Sequence[str]) -> list[Verdict]:
    """Artefacts that a listing has found to be damaged already; each problem begins with a file's full path."""
    names = directory.names_aside() | directory.names() if problems else set[str]()
    paths = [(name.removesuffix(SIDECAR), place) for name in names for place in directory.places]

    def name_in(problem: str) -> str:
        return max((n for n, place in paths if problem.startswith(place.display(n))), key=len, default="")

    return [Verdict(name_in(problem), "checkpoint", "damaged", problem=problem) for problem in problems]


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
