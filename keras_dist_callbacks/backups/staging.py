"""Blobs on their way into the store: each written once, several at a time where the store is far away."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial

from keras_dist_callbacks.backups.packing import Blob
from keras_dist_callbacks.backups.snapshot import BlobInfo
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.storage.transfer import has_content

_UPLOADS = 4  # at once, to a store that is not local; each holds one blob's bytes


class Staging:
    """The blobs of one owner.

    Args:
        storage: The backup directory.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.written: dict[str, BlobInfo] = {}  # and not discarded

    def forget(self) -> None:
        """The store may have lost what was written: everything is looked at again."""
        self.written.clear()

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

    def discard(self, path: str) -> None:
        """Removes a blob that no manifest names."""
        self.storage.delete(path)
        self.written.pop(path, None)

    def stage(self, blob: Blob) -> BlobInfo:
        """Writes a blob, unless the same content was written before."""
        if blob.is_hashed and blob.info.path in self.written:
            return blob.info
        try:
            if blob.is_hashed:
                self.storage.create(blob.info.path, tuple(blob))
            else:
                self.storage.create_named_after_write(blob.like, blob, blob.size, lambda: blob.info.path)
        except FileExistsError:  # it is ours, from before a failed save, and may have been harmed since
            if blob.info.path not in self.written and not self._holds(blob):
                self.storage.delete(blob.info.path)
                self.storage.create(blob.info.path, tuple(blob))
        self.written[blob.info.path] = blob.info
        return blob.info

    def _holds(self, blob: Blob) -> bool:
        path = blob.info.path
        try:
            return has_content(self.storage.size(path), partial(self.storage.read, path), map(memoryview, blob))
        except FileNotFoundError:
            return False
