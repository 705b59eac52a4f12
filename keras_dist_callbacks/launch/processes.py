"""One worker process: its own process group, its log file, and no way to outlive us."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_dist_callbacks.errors import ClusterError, ConfigError

_LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)  # below what Linux hands out to outgoing connections, which could take one meanwhile
_PORT_TRIES = 200


class WorkerProcess:
    """A process in a session of its own; whatever it starts dies with it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the command is the caller's own program
                    list(command),
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(
                    f"cannot start {command[0]!r}: {error.strerror or error}; check the command"
                ) from error
        self._last_resort = weakref.finalize(self, _end, self._process, os.getpid())

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """The return code, negative for a signal; None while it runs.

        What the process started and left behind is killed before its own id can be given to another one.
        """
        if self._process.returncode is None and _has_ended(self._process):
            self._last_resort()
        return self._process.returncode

    def send(self, sig: int) -> None:
        """Sends a signal to the process, not to its children, as a scheduler does."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def end(self, note: str = "") -> None:
        """Kills the entire group, if it still runs, and says why at the end of the log."""
        if self.poll() is not None:
            return
        self._last_resort()
        note_end(self.log, note)


def note_end(log: Path, note: str) -> None:
    """Says at the end of a log why its process was killed."""
    if note:
        with log.open("a", encoding="utf-8") as output:
            output.write(f"\n[local cluster] {note}\n")


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    # WNOWAIT leaves the zombie: until it is collected, neither its id nor its group's can be used again.
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def _end(process: subprocess.Popen[bytes], starter: int) -> None:
    """Kills the group of a process that was not collected yet, and collects it; not in a fork of the starter."""
    if process.returncode is None and os.getpid() == starter:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface.

    Raises:
        ClusterError: No free ones were found.
    """
    # not the shared generator: a test that seeds it would get the same ports as its neighbour
    candidates = random.SystemRandom().sample(_PORTS, _PORT_TRIES + count)
    found = list(itertools.islice(filter(is_free, candidates), count))
    if len(found) < count:
        raise ClusterError(f"found only {len(found)} of {count} free ports between {_PORTS[0]} and {_PORTS[-1]}")
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True
