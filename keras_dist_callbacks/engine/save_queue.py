"""Backups that are due while another is being written: queued, superseded, skipped."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.engine.writer import Owner, Writer


class SaveQueue:
    """What is handed to the writer and not written yet.

    Args:
        writer: The queue of this process, in which other jobs may stand too.
        owner: The run that saves.

    Attributes:
        unfinished: Backups that wait or are being written; other jobs of the queue do not count.
        is_busy: Whether there is one, asked after every step.
    """

    def __init__(self, writer: Writer, owner: Owner) -> None:
        self._writer, self._owner = writer, owner
        self._lock = threading.Lock()
        self.unfinished = 0
        self.is_busy = False
        self._last: tuple[int, int] | None = None  # ticket and number of the newest save, if it may be superseded

    def enter(self, save: int, write: Callable[[], None], what: str, *, lasting: bool) -> None:
        """Hands over a backup.

        Args:
            save: Its number.
            write: Writes it, and raises what is to end training.
            what: For messages.
            lasting: No newer one overtakes it.
        """

        def run() -> None:
            try:
                write()
            finally:
                self._count(-1)

        self._count(1)
        try:
            ticket = self._writer.submit(run, what, self._owner)
        except BaseException:
            self._count(-1)
            raise
        self._last = None if lasting else (ticket, save)

    @property
    def has_unreplaceable_save(self) -> bool:
        """Whether one is queued that cannot be superseded any more, because something else is queued after it."""
        return self._last is not None and self._writer.is_waiting(self._last[0])

    def cancel(self) -> int | None:
        """Takes the queued save back that can be superseded, and returns its number; None without one."""
        if self._last is None or not self._writer.withdraw(self._last[0]):
            return None
        (_, save), self._last = self._last, None
        self._count(-1)
        return save

    def _count(self, change: int) -> None:
        with self._lock:
            self.unfinished += change
            self.is_busy = self.unfinished > 0


_LEAST_RISK = 30.0  # seconds of training that no backup holds
_INTERVALS = 3  # and as many times the time between two backups that are due


class SkippedSaves:
    """Counts them, and warns once when a kill would lose much more training than the user asked for."""

    def __init__(self) -> None:
        self._count = self._saves = 0
        self._has_warned = False
        self._started = (0, 0.0)  # step and time of the backup that is being written
        self._due: dict[int, float] = {}  # when, by step, since the newest committed backup
        self._first_due = self._last_due = self._safe_until = 0.0

    def record_due(self, position: Position) -> None:
        """It is time for a backup."""
        now = time.monotonic()
        if not self._saves:
            self._first_due = self._safe_until = now
        self._saves, self._last_due, self._due[position.step] = self._saves + 1, now, now

    def record_start(self, position: Position) -> None:
        """One is going to be written now, or as soon as the queue comes to it."""
        self._started = (position.step, time.monotonic())

    def record_commit(self, position: Position) -> None:
        """One is committed: training up to where it was due is safe."""
        self._safe_until = self._due.get(position.step, self._safe_until)
        self._due = {step: due for step, due in dict(self._due).items() if step > position.step}

    def record_skip(self, position: Position) -> str | None:
        """One is skipped or superseded when another one is due at `position`; the warning, if it is time for it."""
        self._count += 1
        now = time.monotonic()
        at_risk = now - self._safe_until
        interval = (self._last_due - self._first_due) / max(1, self._saves - 1)
        if self._has_warned or at_risk < max(_LEAST_RISK, _INTERVALS * interval):
            return None
        self._has_warned = True
        step, since = self._started
        return (
            f"backups are skipped: a kill now loses the last {at_risk:.0f} s of training, because the backup at step "
            f"{step} is still being written after {now - since:.0f} s. Save less often, with "
            f"save_freq={_rounded_up(position.step - step)} or more, or let save_freq='auto' choose"
        )

    def summary(self) -> str | None:
        """What to say at the end, where there was a warning."""
        if not self._has_warned:
            return None
        return (
            f"{self._count} of {self._saves} backups were skipped because the one before was still being written; "
            "save less often, or wait with when_busy='wait'"
        )


def _rounded_up(steps: int) -> int:
    """To two digits that differ from zero at most, as people choose an interval."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return -(-steps // unit) * unit


_HOST = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_FILES = {  # of a control group: its limit, what it uses, and what of that is pages that are given up when asked for
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_SHARE = 0.5


def half_of_free_memory() -> int:
    """Bytes; 0 where the system does not report it."""
    return int(min([_free_on_the_host(), *_free_in_groups()]) * _SHARE)


def _free_in_groups() -> Iterator[int]:
    """What is left to each control group that this process is in, in versions 2 and 1 of them."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for kind in _FILES.keys() & set(controllers.split(",")):
            own = Path(path.lstrip("/"))
            for group in (own, *own.parents):  # a container sees its own at the top
                yield from _free_in(_GROUPS / kind / group, kind)


def _free_in(group: Path, kind: str) -> Iterator[int]:
    limit, used, inactive = _FILES[kind]
    with contextlib.suppress(OSError, ValueError):  # not found, or it says "max"
        most, now = int((group / limit).read_text()), int((group / used).read_text())
        memory_fields = (group / "memory.stat").read_text().split()
        given_up = int(memory_fields[memory_fields.index(inactive) + 1]) if inactive in memory_fields else 0
        yield max(0, most - now + given_up)


def _free_on_the_host() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in _HOST.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    return 0
