"""What a template process does: it imports once what workers need, then forks a worker whenever it is told to.

It is single-threaded, so that a worker's id cannot be given to another process between two of its actions: ids
are free again only when it has collected the dead. It speaks JSON lines over a socket with the process that
started it, its owner, and ends, with all workers, when the owner does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from keras_dist_callbacks._compat.hard_exit import tensorflow_has_context
from keras_dist_callbacks.launch import fork_child

_BYTES = 65_536


def main(at_start: frozenset[str]) -> None:
    """Runs a template: `sys.argv` is the socket's descriptor and the names of the modules to import.

    Modules of packages that are not installed are left out.

    Args:
        at_start: The modules that every Python process has before its program begins.
    """
    owner = socket.socket(fileno=int(sys.argv[1]))
    before = dict(os.environ)
    try:
        for name in sys.argv[2:]:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
    except BaseException:  # noqa: BLE001 - the owner starts fresh workers then, and they show it
        _send(owner, ready=False, why=traceback.format_exc())
        os._exit(1)
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    gc.freeze()  # the collector would touch pages that are shared with the workers, and so copy them
    _send(owner, ready=True)
    job = _Template(owner, at_start, changed).serve()
    if job is None:
        os._exit(0)
    fork_child.run(job)


@dataclass(frozen=True)
class _Worker:
    number: int
    pid: int
    pidfd: int


class _Template:
    def __init__(self, owner: socket.socket, at_start: frozenset[str], changed: dict[str, str]) -> None:
        self._owner = owner
        self._at_start = at_start
        self._changed = changed  # what the imports have put into the environment
        self._said = os.pread(1, os.fstat(1).st_size, 0)
        self._workers: dict[int, _Worker] = {}
        self._rest = b""
        self._events = select.poll()
        self._events.register(owner, select.POLLIN)

    def serve(self) -> fork_child.Job | None:
        """Works until the owner is gone: None then. In a forked worker: what it is to do."""
        try:
            while True:
                ready = {descriptor for descriptor, _ in self._events.poll()}
                # before any order: that may end a worker too, or fork one that gets the same descriptor
                for worker in [worker for worker in self._workers.values() if worker.pidfd in ready]:
                    self._bury(worker)
                if self._owner.fileno() in ready and (job := self._listen()) is not None:
                    return job
        except (EOFError, ConnectionError):
            for worker in self._workers.values():
                _collect(worker.pid)
            return None

    def _listen(self) -> fork_child.Job | None:
        received = self._owner.recv(_BYTES)
        if not received:
            raise EOFError
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            if (job := self._obey(json.loads(line))) is not None:
                return job
        return None

    def _obey(self, order: dict[str, Any]) -> fork_child.Job | None:
        answer: dict[str, Any] = {"answers": order["number"]}
        worker = self._workers.get(order.get("worker", -1))
        try:
            if order["do"] == "start":
                job, said = self._start(order)
                if job is not None:
                    return job
                answer |= said
            elif worker is not None and order["do"] == "signal":
                os.kill(worker.pid, order["signal"])  # to a zombie nothing happens
            elif worker is not None:
                self._bury(worker)
        except OSError as error:
            answer |= {"errno": error.errno, "why": str(error)}
        _send(self._owner, **answer)
        return None

    def _start(self, order: dict[str, Any]) -> tuple[fork_child.Job | None, dict[str, Any]]:
        """Forks: the job in the worker; in the template what to answer."""
        if (reason := _unfit()) is not None:
            return None, {"refused": reason}
        if (name := self._hidden_module(order)) is not None:
            return None, {"why": f"module {name} is another one for this program"}
        template = os.getpid()
        if (pid := _fork()) == 0:
            return self._job(order, template), {}
        try:
            worker = _Worker(order["number"], pid, os.pidfd_open(pid))
        except OSError:
            _collect(pid)
            raise
        self._workers[worker.number] = worker
        self._events.register(worker.pidfd, select.POLLIN)
        return None, {"pid": pid}

    def _job(self, order: dict[str, Any], template: int) -> fork_child.Job:
        return fork_child.Job(
            command=order["command"],
            env=order["env"] | self._changed,
            cwd=order["cwd"],
            log=order["log"],
            said=self._said,
            template=template,
            close=[self._owner.detach(), *(worker.pidfd for worker in self._workers.values())],
        )

    def _bury(self, worker: _Worker) -> None:
        """Kills a worker's group, collects the worker, and reports it."""
        code = _collect(worker.pid)
        self._events.unregister(worker.pidfd)
        os.close(worker.pidfd)
        del self._workers[worker.number]
        _send(self._owner, ended=worker.number, code=code)

    def _hidden_module(self, order: dict[str, Any]) -> str | None:
        """A module beside the program that a fresh process would import instead of one that is preloaded."""
        if sys.flags.safe_path:
            return None
        directory = fork_child.first_directory(order["command"], order["cwd"])
        with contextlib.suppress(OSError):
            beside = {name.partition(".")[0] for name in os.listdir(directory)}  # noqa: PTH208 - names are enough
            for name in (beside & sys.modules.keys()) - self._at_start:
                spec = PathFinder.find_spec(name, [directory])
                if spec is not None and spec.origin is not None and not _is_file_of(name, spec.origin):
                    return name
        return None


def _is_file_of(name: str, origin: str) -> bool:
    loaded = getattr(sys.modules[name], "__file__", None)
    return loaded is not None and os.path.realpath(loaded) == os.path.realpath(origin)


def _unfit() -> str | None:
    """Why this process must not be forked."""
    if tensorflow_has_context():
        return "a preloaded module has started TensorFlow's runtime, whose threads a fork does not have"
    loop = getattr(sys.modules.get("fsspec.asyn"), "loop", None)  # looked at without importing it
    if loop and loop[0] is not None:
        return "a preloaded module has started fsspec's event loop, whose thread a fork does not have"
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:])
        return f"a preloaded module has started threads ({names}), which a fork does not have"
    return None


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 counts native threads; those that are left after the imports have been tested to survive
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _collect(pid: int) -> int:
    """Kills a process and its group, which it has not made yet if it is very young; returns its code."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _send(owner: socket.socket, **message: Any) -> None:
    owner.sendall(json.dumps(message).encode() + b"\n")
