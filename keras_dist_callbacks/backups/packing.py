"""Which tensors of a snapshot are written anew, which are found in earlier blobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist_callbacks.backups.codec import Blob, Draft, Fingerprint, encode_blob
from keras_dist_callbacks.backups.snapshot import BlobInfo, HeldTensor, TensorInfo, WorkerRecord

BLOB_BYTES = 64 * 2**20
_WORTH_KEEPING = 0.5


class Packer:
    """Decides which tensors of a commit are written anew, and which are found in earlier blobs.

    A tensor with the same content as one in the commit it is compared with is referred to, not written again;
    components of a variable that are equal on all replicas are written once. A blob of which less than half is
    still needed is not referred to: what is needed of it is written anew, so that the store does not fill up with
    blobs that live for one small tensor each. A tensor without a fingerprint is written, and gets one on the way.
    """

    def __init__(
        self,
        known: Mapping[str, TensorInfo],
        directory: str,
        sizes: Mapping[str, int] | None = None,
        copy: int = 0,
    ) -> None:
        """Prepares one commit.

        Args:
            known: Tensors that may be referred to.
            directory: Where new blobs will be.
            sizes: Bytes of the blobs that `known` names. Defaults to none: any blob is worth referring to.
            copy: Blobs of packers with different numbers are different files, whatever they hold.
        """
        self._known = {Fingerprint(t.hash, t.dtype, t.shape): t for t in known.values()}
        self._places: dict[Fingerprint, TensorInfo] = {}
        self._drafts: list[Draft] = []
        self._found: dict[str, Fingerprint] = {}  # of tensors that had none, by their names in blobs
        self._directory = directory
        self._sizes = sizes or {}
        self._copy = copy

    def pack(
        self, tensors: Mapping[str, HeldTensor], prints: Mapping[str, Fingerprint], prefix: str = ""
    ) -> Iterator[Blob | Draft]:
        """Yields the blobs that must be written, a few tensors at a time.

        Args:
            tensors: What is to be found, by name.
            prints: Their fingerprints; whatever has none must differ from all else, and its blob is a draft.
            prefix: Of their names in blobs.
        """
        fresh, moved = self._to_write(tensors, prints)
        for names in (moved, fresh):  # apart: what did not change now is likely to stay
            yield from self._pack(names, tensors, prints, prefix)

    def bytes_to_write(self, tensors: Mapping[str, HeldTensor], prints: Mapping[str, Fingerprint]) -> int:
        """About how many bytes `pack` will yield, before it is called."""
        fresh = {prints.get(name, name): name for name in tensors if prints.get(name) not in self._known}
        return sum(tensors[name].array().nbytes for name in fresh.values())

    def locate(
        self, tensors: Mapping[str, HeldTensor], prints: Mapping[str, Fingerprint], prefix: str = ""
    ) -> dict[str, TensorInfo]:
        """Where each tensor is found, once all blobs of `pack` were written."""
        self._settle()
        return {name: self._places[prints.get(name) or self._found[prefix + name]] for name in tensors}

    def _to_write(
        self, tensors: Mapping[str, HeldTensor], prints: Mapping[str, Fingerprint]
    ) -> tuple[list[str], list[str]]:
        self._settle()
        fresh: dict[Fingerprint | str, str] = {}
        found: dict[Fingerprint, str] = {}
        for name in tensors:
            fingerprint = prints.get(name)
            if fingerprint is None:
                fresh[name] = name
            elif fingerprint not in self._places:
                (found if fingerprint in self._known else fresh).setdefault(fingerprint, name)
        live: dict[str, int] = {}
        for fingerprint, name in found.items():
            blob = self._known[fingerprint].blob
            live[blob] = live.get(blob, 0) + tensors[name].array().nbytes
        moved = []
        for fingerprint, name in found.items():
            place = self._known[fingerprint]
            if live[place.blob] < _WORTH_KEEPING * self._sizes.get(place.blob, 0):
                moved.append(name)
            else:
                self._places[fingerprint] = place
        return list(fresh.values()), moved

    def _pack(
        self, names: Sequence[str], tensors: Mapping[str, HeldTensor], prints: Mapping[str, Fingerprint], prefix: str
    ) -> Iterator[Blob | Draft]:
        group: dict[str, np.ndarray[Any, Any]] = {}
        size = 0
        for name in names:
            array = tensors[name].array()
            if group and size + array.nbytes > BLOB_BYTES:
                yield self._packed(group, prints, prefix)
                group, size = {}, 0
            group[name] = array
            size += array.nbytes
        if group:
            yield self._packed(group, prints, prefix)

    def _packed(
        self, group: Mapping[str, np.ndarray[Any, Any]], prints: Mapping[str, Fingerprint], prefix: str
    ) -> Blob | Draft:
        arrays = {prefix + name: array for name, array in group.items()}
        known = {prefix + name: prints[name] for name in group if name in prints}
        if len(known) < len(arrays):
            draft = Draft(arrays, known, self._directory, self._copy)
            self._drafts.append(draft)
            return draft
        blob = encode_blob(arrays, known, self._directory, self._copy)
        self._register(blob, known)
        return blob

    def _settle(self) -> None:
        """Drafts have been written: their names and fingerprints are known."""
        for draft in self._drafts:
            prints = {key: draft.fingerprint(key) for key in draft.tensors}
            self._register(draft.blob(), prints)
            self._found |= prints
        self._drafts.clear()

    def _register(self, blob: Blob, prints: Mapping[str, Fingerprint]) -> None:
        for key, fingerprint in prints.items():
            self._places[fingerprint] = TensorInfo(
                blob.info.path, key, blob.starts[key], fingerprint.dtype, fingerprint.shape, fingerprint.hash
            )


def referenced_blobs(records: Sequence[WorkerRecord], known: Mapping[str, BlobInfo]) -> tuple[BlobInfo, ...]:
    """Each blob that the records name, once, sorted by path."""
    paths = {info.blob for record in records for info in record.tensors.values()}
    return tuple(known[path] for path in sorted(paths))
