"""What another worker than the chief has handed over and the chief has not asked for yet."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from keras_dist_callbacks.backups.snapshot import Position, Snapshot
from keras_dist_callbacks.engine.exchange import Exchange
from keras_dist_callbacks.engine.writer import Writer
from keras_dist_callbacks.errors import BackupError, ClusterError


class Deliveries:
    """Parts of backups, delivered one after the other; what the chief skips meanwhile is let go at once.

    A worker does not know what stands in the chief's queue. While one save waits for its turn there, it would else
    collect the states of all those behind it, which the chief has long left out.

    Args:
        exchange: Delivers.
        writer: The queue of this process.
        note: Is told what the user should know.
    """

    def __init__(self, exchange: Exchange, writer: Writer, note: Callable[[str], None]) -> None:
        self._exchange, self._writer, self._note = exchange, writer, note
        self._lock = threading.Lock()
        self._held: dict[int, Snapshot] = {}

    def enter(self, save: int, snapshot: Snapshot) -> None:
        """Hands over this worker's part of a save."""
        with self._lock:
            self._held[save] = snapshot
        what = f"backup at {snapshot.position}"
        try:
            self._writer.submit(functools.partial(self._deliver, save, snapshot.position), what)
        except BaseException:
            self._take(save)
            raise

    def _deliver(self, save: int, position: Position) -> None:
        snapshot = self._take(save)
        if snapshot is None:
            return
        try:
            self._exchange.deliver(save, snapshot, self._let_go)
        except (BackupError, ClusterError) as error:
            self._note(f"this worker's part of the backup at {position} was not saved: {error}")

    def _let_go(self) -> None:
        """Forgets what was skipped, the oldest first; whatever follows one without an answer has none either."""
        with self._lock:
            waiting = list(self._held)
        for save in waiting:
            if not self._exchange.was_skipped(save):
                return
            self._take(save)

    def _take(self, save: int) -> Snapshot | None:
        with self._lock:
            return self._held.pop(save, None)
