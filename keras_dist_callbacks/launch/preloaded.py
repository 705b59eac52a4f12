"""Workers that are forked from a template which has done their imports already."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_dist_callbacks.launch.environment import is_cpu_only
from keras_dist_callbacks.launch.fork_child import program
from keras_dist_callbacks.launch.fork_servers import Template, templates
from keras_dist_callbacks.launch.processes import Process, WorkerProcess, note_end


class PreloadedProcess:
    """A worker of a template; to its owner it is what a `WorkerProcess` is."""

    def __init__(self, template: Template, number: int, pid: int, log: Path) -> None:
        self.log = log
        self.pid = pid
        self._template = template
        self._number = number
        self._last_resort = weakref.finalize(self, template.end, number)

    def poll(self) -> int | None:
        """The return code, negative for a signal; None while it runs."""
        return self._template.code(self._number)

    def send(self, sig: int) -> None:
        """Sends a signal to the process, not to its children, as a scheduler does."""
        self._template.send(self._number, sig)

    def end(self, note: str = "") -> None:
        """Kills the whole group, if it still runs, and says why at the end of the log."""
        if self.poll() is None:
            self._last_resort()
            note_end(self.log, note)


def start_process(command: Sequence[str], env: Mapping[str, str], log: Path, preload: Sequence[str] = ()) -> Process:
    """Starts a worker: from a template if that is possible and wanted, as a fresh process otherwise.

    Args:
        command: Program and arguments.
        env: The whole environment.
        log: The log file; an older one is overwritten.
        preload: Modules that the template imports; without any the process is a fresh one.

    Raises:
        ClusterError: What was preloaded makes forking unsafe.
        ConfigError: The program cannot be started.
    """
    command = [os.fspath(part) for part in command]
    if preload and _is_possible(command, env) and (template := templates().get(preload, env)) is not None:
        log.open("wb").close()
        started = template.start(command, env, log)
        if started is not None:
            return PreloadedProcess(template, *started, log)
    return WorkerProcess(command, env, log)


def _is_possible(command: Sequence[str], env: Mapping[str, str]) -> bool:
    if not all(isinstance(part, str) for part in command):  # bytes: Popen knows them, JSON does not
        return False
    on_linux = sys.platform == "linux" and hasattr(os, "pidfd_open")
    return on_linux and command[0] == sys.executable and program(command) is not None and is_cpu_only(env)
