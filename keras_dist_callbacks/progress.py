"""Progress of what takes long, on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from keras_dist_callbacks.texts import printable

_SHOW_AFTER = 3.0


class UploadBar:
    """Counts bytes; shows itself only once an upload lasts long. May be used from several threads.

    Args:
        description: What is being uploaded.
        total_bytes: How much it is.
    """

    def __init__(self, description: str, total_bytes: int) -> None:
        self._description = printable(description)
        self._total = total_bytes
        self._lock = threading.Lock()
        self._done = 0
        self._closed = False
        self._stop = contextlib.ExitStack()
        self._shown: object = None

    @property
    def done(self) -> int:
        """Bytes so far."""
        return self._done

    @property
    def shown(self) -> bool:
        """Whether the bar was drawn."""
        return self._shown is not None

    def advance(self, count: int) -> None:
        """`count` more bytes are sent."""
        with self._lock:
            self._done += count
            self._draw()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        with self._lock:
            if self._closed:
                return
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                Speed(),
                TimeRemainingColumn(),
            )
            console = Console(stderr=True)
            self._shown = self._stop.enter_context(
                Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            )
            self._task = self._shown.add_task(self._description, total=self._total)
            self._draw()

    def _draw(self) -> None:
        if self._shown is not None:
            self._shown.update(self._task, completed=self._done)  # type: ignore[attr-defined]  # rich's Progress

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop.close()


@contextlib.contextmanager
def uploads(description: str, total_bytes: int) -> Iterator[UploadBar]:
    """A progress bar on stderr for an upload; nothing if it is quick or stderr is no terminal.

    Args:
        description: What is being uploaded.
        total_bytes: How much it is.

    Yields:
        The bar; call its `advance` with each number of bytes sent.
    """
    bar = UploadBar(description, total_bytes)
    timer = threading.Timer(_SHOW_AFTER, bar._show)
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar._close()


@contextlib.contextmanager
def reading(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr for batches that are read; nothing if stderr is no terminal.

    Args:
        description: What is being read.
        total: How many batches; None if that is not known.

    Yields:
        A function to be called with each number of batches read.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(description), total=total)
        yield lambda count: bar.advance(task, count)
