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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from keras_dist_callbacks.base.errors import ClusterError, ConfigError

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)  # below what Linux hands out to outgoing connections, which could take one meanwhile
_PORT_TRIES = 200


class WorkerProcess:
    """A process in a session of its own; whatever it starts dies with it.

    Args:
        command: Program and arguments.
        env: The whole environment.
        log: The file for its output; None for the output of this process.
        prepare: Is called in the new process before its program; only for a process without threads.
        stdin: A descriptor for its standard input; none by default.

    Attributes:
        end_descriptor: A file descriptor that can be read once the process has ended; None where the system has none.

    Raises:
        ConfigError: The program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path | None,
        prepare: Callable[[], None] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.log = log
        with contextlib.nullcontext() if log is None else log.open("wb") as output:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the command is the caller's own program
                    list(command),
                    env=dict(env),
                    stdin=stdin,
                    stdout=output,
                    stderr=None if output is None else subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=prepare,
                )
            except OSError as error:
                raise ConfigError(
                    f"cannot start {command[0]!r}: {error.strerror or error}; check the command"
                ) from error
        self._last_resort = weakref.finalize(self, _end, self._process, os.getpid())
        self.end_descriptor = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        if self.end_descriptor is not None:
            weakref.finalize(self, os.close, self.end_descriptor)

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
        """Kills the whole group, if it still runs, and says why at the end of the log."""
        if self.poll() is not None:
            return
        self._last_resort()
        note_end(self.log, note)


def note_end(log: Path | None, note: str) -> None:
    """Says at the end of a log why its process was killed."""
    if note and log is not None:
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
    """Ports on which no process listens, on any interface.

    Raises:
        ClusterError: No free ones were found.
    """
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(reserved).getsockname()[1] for reserved in reserve_ports(count)]


def reserve_ports(count: int) -> list[socket.socket]:
    """Sockets that keep free ports from others as long as they are open.

    A server that sets SO_REUSEADDR, as TensorFlow's does, can listen on such a port all the same.

    Raises:
        ClusterError: No free ones were found.
    """
    # not the shared generator: a test that seeds it would get the same ports as its neighbour
    candidates = random.SystemRandom().sample(_PORTS, _PORT_TRIES + count)
    found = list(itertools.islice(filter(None, map(_reserve, candidates)), count))
    if len(found) < count:
        for reserved in found:
            reserved.close()
        raise ClusterError(
            f"found only {len(found)} of {count} free ports between {_PORTS[0]} and {_PORTS[-1]}: end programs that "
            "use them, or start fewer workers"
        )
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    reserved = _reserve(port, is_shared=True)
    if reserved is not None:
        reserved.close()
    return reserved is not None


def _reserve(port: int, *, is_shared: bool = False) -> socket.socket | None:
    """A socket bound to a port of all interfaces; None if another process has the port.

    Args:
        port: Its number.
        is_shared: Take it also where another process has reserved it, or connections of it are being closed.
    """
    both = socket.has_dualstack_ipv6()
    reserved = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    if both:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if is_shared:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind(("", port))
    except OSError:
        reserved.close()
        return None
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # now others may share it, if they ask for that
    return reserved
