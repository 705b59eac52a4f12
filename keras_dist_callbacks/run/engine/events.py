"""What happens in a run, told to whoever asks for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from keras_dist_callbacks.backups.snapshot import Position

EventKind = Literal[
    "attempt_started",
    "resumed",
    "backup_saved",
    "backup_skipped",
    "backup_failed",
    "preemption_requested",
    "worker_lost",
    "nonfinite",
    "rolled_back",
    "attempt_ended",
]

_LOG = logging.getLogger("keras_dist_callbacks.events")
_PATIENCE = 5.0  # seconds that the end of a run waits for a reader


@dataclass(frozen=True)
class Event:
    """Something that has happened in a job.

    Example:
        ```python
        def tell(event: kdc.Event) -> None:
            if event.kind == "backup_failed":
                print(event.step, event.message)

        backup = kdc.BackupAndRestore("runs/backup", on_event=tell)
        ```

    Attributes:
        kind: `"attempt_started"`: a process has taken the backup directory over. `"resumed"`: from a backup.
            `"backup_saved"`: a backup exists. `"backup_skipped"`: one that was due waits for the one before.
            `"backup_failed"`. `"preemption_requested"`. `"worker_lost"`. `"nonfinite"`: a backup holds NaN or infinity.
            `"rolled_back"`: training goes back, or has gone back, to an older backup. `"attempt_ended"`: fit() or the
            loop ends.
        time: When, in seconds since 1970.
        attempt: The number of the run in its backup directory, from 1.
        worker: Who tells it: 0, the chief.
        epoch: The epoch, from 0; None where it has none.
        step: Batches trained, likewise.
        seconds: Of `"backup_saved"`, how long that took in the background.
        bytes: Of `"backup_saved"`, the size of the state.
        message: More, in words.
    """

    kind: EventKind
    time: float
    attempt: int
    worker: int = 0
    epoch: int | None = None
    step: int | None = None
    seconds: float | None = None
    bytes: int | None = None
    message: str = ""


OnEvent = Callable[[Event], Any]


class Events:
    """Makes the events of one run, logs them, and gives them to the user's function in a thread of its own.

    The thread lives only while there is something to tell.

    Args:
        read: The user's function; None: the log alone.
        note: Is given what the user should know.

    Attributes:
        attempt: The number of the run.
    """

    def __init__(self, read: OnEvent | None, note: Callable[[str], None]) -> None:
        self._read, self._note = read, note
        self._waiting: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.attempt = 0

    def happened(
        self,
        kind: EventKind,
        position: Position | None = None,
        message: str = "",
        *,
        seconds: float | None = None,
        size: int | None = None,
    ) -> None:
        """Something has happened. May be called from any thread.

        Args:
            kind: As in `Event`.
            position: Where in training.
            message: As in `Event`.
            seconds: Likewise.
            size: Its `bytes`.
        """
        epoch, step = (None, None) if position is None else (position.epoch, position.step)
        event = Event(kind, time.time(), self.attempt, 0, epoch, step, seconds, size, message)
        _LOG.debug("%s", event)
        if self._read is None:
            return
        self._waiting.put(event)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._tell, name="kdc-events", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread can be started: the next event tries again
                    self._thread = None

    def close(self) -> None:
        """The run ends: waits a little for the user's function."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def _tell(self) -> None:
        while True:
            with self._lock:
                try:
                    event = self._waiting.get_nowait()
                except queue.Empty:
                    self._thread = None
                    return
            try:
                if self._read is not None:
                    self._read(event)
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises ends nothing
                self._note(
                    f"on_event has raised {type(error).__name__}: {error} (of {event.kind!r}); training continues"
                )
