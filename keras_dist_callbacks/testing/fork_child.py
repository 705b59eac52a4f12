"""What a forked worker does to run its program as a fresh process would.

The exceptions: workers of one server share Python's hash seed and their address layout; a module next to the program
that has the name of a preloaded one is not seen; what imports print in the server is not shown; limits, niceness and
umask are those which the owner had when the server started; objects that live when the program ends are not deleted.
It ends by `os._exit`: after a fork, native destructors would wait for threads that only the server has.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import io
import os
import random
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from keras_dist_callbacks.launch.guard import end_with

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


@dataclass(frozen=True)
class Job:
    """What a worker is to be.

    Attributes:
        command: `[sys.executable, "script.py", ...]` or `[sys.executable, "-m", "module", ...]`.
        env: The complete environment.
        cwd: Working directory.
        log: File that takes standard output and standard error; it exists.
        server: The fork server's process id.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str
    server: int


def run(job: Job) -> NoReturn:
    """Becomes the worker, runs its program and ends the process."""
    code = 1
    try:
        _separate(job)
        _refresh(job)
        code = _finish(_run_program(job.command))
    except BaseException:  # noqa: BLE001 - a fork must never return into the server's code
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
    """What Python puts before `sys.path` for a command."""
    if command[1] == "-m":
        return cwd
    return os.path.dirname(os.path.realpath(os.path.join(cwd, command[1])))  # noqa: PTH118, PTH120 - as Python does


def _separate(job: Job) -> None:
    """Leaves the server: its life, its session and its output."""
    end_with(job.server)
    os.setsid()
    log = os.open(job.log, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


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


def _run_program(command: Sequence[str]) -> BaseException | None:
    """Runs a script or module as `__main__`; returns what ended it, without our own frames."""
    sys.argv = list(command[1:])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__loader__ = importlib.machinery.BuiltinImporter
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    try:
        if command[1] == "-m":
            del sys.argv[1]
            runpy._run_module_as_main(command[2])  # type: ignore[attr-defined] # what `python -m` itself calls
        else:
            full = os.path.join(os.getcwd(), command[1])  # noqa: PTH109, PTH118 - `./x.py` keeps its dot, as in Python
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", full)
            main.__dict__.update(__file__=full, __cached__=None)
            with io.open_code(full) as file:
                code = compile(file.read(), full, "exec", dont_inherit=True)
            exec(code, main.__dict__)  # noqa: S102 - the caller's own program, as `python script.py` runs it
    except BaseException as error:  # noqa: BLE001 - _finish() says it as Python would
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        return error.with_traceback(trace)
    return None


def _finish(error: BaseException | None) -> int:
    """Reports what has ended the program and does what Python does at exit.

    Args:
        error: The uncaught exception; None if the program came to its end.

    Returns:
        The code to exit with. Does not return after a KeyboardInterrupt, which is death by SIGINT.
    """
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            code = (error.code or 0) & 0xFF
        else:
            print(error.code, file=sys.stderr)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined] # waits for all threads that are not daemons
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr, *(file for file in gc.get_objects() if type(file) in _BUFFERED)):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # closed, full or None: there is no place to report it
            file.flush()
    if type(error) is KeyboardInterrupt:  # Python takes no subclass for one
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code
