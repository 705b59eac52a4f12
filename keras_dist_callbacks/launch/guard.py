"""Two processes that guard each other, so that a SIGKILL of one leaves nothing of what they have started.

The process that the user started forks the one that does the work. It passes signals on and waits; the other one sees
at a pipe that the first is gone. Both adopt what their descendants leave, so each of them can find and kill everything,
also what has left its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 3.0


def run_guarded(work: Callable[[], int], clean_up: Callable[[], object]) -> int:
    """Runs a function in a fork, to which this process passes signals on; returns its exit code.

    Args:
        work: It is called with `FORWARDED` blocked, and unblocks them once it can handle them.
        clean_up: Is called once everything that it has started is gone, also where one of the processes was killed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    ours, theirs = os.pipe()

    def watch() -> int:
        os.close(theirs)
        os.setsid()  # a terminal sends Ctrl-C to the first process alone, which passes it on
        return _guard(work, clean_up, ours)

    code = _guard(watch, clean_up)
    os.close(ours)
    os.close(theirs)
    return code


def _guard(work: Callable[[], int], clean_up: Callable[[], object], first: int | None = None) -> int:
    """Runs a function in a fork, and kills what is left when that has ended; returns its exit code.

    Args:
        work: The function.
        clean_up: Is called at the end.
        first: A descriptor that can be read once the process that the user started is gone: then the fork is killed.
    """
    adopt_orphans()
    ended, running = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ended)
        _work(work)
    os.close(running)

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in heard():
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    if first is not None and first in select.select([first, ended], [], [])[0]:
        os.kill(child, signal.SIGKILL)
        code = -signal.SIGKILL
    else:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(ended)
    kill_descendants()
    clean_up()
    return code if code >= 0 else 128 - code


def heard() -> list[signal.Signals]:
    """Those of the forwarded signals that this process does not ignore, as `nohup` has it ignore SIGHUP."""
    return [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave; nothing happens where the system cannot do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends; nothing happens where the system cannot do that.

    Args:
        parent: Its process id; it may have ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


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


def _work(work: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        adopt_orphans()
        code = work()
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
