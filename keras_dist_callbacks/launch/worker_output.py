"""What workers print, on its way to the terminal and to log files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from keras_dist_callbacks.base.terminal import discard

_PIECE = 1 << 16


class WorkerOutput:
    """Takes the output of one worker from a named pipe, line by line.

    Args:
        pipe: Where the pipe is made; the worker opens it as its log file.
        prefix: What stands before each line on the terminal.
        log: The log file; None for none.
    """

    def __init__(self, pipe: Path, prefix: str, log: Path | None) -> None:
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        self.path = pipe
        self.descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # a writer of ours: without one the pipe would end
        self._prefix = prefix.encode()
        self._log = None if log is None else log.open("wb")
        self._rest = b""

    def forward(self) -> bool:
        """Passes on what can be read now; whether there may be more."""
        try:
            read = os.read(self.descriptor, _PIECE)
        except BlockingIOError:
            return False
        if self._log is not None:
            self._log.write(read)
            self._log.flush()
        *lines, self._rest = (self._rest + read).split(b"\n")
        if len(self._rest) > _PIECE:  # a progress bar without line ends
            lines, self._rest = [*lines, self._rest], b""
        _write(b"".join(self._prefix + line + b"\n" for line in lines))
        return True

    def close(self) -> None:
        """Passes on the rest; the worker and everything that it has started are gone."""
        while self.forward():
            pass
        if self._rest:
            _write(self._prefix + self._rest + b"\n")
        os.close(self.descriptor)
        if self._log is not None:
            self._log.close()
        self.path.unlink()


def _write(data: bytes) -> None:
    if not data or sys.stdout is None:
        return
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
