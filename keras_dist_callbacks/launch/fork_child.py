"""What a forked worker does to look, and to end, like a process that was started anew.

The exceptions: workers of one template share Python's hash seed and their address layout; `ps` shows the
template's command; `gc.get_objects()` leaves out what the template has imported; limits, niceness and umask are
those which the owner had when the template started.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import importlib.machinery
import io
import os
import random
import runpy
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from keras_dist_callbacks.launch import interpreter_exit

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """What a worker is to be.

    Attributes:
        command: `[sys.executable, "script.py", ...]` or `[sys.executable, "-m", "module", ...]`.
        env: The whole environment.
        cwd: Working directory.
        log: File that takes standard output and standard error; it exists.
        said: What the imports have printed: it would be in the log of a fresh worker too.
        template: The template's process id.
        close: Descriptors that are the template's own.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str
    said: bytes
    template: int
    close: Iterable[int]


def run(job: Job) -> NoReturn:
    """Becomes the worker, runs its program and ends the process."""
    code, preloaded = 1, frozenset(sys.modules)
    try:
        code = interpreter_exit.finish(_become(job), preloaded)
    except BaseException:  # noqa: BLE001 - a fork must never return into the template's code
        traceback.print_exc()
    finally:
        os._exit(code)


def program(command: Sequence[str]) -> tuple[str, bool] | None:
    """The script, or the module and True, that a command runs; None if it is of another form."""
    match command:
        case [_, "-m", name, *_] if name and not name.startswith("-"):
            return name, True
        case [_, path, *_] if path.endswith(".py") and not path.startswith("-") and os.path.isfile(path):  # noqa: PTH113
            return path, False
    return None


def first_directory(command: Sequence[str], cwd: str) -> str:
    """What Python puts in front of `sys.path` for a command."""
    if command[1] == "-m":
        return cwd
    return os.path.dirname(os.path.realpath(os.path.join(cwd, command[1])))  # noqa: PTH118, PTH120 - as Python does


def _become(job: Job) -> BaseException | None:
    """Is the worker; returns what ended it, without our own frames."""
    try:
        _separate(job)
        _refresh(job)
        _run_program(job.command)
    except BaseException as error:  # noqa: BLE001 - ending.finish() says it as Python would
        return interpreter_exit.without_frames(error, __file__)
    return None


def _separate(job: Job) -> None:
    """Leaves the template: its life, its session and its descriptors."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != job.template:  # it died before that
        os.kill(os.getpid(), signal.SIGKILL)
    os.setsid()
    for descriptor in job.close:
        os.close(descriptor)
    log = os.open(job.log, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.write(1, job.said)


def _refresh(job: Job) -> None:
    """Sets what a process gets at its start, or finds out once."""
    os.environ.clear()
    os.environ.update(job.env)
    time.tzset()
    os.chdir(job.cwd)
    tempfile.tempdir = None  # it follows TMPDIR
    if (spawning := sys.modules.get("multiprocessing.process")) is not None:
        spawning.ORIGINAL_DIR = job.cwd  # type: ignore[attr-defined] # where spawned children start
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    importlib.invalidate_caches()
    sys.orig_argv = list(job.command)
    if not sys.flags.safe_path:
        sys.path.insert(0, first_directory(job.command, job.cwd))


def _run_program(command: Sequence[str]) -> None:
    """Runs a script or module as `__main__`."""
    sys.argv = list(command[1:])
    main = sys.modules["__main__"] = _new_main()
    if command[1] == "-m":
        del sys.argv[1]
        runpy._run_module_as_main(command[2])  # type: ignore[attr-defined] # what `python -m` itself calls
    else:
        _run_script(command[1], main)


def _new_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__loader__ = importlib.machinery.BuiltinImporter
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    return main


def _run_script(path: str, main: types.ModuleType) -> None:
    full = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - `./x.py` keeps its dot, as in Python
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", full)
    main.__dict__.update(__file__=full, __cached__=None)
    with io.open_code(full) as file:
        code = compile(file.read(), full, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 - the caller's own program, as `python script.py` runs it
