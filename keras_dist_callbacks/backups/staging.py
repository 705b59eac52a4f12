"""Blobs on their way into the store: written once, several at a time, over what is not needed any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial

from keras_dist_callbacks.backups.codec import Blob
from keras_dist_callbacks.backups.snapshot import BlobInfo
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.storage.transfer import has_content

_UPLOADS = 4  # at once, to a store that is not local; each holds one blob's bytes


class Staging:
    """The blobs of one owner.

    Args:
        storage: The backup directory.
        recycle: Keep local files that are not needed any more, and write over them instead of into new ones. They
            are this owner's own, and no manifest names them.
    """

    def __init__(self, storage: Storage, *, recycle: bool = False) -> None:
        self.storage = storage
        self._recycle = recycle and storage.is_local
        self._written: dict[str, BlobInfo] = {}
        self._spares: dict[str, int] = {}  # path and size

    @property
    def written(self) -> Mapping[str, BlobInfo]:
        """Every blob that was written and not discarded."""
        return self._written

    def forget(self) -> None:
        """The store may have lost what was written: everything is looked at again."""
        self._written.clear()

    def stage_all(self, blobs: Iterable[Blob]) -> None:
        """Writes blobs, several at a time where the store is far away; none that was written before."""
        if self.storage.is_local:
            for blob in blobs:
                self.stage(blob)
            return
        with ThreadPoolExecutor(_UPLOADS, thread_name_prefix="kdc-upload") as pool:
            running: set[Future[BlobInfo]] = set()
            for blob in blobs:
                running.add(pool.submit(self.stage, blob))
                if len(running) >= _UPLOADS:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for upload in done:
                        upload.result()
            for upload in running:
                upload.result()

    def discard(self, path: str, *, spare: bool) -> None:
        """Removes a blob that no manifest names; with `spare`, one of our own may wait to be written over."""
        own = self._written.get(path)
        if own is not None and spare and self._recycle and not self.storage.writes_directly:
            self._spares[path] = own.size
        else:
            self.storage.delete(path)
        self._written.pop(path, None)

    def delete_recycled(self) -> None:
        """Deletes the files that were kept to be written over."""
        for path in list(self._spares):
            self.storage.delete(path)
            del self._spares[path]

    def stage(self, blob: Blob) -> BlobInfo:
        """Writes a blob, unless the same content was written before."""
        if not blob.is_hashed or blob.info.path not in self._written:
            self._write(blob)
        info = blob.info
        self._written[info.path] = info
        self._spares.pop(info.path, None)
        return info

    def _write(self, blob: Blob) -> None:
        try:
            if blob.is_hashed:
                self.storage.create(blob.info.path, tuple(blob), self._spare_for(blob.size, blob.info.path))
            else:
                self.storage.create_named_after_write(blob.like, blob, blob.size, lambda: blob.info.path)
        except FileExistsError:  # it is ours, from before a failed save, and may have been harmed since
            if blob.info.path not in self._written and not self._holds(blob):
                self.storage.delete(blob.info.path)
                self.storage.create(blob.info.path, tuple(blob))

    def _spare_for(self, size: int, path: str) -> str | None:
        """Returns the unneeded file of the nearest size, if reusing it is worth while."""
        worth = {spare: its for spare, its in self._spares.items() if its / 2 <= size <= its * 2}
        worth.pop(path, None)
        nearest = min(worth, key=lambda spare: abs(worth[spare] - size), default=None)
        if nearest is not None:
            del self._spares[nearest]
        return nearest

    def _holds(self, blob: Blob) -> bool:
        path = blob.info.path
        try:
            return has_content(self.storage.size(path), partial(self.storage.read, path), map(memoryview, blob))
        except FileNotFoundError:
            return False
