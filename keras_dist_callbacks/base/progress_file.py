"""The memory-mapped file in which a training process shows where it is, for the process that started it.

The starter makes the file and names it in `KDC_PROGRESS`. `BackupAndRestore` and `Checkpointer` write into it; a write
is one aligned store, so a reader needs no lock, and what was written stays readable after a SIGKILL.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.terminal import say

VARIABLE = "KDC_PROGRESS"
BEFORE = "KDC_BEFORE"
"""When the process before this one began and ended, and after which step: JSON, from a launcher that has seen it."""
NO_BACKUP = (0, -1)
"""What a report says where there is no backup: less than each `fit()` and step."""
_FORMAT = 0x34_43_44_4B  # "KDC4"
_UNKNOWN = -1
_STEPS = 2**40


def unless_restarted(advice: str) -> str:
    """Returns advice to start the job again; nothing where `kdc launch` does so, or says why it does not."""
    return "" if os.environ.get(VARIABLE) else advice


class Phase(IntEnum):
    """What a training process does.

    `OUTSIDE` is everything before the first step of a `fit()` is complete, and what follows its end.
    """

    OUTSIDE = 0
    STEP = 1
    VALIDATION = 2
    EPOCH_END = 3
    SAVE = 4
    END = 5

    def __str__(self) -> str:
        return _PHASES[self]


_PHASES = (
    "outside of fit()",
    "in a step",
    "in validation",
    "between two epochs",
    "in a save",
    "at the end of fit()",
)


class _Cell(IntEnum):
    FORMAT = 0
    PROCESS = 1
    PHASE = 2
    FIT = 3
    EPOCH = 4
    STEP = 5
    BACKUP = 6  # its fit and its step, in one store
    UNSAVED = 7
    STOP_AT = 8
    ENTRIES = 9  # as many as there are phases


_NUMBERS = 8 * (_Cell.ENTRIES + len(Phase))
_PLACE = 1024  # bytes after the numbers: the backup directory
_SIZE = _NUMBERS + _PLACE


@dataclass(frozen=True)
class ProgressReport:
    """What a progress file said at one moment.

    Attributes:
        is_written: Whether a training process has begun to write.
        phase: What it does.
        fit: Which `fit()` of the process it is, from 1; 0 before the first.
        epoch: The epoch, from 0.
        step: Batches trained; None before it is known.
        backup: The `fit()` and the step of the newest backup, or `NO_BACKUP`; None if the process does not know.
        unsaved: Steps of earlier fits of the process that no backup holds.
        entries: How often each phase was entered.
        stop_at: When the process stops because its time is over, in seconds since 1970; None for no limit.
        place: The backup directory of the `fit()`; empty if it is not known.
        process: The training process.
    """

    is_written: bool
    phase: Phase
    fit: int
    epoch: int
    step: int | None
    backup: tuple[int, int] | None
    unsaved: int
    entries: tuple[int, ...]
    stop_at: int | None = None
    place: str = ""
    process: int = 0


def create(path: Path) -> None:
    """Makes an empty progress file; an older one is replaced."""
    path.unlink(missing_ok=True)
    path.write_bytes(bytes(_SIZE))  # not a hole: on a full disk, SIGBUS would end the process that writes into it


def read(path: Path) -> ProgressReport:
    """What a progress file says now."""
    content = path.read_bytes()
    cells = memoryview(content[:_NUMBERS]).cast("q")
    is_written = cells[_Cell.FORMAT] == _FORMAT
    step, backup = (cells[cell] if is_written else _UNKNOWN for cell in (_Cell.STEP, _Cell.BACKUP))
    return ProgressReport(
        is_written,
        Phase(cells[_Cell.PHASE]),
        cells[_Cell.FIT],
        cells[_Cell.EPOCH],
        None if step == _UNKNOWN else step,
        None if backup == _UNKNOWN else divmod(backup, _STEPS) if backup else NO_BACKUP,
        cells[_Cell.UNSAVED],
        tuple(cells[_Cell.ENTRIES :]),
        cells[_Cell.STOP_AT] or None,
        content[_NUMBERS:].rstrip(b"\0").decode(errors="replace"),
        cells[_Cell.PROCESS],
    )


def of_process(pid: int) -> ProgressReport | None:
    """What the progress file of a process on this machine says; None if it has none, or another user may not see it."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        name = f"{VARIABLE}=".encode()
        found = [read(Path(os.fsdecode(one.removeprefix(name)))) for one in environment if one.startswith(name)]
    except (OSError, ValueError, TypeError):  # the last two: it is of another version, or is being made
        return None
    return next((report for report in found if report.is_written and report.process == pid), None)


class ProgressFile(Shared):
    """Writes where this process is; does nothing without `KDC_PROGRESS`."""

    def __init__(self) -> None:
        self._file = _open(os.environ.get(VARIABLE, ""))
        self._cells = None if self._file is None else _cells_of(self._file)
        self._phase = Phase.OUTSIDE
        self._place = ""
        self._backups: dict[str, tuple[int, int]] = {}
        self._unsaved: dict[str, int] = {}

    def in_child(self) -> ProgressFile:
        """A fork does not train for its parent."""
        child = ProgressFile.__new__(ProgressFile)
        child._file = child._cells = None
        child._phase = Phase.OUTSIDE
        return child

    def begin_fit(self, place: str) -> None:
        """A `fit()`, or a loop, begins.

        Args:
            place: Its backup directory.
        """
        file, cells = self._file, self._cells
        if file is not None and cells is not None:
            fit, step = self._backups.get(self._place, NO_BACKUP)
            saved = step if fit == cells[_Cell.FIT] else 0
            unsaved = max(0, cells[_Cell.STEP] - saved)
            self._unsaved[self._place] = self._unsaved.get(self._place, 0) + unsaved
            self._place = place
            shown = place.encode(errors="replace")
            file[_NUMBERS:] = (shown if len(shown) <= _PLACE else b"").ljust(_PLACE, b"\0")
            cells[_Cell.FIT] += 1
            cells[_Cell.STEP] = _UNKNOWN
            self._show_backups()
            self.enter(Phase.OUTSIDE)

    def begin_epoch(self, epoch: int, step: int) -> None:
        """An epoch begins after `step` trained batches."""
        if self._cells is not None:
            self._cells[_Cell.EPOCH] = epoch
            self._cells[_Cell.STEP] = step

    def step_done(self, step: int) -> None:
        """A step is complete; called after each one."""
        cells = self._cells
        if cells is not None:
            cells[5] = step  # _Cell.STEP, without the look-up
            if self._phase != 1:
                self.enter(Phase.STEP)

    def enter(self, phase: Phase) -> None:
        """Another phase begins."""
        if self._cells is not None:
            self._phase = phase
            self._cells[_Cell.PHASE] = phase
            self._cells[_Cell.ENTRIES + phase] += 1

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Enters a phase for the `with` block, and the one before again after it."""
        before = self._phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def backup(self, place: str, step: int | None) -> None:
        """The newest backup in a directory is of this step; None: it holds none. Called from any thread."""
        if self._cells is not None:
            self._backups[place] = NO_BACKUP if step is None else (self._cells[_Cell.FIT], step)
            if step is not None:
                self._unsaved[place] = 0  # a restart finds this backup in the earlier fits of the directory, too
            self._show_backups()

    def forget_backup(self, place: str) -> None:
        """What a directory holds is about to change: if the process is killed meanwhile, nothing is known of it."""
        if self._cells is not None:
            self._backups.pop(place, None)
            self._show_backups()

    def stop_at(self, time: float) -> None:
        """The process is going to stop at this time, in seconds since 1970. Called from any thread."""
        if self._cells is not None:
            self._cells[_Cell.STOP_AT] = int(time)

    def _show_backups(self) -> None:
        cells = self._cells
        if cells is not None:
            fit, step = max(self._backups.values(), default=NO_BACKUP)
            is_known = self._place in self._backups
            cells[_Cell.UNSAVED] = sum(self._unsaved.values())
            cells[_Cell.BACKUP] = _UNKNOWN if not is_known else fit * _STEPS + step if fit else 0


def progress_file() -> ProgressFile:
    """That of this process."""
    return shared(ProgressFile)


def _cells_of(file: memoryview) -> memoryview:
    return file[:_NUMBERS].cast("q")


def _open(path: str) -> memoryview | None:
    """The content of a file; None where another process writes it, such as the parent of this one."""
    if not path:
        return None
    try:
        with open(path, "r+b") as file:
            content = memoryview(mmap.mmap(file.fileno(), _SIZE))
    except (OSError, ValueError) as error:
        say(f"progress is not reported to the launcher: {VARIABLE}={path}: {error}", level=logging.WARNING)
        return None
    cells = _cells_of(content)
    if cells[_Cell.FORMAT] == _FORMAT and _is_alive(cells[_Cell.PROCESS]):
        return None
    cells[_Cell.PROCESS] = os.getpid()
    cells[_Cell.PHASE] = Phase.OUTSIDE
    cells[_Cell.STEP] = cells[_Cell.BACKUP] = _UNKNOWN
    cells[_Cell.FIT] = cells[_Cell.UNSAVED] = cells[_Cell.STOP_AT] = 0
    cells[_Cell.FORMAT] = _FORMAT
    return content


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()
