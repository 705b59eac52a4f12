"""What a forked worker does to look, and to end, like a process that was started anew.

The exceptions: workers of one template share Python's hash seed and their address layout; `ps` shows the
template's command; `gc.get_objects()` leaves out what the template has imported; limits, niceness and umask are
those which the owner had when the template started.

It ends by `os._exit`, after what Py_RunMain and Py_FinalizeEx do. Native destructors are left out on purpose: after a
fork they would wait for threads that only the template has.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
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
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_FLUSH_FAILED = 120
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


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
        code = _finish(_become(job), preloaded)
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
    except BaseException as error:  # noqa: BLE001 - _finish() says it as Python would
        return _without_frames(error, __file__)
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


def _finish(error: BaseException | None, preloaded: frozenset[str]) -> int:
    """Reports what has ended the program and does what Python does at exit.

    Args:
        error: The uncaught exception; None if the program came to its end.
        preloaded: Modules that were there before the program.

    Returns:
        The code to exit with. Does not return after a KeyboardInterrupt, which is death by SIGINT.
    """
    interrupted = type(error) is KeyboardInterrupt  # Python takes no subclass for one
    code = _report(error)
    del error  # its frames hold what is to be collected
    if not _shut_down(preloaded):
        code = _FLUSH_FAILED
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _without_frames(error: BaseException, file: str) -> BaseException:
    """The exception as if it had not come through the functions of `file`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == file:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _report(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _exit_code(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as other:
        return _exit_code(other)
    except BaseException as other:  # noqa: BLE001 - said below, as Python does
        failure = _without_frames(other, __file__)
    else:
        return 1
    failure.__context__ = None
    _say("Error in sys.excepthook:\n" + _text(failure) + "\nOriginal exception was:\n" + _text(error))
    return 1


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    _say(f"{error.code}\n")
    return 1


def _shut_down(preloaded: frozenset[str]) -> bool:
    """Everything after the program; whether all that it printed could be written."""
    try:
        threading._shutdown()  # type: ignore[attr-defined] # waits for all threads that are not daemons
    except BaseException as error:  # noqa: BLE001 - reported; Python goes on too
        _say(f"Exception ignored in: {threading!r}\n{_text(_without_frames(error, __file__))}")
    atexit._run_exitfuncs()
    _restore_signals()
    flushed = _flush()
    _forget_program(preloaded)
    return _flush(report=False) and flushed


def _restore_signals() -> None:
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _flush(report: bool = True) -> bool:
    done = True
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except BaseException as error:  # noqa: BLE001 - reported; the exit code tells
            done = False
            if report and stream is not sys.stderr:
                _say(f"Exception ignored in: {stream!r}\n{_text(_without_frames(error, __file__))}")
    return done


def _forget_program(preloaded: frozenset[str]) -> None:
    """Drops what the program holds: files that it left open are written, `__del__` is called."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    main = sys.modules.get("__main__")
    for name in [name for name in sys.modules if name not in preloaded or name == "__main__"]:
        del sys.modules[name]
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    for file in gc.get_objects():
        if type(file) in _BUFFERED:  # the collector may first close what such a file writes through
            with contextlib.suppress(OSError, ValueError):  # as in Python, nobody is told
                file.flush()
    held = weakref.ref(main) if isinstance(main, types.ModuleType) else None
    del main
    gc.collect()
    # Python has stopped daemon threads by now; here they still run and may need these names
    if held is not None and (module := held()) is not None and threading.active_count() == 1:
        _clear(module)


def _clear(module: types.ModuleType) -> None:
    """As Python does: names with one underscore first, then all but `__builtins__`."""
    names = [name for name in module.__dict__ if name != "__builtins__"]
    for name in sorted(names, key=lambda name: not (name.startswith("_") and not name.startswith("__"))):
        module.__dict__[name] = None


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, full or None: nobody can be told
        sys.stderr.write(text)
        sys.stderr.flush()
