"""How a Python process ends: what Py_RunMain and Py_FinalizeEx do, for a process that leaves by `os._exit`.

Native destructors are left out on purpose: after a fork they would wait for threads that only the template has.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
import traceback
import types
import weakref

_FLUSH_FAILED = 120
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def finish(error: BaseException | None, preloaded: frozenset[str]) -> int:
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


def without_frames(error: BaseException, file: str) -> BaseException:
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
        failure = without_frames(other, __file__)
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
        _say(f"Exception ignored in: {threading!r}\n{_text(without_frames(error, __file__))}")
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
                _say(f"Exception ignored in: {stream!r}\n{_text(without_frames(error, __file__))}")
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
