"""Copies growing local event files to a store that TensorFlow itself cannot write."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from keras_dist_callbacks.engine.writer import shared_writer
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.texts import warn


class EventSync:
    """Puts every file of a local directory that changed into a store, in the background.

    Objects cannot be appended to, so a file that grew is put again as a whole. A store that fails costs a
    warning, not the training: logs are not worth a job.

    Args:
        local: The directory that TensorFlow writes to.
        storage: Where its files go, under the same relative names.
        every: Least seconds between two rounds of `now_and_then`.
    """

    def __init__(self, local: Path, storage: Storage, every: float) -> None:
        self._local = local
        self._storage = storage
        self._every = every
        self._last = time.monotonic()
        self._sent: dict[Path, tuple[int, int]] = {}
        self._failure: StorageError | None = None

    def is_due(self) -> bool:
        """Whether the last round is long enough ago."""
        return time.monotonic() - self._last >= self._every

    def start(self) -> None:
        """Queues a round; warns if an earlier one failed."""
        self._report("they are tried again")
        self._last = time.monotonic()
        shared_writer().submit(self._round, f"copying event files to {self._storage.display()}")

    def finish(self) -> bool:
        """Runs a last round and waits for it; whether all files arrived."""
        self.start()
        shared_writer().wait()
        arrived = self._failure is None
        if not arrived:
            self._local = temporary.keep(self._local)
        self._report(f"they stay in {self._local}")
        return arrived

    def _round(self) -> None:
        try:
            for path in sorted(p for p in self._local.rglob("*") if p.is_file()):
                state = (path.stat().st_size, path.stat().st_mtime_ns)
                if self._sent.get(path) != state:
                    self._put(path)
                    self._sent[path] = state
        except StorageError as error:
            self._failure = error

    def _put(self, path: Path) -> None:
        # A copy, because clients that are told a size at the start fail on a file that grows meanwhile.
        with temporary.file("events") as copy:
            shutil.copyfile(path, copy.name)
            self._storage.replace(path.relative_to(self._local).as_posix(), Path(copy.name))

    def _report(self, then: str) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            warn(f"TensorBoard event files could not be copied, {then}: {failure}", UserWarning)
