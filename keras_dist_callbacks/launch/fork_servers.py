"""The templates that this process has started: one for each list of modules and environment, shared by all clusters.

A template costs as much memory as a worker before its first batch, and is shared with its workers; see
`template.py` for what it does.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_dist_callbacks.errors import ClusterError
from keras_dist_callbacks.launch.environment import has_relative_path, read_at_import
from keras_dist_callbacks.process import Shared, shared

_BYTES = 65_536
_IMPORT_SECONDS = 300.0
_ANSWER_SECONDS = 60.0
_END_SECONDS = 10.0
_MOST_IDLE = 3
# The directory of neither this file nor the owner may be where modules are found: a worker has its own.
_ENTRY = (
    "import sys; at_start = frozenset(sys.modules); sys.flags.safe_path or sys.path.pop(0); "
    "from keras_dist_callbacks.launch.fork_server import main; main(at_start)"
)


class Template:
    """The owner's side of one template."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self.modules = tuple(modules)
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._pids: dict[int, int] = {}  # of workers that have not ended
        self._codes: dict[int, int] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._rest = b""
        self._socket, other = socket.socketpair()
        with other, tempfile.TemporaryFile() as said:  # what imports print belongs into the workers' logs
            self._process = subprocess.Popen(  # noqa: S603 - our own code
                [sys.executable, "-c", _ENTRY, str(other.fileno()), *modules],
                env={name: value for name, value in env.items() if name != "TF_CONFIG"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        self.alive = True
        self.ready = False
        try:
            self._wait(lambda: self.ready, _IMPORT_SECONDS)
        finally:
            if not self.ready:
                self._lose()

    @property
    def pid(self) -> int:
        """The template's process id."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether none of its workers runs."""
        with self._lock:
            self._take_all()
            return not self._pids

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> tuple[int, int] | None:
        """Forks a worker.

        Returns:
            The worker's number, for the other methods, and its process id; None if the template cannot do
            this one.

        Raises:
            ClusterError: What was preloaded makes forking unsafe.
        """
        with self._lock:
            number = next(self._numbers)
            order = {"command": list(command), "env": dict(env), "cwd": os.getcwd(), "log": os.path.abspath(log)}  # noqa: PTH100, PTH109
            told = self._ask(number, do="start", **order)
            if "refused" in told:
                raise ClusterError(
                    f"the template of preloaded workers (process {self.pid}, {', '.join(self.modules)}) cannot be "
                    f"forked: {told['refused']}; start these workers without preload=True"
                )
            if "pid" not in told:
                return None
            if number not in self._codes:  # it may have ended already
                self._pids[number] = told["pid"]
            if not self.alive:  # and so may the template
                self._forget_workers()
            return number, told["pid"]

    def code(self, number: int) -> int | None:
        """A worker's return code, negative for a signal; None while it runs."""
        with self._lock:
            self._take_all()
            return self._codes.get(number)

    def send(self, number: int, sig: int) -> None:
        """Sends a signal to a worker; nothing happens if it has ended."""
        with self._lock:
            if self.code(number) is None:
                told = self._ask(next(self._numbers), do="signal", worker=number, signal=int(sig))
                if "errno" in told:
                    raise OSError(told["errno"], told["why"])

    def end(self, number: int) -> None:
        """Kills a worker's process group and waits for the worker's end; nothing happens if it has ended."""
        with self._lock:
            if self.code(number) is None:
                self._ask(next(self._numbers), do="end", worker=number)

    def close(self) -> None:
        """Ends the template and its workers; harmless if it has ended."""
        with self._lock:
            if self.alive:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_SECONDS)
                self._lose()

    def forget(self) -> None:
        """For a fork of the owner, which must neither end the workers nor keep the template from seeing the end."""
        self._socket.close()
        self.alive = False

    def _ask(self, number: int, **order: Any) -> dict[str, Any]:
        """Sends an order and waits for the answer; it is empty if the template is gone.

        Answers have numbers, because the end of a forgotten worker can come between an order and its answer:
        the garbage collector calls for it.
        """
        try:
            if self.alive:
                self._socket.sendall(json.dumps({"number": number, **order}).encode() + b"\n")
        except OSError:
            self._lose()
        self._wait(lambda: number in self._answers, _ANSWER_SECONDS)
        if number not in self._answers:
            self._lose()
        return self._answers.pop(number, {})

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive and not condition() and (left := deadline - time.monotonic()) > 0:
            self._take(left)

    def _take_all(self) -> None:
        while self.alive and self._take(0):
            pass

    def _take(self, seconds: float) -> bool:
        """Takes what the template has said within some seconds; whether that was anything."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return False
        try:
            received = self._socket.recv(_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            self._lose()
            return False
        *lines, self._rest = (self._rest + received).split(b"\n")
        for message in map(json.loads, lines):
            if "answers" in message:
                self._answers[message["answers"]] = message
            elif "ended" in message:
                self._pids.pop(message["ended"], None)
                self._codes[message["ended"]] = message["code"]
            else:
                self.ready = message["ready"]
        return True

    def _lose(self) -> None:
        """The template is gone: so are its workers, by the kernel's doing, and now what they had started."""
        if not self.alive:
            return
        self.alive = False
        self._process.kill()
        self._process.wait()  # afterwards the kernel has killed the workers
        self._socket.close()
        self._forget_workers()

    def _forget_workers(self) -> None:
        for number, pid in self._pids.items():
            # nobody holds these ids any more; a group that has members keeps its id, and others are not reused so soon
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._codes[number] = -signal.SIGKILL
        self._pids.clear()


class Templates(Shared):
    """Finds the template for an environment, or starts it; keeps few that nobody uses."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[tuple[object, ...], Template] = {}  # the one used last at the end

    def get(self, modules: Sequence[str], env: Mapping[str, str]) -> Template | None:
        """A living template; None if the modules cannot be imported in this environment."""
        where = os.getcwd() if has_relative_path(env) else ""  # noqa: PTH109
        key = (sys.executable, *modules, where, *read_at_import(env).items())
        with self._lock:
            template = self._known.pop(key, None)
            if template is None or (template.ready and not template.alive):
                self._make_room()
                template = Template(modules, env)
            self._known[key] = template
            return template if template.ready else None

    def close(self) -> None:
        """Ends all templates and their workers."""
        with self._lock:
            for template in self._known.values():
                template.close()
            self._known.clear()

    def in_child(self) -> Templates:
        """A fork of the owner has none."""
        for template in self._known.values():
            template.forget()
        return Templates()

    def _make_room(self) -> None:
        living = [template for template in self._known.values() if template.alive]
        for template in [template for template in living if template.idle][: max(0, len(living) - _MOST_IDLE + 1)]:
            template.close()


def templates() -> Templates:
    """Those of this process."""
    return shared(Templates)


atexit.register(lambda: templates().close())
