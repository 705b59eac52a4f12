"""`kdc launch --standby`: spare interpreters, which have imported TensorFlow before a worker must be restarted."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.launch import guard, spare
from keras_dist_callbacks.launch.processes import WorkerProcess


class _Spare:
    """A process that becomes a worker once it is told so."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], *, has_pipe: bool) -> None:
        self.env = {name: value for name, value in env.items() if name != "TF_CONFIG"}  # its ports are chosen later
        theirs, self._order = os.pipe()
        try:
            end_with_this = functools.partial(guard.end_with, os.getpid())
            log = Path(os.devnull) if has_pipe else None
            self.process = WorkerProcess([*spare.COMMAND, *words], self.env, log, end_with_this, theirs)
        finally:
            os.close(theirs)

    def begin(self, env: Mapping[str, str], output: Path | None) -> bool:
        """Lets it run the program; whether it was still there to do so."""
        changed = {name: value for name, value in env.items() if self.env.get(name) != value}
        order = json.dumps({"env": changed, "output": None if output is None else str(output), "time": time.time()})
        try:
            os.write(self._order, order.encode())
        except BrokenPipeError:
            return False
        finally:
            os.close(self._order)
        return True


class Standby:
    """Has one spare for each worker.

    Args:
        words: The program and its arguments, as `worker.main` takes them.
        has_pipe: Whether the output of workers goes to pipes.
    """

    def __init__(self, words: Sequence[str], *, has_pipe: bool) -> None:
        self._words = words
        self._has_pipe = has_pipe
        self._spares: dict[int, _Spare | None] = {}

    @property
    def processes(self) -> list[int]:
        """The process ids of the spares."""
        return [spare.process.pid for spare in self._spares.values() if spare is not None]

    def __contains__(self, worker: int) -> bool:
        """Whether it has been prepared for a worker; what has ended or could not start is not prepared again."""
        return worker in self._spares

    def prepare(self, worker: int, env: Mapping[str, str]) -> None:
        """Starts the spare of a worker, and returns at once.

        Args:
            worker: Its index.
            env: The environment of the worker that runs now.
        """
        self._spares[worker] = None
        with contextlib.suppress(ConfigError, OSError):  # no memory for it, say: the worker that runs goes on
            self._spares[worker] = _Spare(self._words, env, has_pipe=self._has_pipe)

    def start(self, worker: int, env: Mapping[str, str], output: Path | None) -> WorkerProcess | None:
        """Lets the spare of a worker become that worker; None if it has none, or its spare has ended.

        Args:
            worker: Its index.
            env: Its complete environment.
            output: The pipe for its output; None for the launcher's own.
        """
        found = self._spares.pop(worker, None)
        return found.process if found is not None and found.begin(env, output) else None
