"""Two processes that guard each other, so that a SIGKILL of one leaves nothing of what they have started.

The process that the user started forks the one that does the work. It passes signals on and waits; the other one sees
at a pipe that the first is gone. Both adopt what their descendants leave, so each of them can find and kill everything,
also what has left its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 3.0


def run_guarded(work: Callable[[int], int]) -> int:
    """Runs a function in a fork, to which this process passes signals on; returns its exit code.

    Args:
        work: Gets a file descriptor, which can be read once this process is gone: it is to kill its descendants then.
            It is called with `FORWARDED` blocked, and unblocks them once it can handle them.
    """
    adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        os.close(theirs)
        _work(work, ours)
    os.close(ours)

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in heard():
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kill_descendants()
    return code if code >= 0 else 128 - code


def heard() -> list[signal.Signals]:
    """Those of the forwarded signals that this process does not ignore, as `nohup` has it ignore SIGHUP."""
    return [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave; nothing happens where the system cannot do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kills everything that this process has started, directly or not, and collects it.

    Args:
        spared: Processes that stay, with what they have started.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while (found := list(_descendants(os.getpid(), set(spared)))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _work(work: Callable[[int], int], guard: int) -> None:
    code = 1
    try:
        os.setsid()  # a terminal sends Ctrl-C to the guard alone, which passes it on
        adopt_orphans()
        code = work(guard)
    except BaseException:  # noqa: BLE001 - a fork must never return into the code of its parent
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _descendants(of: int, spared: set[int]) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = entry.read_text(errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(entry.parent.name))
    waiting = [of]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in spared:
                waiting.append(pid)
                yield pid
