"""The backups of one run on their way: one that is being written, and the newest one behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from keras_dist_callbacks.engine.priority import Pace
from keras_dist_callbacks.engine.writer import Writer


class Line:
    """What is handed to the writer and not written yet.

    Args:
        writer: The queue of this process, in which other jobs may stand too.

    Attributes:
        is_busy: Whether a backup waits or is being written, asked after every step; other jobs of the queue do not
            count.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._pace = Pace()
        self._unfinished = 0
        self.is_busy = False
        self._last: tuple[int, int] | None = None  # ticket and number of the newest save, if it may be overtaken

    def enter(self, save: int, write: Callable[[], None], what: str, *, lasting: bool, urgent: bool) -> None:
        """Hands over a backup.

        Args:
            save: Its number.
            write: Writes it, and raises what is to end training.
            what: For messages.
            lasting: No newer one overtakes it.
            urgent: As in `Writer.submit`.
        """

        def run() -> None:
            try:
                with self._pace.done():
                    write()
            finally:
                self._one_less()

        share = self._pace.due()
        with self._lock:
            late = self.is_busy
            self._count(1)
        try:
            ticket = self._writer.submit(run, what, urgent=urgent, late=late, share=share)
        except BaseException:
            self._one_less()
            raise
        self._last = None if lasting else (ticket, save)

    @property
    def is_full(self) -> bool:
        """Whether one waits that may not be overtaken any more, because something else stands behind it."""
        return self._last is not None and self._writer.is_waiting(self._last[0])

    def take_back(self) -> int | None:
        """The number of the save that was to be written next and is not any more; None if none can be overtaken."""
        if self._last is None or not self._writer.withdraw(self._last[0]):
            return None
        (_, save), self._last = self._last, None
        self._one_less()
        return save

    def _one_less(self) -> None:
        with self._lock:
            self._count(-1)

    def _count(self, change: int) -> None:
        self._unfinished += change
        self.is_busy = self._unfinished > 0
