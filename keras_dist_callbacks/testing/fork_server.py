"""What a fork server does: it imports once what workers need, then forks a worker at each request.

It is single-threaded, so that a worker's id cannot be given to another process between two of its actions: ids are free
again only when it has collected the dead. Orders come over the pipe of the process that started it, its owner. Each
brings a pipe for one worker, by which the answer goes back, and later the worker's return code. When the owner closes
it, or says anything, the worker is killed; when the owner ends, all are.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from keras_dist_callbacks._compat.hard_exit import tensorflow_has_context
from keras_dist_callbacks.testing import fork_child


def main() -> None:
    """Runs a fork server: `sys.argv` is the pipe's descriptor and the names of the modules to import.

    Modules of packages that are not installed are skipped. If an import fails, the owner sees that the pipe is closed.
    """
    owner = Connection(int(sys.argv[1]))
    before = dict(os.environ)
    for name in sys.argv[2:]:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()  # the collector would touch pages that are shared with the workers, and so copy them
    send(owner, ready=True)
    job = _Server(owner, changed).serve()
    if job is None:
        os._exit(0)
    fork_child.run(job)


def send(pipe: Connection, **message: Any) -> None:
    """Sends a message as JSON; nothing happens if the other end is closed."""
    with contextlib.suppress(ConnectionError):
        pipe.send_bytes(json.dumps(message).encode())


@dataclass(frozen=True)
class _Worker:
    pid: int
    pidfd: int
    pipe: Connection


class _Server:
    def __init__(self, owner: Connection, changed: dict[str, str]) -> None:
        self._owner = owner
        self._changed = changed  # what the imports have put into the environment
        self._workers: list[_Worker] = []

    def serve(self) -> fork_child.Job | None:
        """Works until the owner is gone: None then. In a forked worker: what it is to do."""
        try:
            while True:
                ready = wait([self._owner, *(end for worker in self._workers for end in (worker.pipe, worker.pidfd))])
                for worker in [worker for worker in self._workers if worker.pipe in ready or worker.pidfd in ready]:
                    self._bury(worker)
                if self._owner in ready and (job := self._start(json.loads(self._owner.recv_bytes()))) is not None:
                    return job
        except (EOFError, ConnectionError):
            for worker in self._workers:
                _collect(worker.pid)
            return None

    def _start(self, order: dict[str, Any]) -> fork_child.Job | None:
        """Forks: the job in the worker, None in the server."""
        pipe = Connection(recv_handle(self._owner))
        reason = _unfit()
        if reason is not None:
            send(pipe, refused=reason)
            pipe.close()
            return None
        server = os.getpid()
        if (pid := _fork()) == 0:
            for end in (pipe, self._owner, *(worker.pipe for worker in self._workers)):
                end.close()
            for worker in self._workers:
                os.close(worker.pidfd)
            return fork_child.Job(**order | {"env": order["env"] | self._changed}, server=server)
        worker = _Worker(pid, os.pidfd_open(pid), pipe)
        self._workers.append(worker)
        send(pipe, pid=pid)
        with contextlib.suppress(ConnectionError):
            send_handle(pipe, worker.pidfd, None)
        return None

    def _bury(self, worker: _Worker) -> None:
        """Kills a worker's group, collects the worker, and reports it."""
        send(worker.pipe, code=_collect(worker.pid))
        worker.pipe.close()
        os.close(worker.pidfd)
        self._workers.remove(worker)


def _unfit() -> str | None:
    """Why this process must not be forked."""
    if tensorflow_has_context():
        return "a preloaded module has started TensorFlow's runtime, whose threads a fork does not have"
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
