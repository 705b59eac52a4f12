"""Commits in a directory of any store: claim, stage, commit, list, read, prune.

    owners/<generation>.json                       who may write; the highest number rules
    blobs/<generation>/<content-hash>.safetensors  tensors
    commits/<generation>-<sequence>-<token>.json   manifests: a commit exists when its manifest does
    damaged/...                                    manifests that failed verification, kept for inspection

No final name is ever overwritten, and there is no pointer to the latest that could be torn.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

import xxhash

from keras_dist_callbacks.checkpointing.codec import Blob, decode_blob, decode_manifest, encode_manifest
from keras_dist_callbacks.checkpointing.snapshot import (
    BlobInfo,
    CommitId,
    Manifest,
    TensorInfo,
    WorkerRecord,
    WorkerState,
)
from keras_dist_callbacks.errors import DamagedBackupError, FencedError, StorageError
from keras_dist_callbacks.storage import Storage

OWNERS, BLOBS, COMMITS, DAMAGED = "owners", "blobs", "commits", "damaged"
MAX_MANIFEST_BYTES = 2**30


class BackupStore:
    """The backup directory as its readers and its owner see it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.generation = 0  # 0: not an owner
        self._written: dict[str, BlobInfo] = {}
        self._manifests: dict[CommitId, Manifest] = {}
        self._newest: Manifest | None = None  # of this owner
        self.notes: list[str] = []

    # --- ownership

    def claim(self, info: Mapping[str, Any]) -> int:
        """Becomes the owner: takes the next generation, which fences every earlier owner.

        Returns:
            The generation, 1 or more.
        """
        content = json.dumps({**info, "token": uuid.uuid4().hex, "claimed": time.time()}).encode()
        while True:
            generation = self.newest_generation() + 1
            try:
                self.storage.create(_owner_name(generation), [content])
            except FileExistsError:
                continue  # another run was faster; take the number after it
            self.generation = generation
            return generation

    def newest_generation(self) -> int:
        """The number of the newest owner record or commit, 0 if there is none."""
        return max([0, *self._owners(), *(commit.generation for commit in self.commits())])

    def check_ownership(self) -> None:
        """Makes sure that no newer run has taken the directory, or has taken it and deleted its backup.

        Raises:
            FencedError: One has.
        """
        newest = self.newest_generation()
        if newest != self.generation:
            raise FencedError(
                f"{self.storage.display()} was taken over by a newer run (generation {newest or 'gone'}, this run is "
                f"{self.generation}); this run must stop. Give each run a directory of its own"
            )

    # --- writing

    def stage(self, blob: Blob) -> BlobInfo:
        """Writes a blob of this owner's generation, unless it wrote the same content before."""
        if blob.info.path not in self._written:
            try:
                self.storage.create(blob.info.path, blob.parts)
            except FileExistsError:
                if self.storage.size(blob.info.path) != blob.info.size:
                    raise StorageError(f"{self.storage.display(blob.info.path)} exists with another content") from None
            self._written[blob.info.path] = blob.info
        return blob.info

    @property
    def staged(self) -> Mapping[str, BlobInfo]:
        """Every blob that this owner wrote and has not deleted."""
        return self._written

    @property
    def blob_directory(self) -> str:
        """Where this owner's blobs are."""
        return f"{BLOBS}/{self.generation:06d}"

    def commit(self, manifest: Manifest) -> None:
        """Publishes a manifest and reads it back: from here on the backup exists.

        Raises:
            FencedError: A newer run owns the directory.
            StorageError: What was written reads back differently.
        """
        self.check_ownership()
        self._check_sizes(manifest)
        content = encode_manifest(manifest)
        self.storage.create(manifest.id.name, [content])
        if self.storage.read(manifest.id.name) != content:
            raise StorageError(f"{self.storage.display(manifest.id.name)} reads back differently from what was written")
        self._manifests[manifest.id] = self._newest = manifest

    def prune(self, keep: int) -> None:
        """Deletes all commits but the newest `keep`, manifests first, then blobs that no manifest names.

        Never touches what a newer generation wrote. A damaged manifest that turns up is set aside.
        """
        manifests = self._own_manifests()
        cut = max(0, len(manifests) - keep)
        obsolete, kept = manifests[:cut], manifests[cut:]
        needed = {blob.path for manifest in kept for blob in manifest.blobs}
        if self._newest is not None and keep:  # whatever a listing may have missed
            needed |= {blob.path for blob in self._newest.blobs}
        unneeded = {blob.path for manifest in obsolete for blob in manifest.blobs} | self._written.keys()
        for manifest in obsolete:
            self.storage.delete(manifest.id.name)
            self._manifests.pop(manifest.id, None)
        for path in sorted(unneeded - needed):
            self.storage.delete(path)
            self._written.pop(path, None)

    def collect_orphans(self) -> None:
        """Deletes what interrupted saves of earlier generations left: blobs and files that no manifest names."""
        needed = {blob.path for manifest in self._own_manifests() for blob in manifest.blobs}
        if self.storage.files(DAMAGED):
            return  # a damaged backup's blobs are kept for inspection
        for generation in self._generations():
            directory = f"{BLOBS}/{generation:06d}"
            names = {f"{directory}/{f.name}" for f in self.storage.files(directory)}
            for path in sorted(names - needed):
                self.storage.delete(path)
            if not names & needed:
                self.storage.delete(_owner_name(generation))
                self.storage.remove_empty_directories([directory])
        for file in self.storage.temporary_files(COMMITS):
            self.storage.delete(f"{COMMITS}/{file.name}")

    def delete_everything(self) -> None:
        """Removes this run's backup: older commits first, the newest one last, then empty directories.

        Interrupted at any point, either the newest commit is whole or there is none.
        """
        self.check_ownership()
        self.prune(keep=1)
        self.prune(keep=0)
        generations = [*self._generations(), self.generation]
        for generation in generations:
            self.storage.delete(_owner_name(generation))
        blobs = [f"{BLOBS}/{generation:06d}" for generation in generations]
        self.storage.remove_empty_directories([*blobs, BLOBS, COMMITS, OWNERS, ""])

    # --- reading

    def commits(self) -> list[CommitId]:
        """All commits, the newest last."""
        found = (CommitId.parse(f.name) for f in self.storage.files(COMMITS))
        return sorted(commit for commit in found if commit is not None)

    def has_leftovers(self) -> bool:
        """Whether earlier runs started here."""
        return bool(self.storage.files(OWNERS))

    def manifest(self, commit: CommitId) -> Manifest:
        """Reads and checks a manifest.

        Raises:
            DamagedBackupError: It is not what was written.
            BackupMismatchError: A newer version of this package wrote it.
        """
        if commit not in self._manifests:
            where = self.storage.display(commit.name)
            if (self.storage.size(commit.name) or 0) > MAX_MANIFEST_BYTES:
                raise DamagedBackupError(f"{where} is too large for a manifest")
            try:
                content = self.storage.read(commit.name)
            except FileNotFoundError as error:
                raise DamagedBackupError(f"{where} is gone") from error
            manifest = decode_manifest(content, where)
            if manifest.id != commit:
                raise DamagedBackupError(f"{where} holds the manifest of another commit")
            self._manifests[commit] = manifest
        return self._manifests[commit]

    def load(self, manifest: Manifest, worker: int) -> WorkerState:
        """Reads and verifies the state of one worker; a worker that was not there gets the chief's.

        Raises:
            DamagedBackupError: A blob is missing or differs from the manifest.
        """
        own = manifest.workers[worker] if worker < len(manifest.workers) else WorkerRecord()
        infos = {**manifest.workers[0].tensors, **own.tensors}
        by_blob: dict[str, dict[str, TensorInfo]] = {}
        for name, info in infos.items():
            by_blob.setdefault(info.blob, {})[name] = info
        known = {blob.path: blob for blob in manifest.blobs}
        found = {}
        for path, wanted in by_blob.items():
            found.update(decode_blob(self._read_blob(path, known), wanted, self.storage.display(path)))
        tensors = {name: found[name] for name in infos}  # in the order of the model's variables
        return WorkerState(manifest.position, tensors, {**manifest.workers[0].state, **own.state}, manifest.info)

    def verify(self, manifest: Manifest) -> None:
        """Reads every blob of a commit and every tensor in it.

        Raises:
            DamagedBackupError: Something is missing or differs from the manifest.
        """
        by_blob: dict[str, dict[str, TensorInfo]] = {}
        for record in manifest.workers:
            for info in record.tensors.values():
                by_blob.setdefault(info.blob, {})[info.key] = info
        known = {blob.path: blob for blob in manifest.blobs}
        for path, wanted in by_blob.items():
            decode_blob(self._read_blob(path, known), wanted, self.storage.display(path))

    def quarantine(self, commit: CommitId) -> None:
        """Moves a damaged manifest aside, so that it is neither taken nor lost."""
        try:
            content = self.storage.read(commit.name)
        except FileNotFoundError:
            return
        name = f"{DAMAGED}/{uuid.uuid4().hex[:8]}-{commit.name.removeprefix(COMMITS + '/')}"
        self.storage.create(name, [content])
        self.storage.delete(commit.name)

    def _read_blob(self, path: str, known: Mapping[str, BlobInfo]) -> bytes:
        where = self.storage.display(path)
        blob = known.get(path)
        if blob is None or not path.startswith(f"{BLOBS}/"):
            raise DamagedBackupError(f"{where} is named by a tensor, but not listed among the blobs")
        size = self.storage.size(path)
        if size != blob.size:
            found = "missing" if size is None else f"{size} bytes long"
            raise DamagedBackupError(f"{where} is {found} instead of {blob.size} bytes long")
        content = self.storage.read(path)
        if xxhash.xxh3_128_hexdigest(content) != blob.hash:
            raise DamagedBackupError(f"{where} differs from its hash")
        return content

    def _check_sizes(self, manifest: Manifest) -> None:
        sizes: dict[str, int] = {}
        for directory in {blob.path.rpartition("/")[0] for blob in manifest.blobs}:
            sizes.update({f"{directory}/{f.name}": f.size for f in self.storage.files(directory)})
        for blob in manifest.blobs:
            if sizes.get(blob.path) != blob.size:
                self._written.pop(blob.path, None)  # the next save writes it anew
                raise StorageError(
                    f"{self.storage.display(blob.path)} has {sizes.get(blob.path)} bytes instead of {blob.size}"
                )

    def _own_manifests(self) -> list[Manifest]:
        """The manifests of this and earlier generations, the newest last; damaged ones are set aside."""
        manifests = []
        for commit in self.commits():
            if commit.generation <= self.generation:
                try:
                    manifests.append(self.manifest(commit))
                except DamagedBackupError as error:
                    self.notes.append(f"{error}; it is set aside in {DAMAGED}/")
                    self.quarantine(commit)
        return manifests

    def _generations(self) -> list[int]:
        """Earlier generations that have an owner record, ascending."""
        return sorted(g for g in self._owners() if g < self.generation)

    def _owners(self) -> list[int]:
        names = (f.name.removesuffix(".json") for f in self.storage.files(OWNERS) if f.name.endswith(".json"))
        return [int(name) for name in names if name.isdigit()]


def _owner_name(generation: int) -> str:
    return f"{OWNERS}/{generation:06d}.json"
