"""Exit codes by which a scheduler decides whether to start a job again."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from keras_dist_callbacks.base.errors import RESTART_EXIT_CODE, ConfigError, is_temporary
from keras_dist_callbacks.base.progress_file import unless_restarted
from keras_dist_callbacks.base.terminal import write_line

_CALLERS = {__name__, "runpy", "importlib", "importlib.util", "importlib._bootstrap", "importlib._bootstrap_external"}
_LOST_PEER = {"UnavailableError", "DeadlineExceededError", "AbortedError"}


@contextlib.contextmanager
def restartable() -> Iterator[None]:
    """Ends the process with exit code 138 where starting the job again helps, and as Python does where it does not.

    It helps after the loss of another worker, a time-out of the cluster, and when a store is not available; a
    preemption has that code anyway. All other errors would come again: exit code 1.

    Example:
        ```python
        with kdc.restartable():
            model.fit(dataset, epochs=12, callbacks=[kdc.BackupAndRestore("gs://bucket/run1/backup")])
        ```

    Raises:
        SystemExit: With 138, once the error was printed.
    """
    try:
        yield
    except Exception as error:
        if not is_worth_a_restart(error):
            raise
        _ask_for_a_restart(error)


def is_worth_a_restart(error: BaseException) -> bool:
    """Whether the same program may well succeed when it is started again."""
    if is_temporary(error):
        return True
    cause = error.__cause__  # such as too many backups that failed in a row
    if cause is not None and type(error).__module__.startswith("keras_dist_callbacks."):
        return is_worth_a_restart(cause)
    # TensorFlow's, known by their names: nothing here may import it.
    return any(c.__module__.startswith("tensorflow.") and c.__name__ in _LOST_PEER for c in type(error).__mro__)


def run_program(program: str, arguments: Sequence[str], *, is_module: bool = False) -> None:
    """Runs a program as `python PROGRAM ARGS` or `python -m PROGRAM ARGS` does, with the exit codes of `restartable`.

    Args:
        program: The path of a script, or the name of a module.
        arguments: What it finds in `sys.argv[1:]`.
        is_module: Whether it is a module.

    Raises:
        ConfigError: The program does not exist.
        SystemExit: It failed; its error was printed, as the script's own.
    """
    sys.argv = [program, *arguments]
    sys.path[0] = first_directory(program, is_module=is_module)
    try:
        require_program(program, is_module=is_module)
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except KeyboardInterrupt as error:
        _print(error)
        raise SystemExit(128 + signal.SIGINT) from error
    except ProgramNotFoundError:
        raise
    except Exception as error:
        if is_worth_a_restart(error):
            _ask_for_a_restart(error)
        _print(error)
        raise SystemExit(1) from error


def first_directory(program: str, *, is_module: bool) -> str:
    """What Python puts before `sys.path` for a program."""
    return str(Path.cwd()) if is_module else str(Path(program).resolve().parent)


class ProgramNotFoundError(ConfigError):
    """`kdc run` was given a script or module that does not exist."""


def require_program(program: str, *, is_module: bool) -> None:
    """Makes sure that a program exists.

    Raises:
        ProgramNotFoundError: It does not.
    """
    if not is_module:
        if not Path(program).exists():
            raise ProgramNotFoundError(f"{program}: script not found; a module is run with -m MODULE")
        if Path(program).is_dir() and not (Path(program) / "__main__.py").exists():
            raise ProgramNotFoundError(f"{program} is a directory without a __main__.py: give the path of a script")
        return
    hint = "run a script with `kdc run PATH`"
    if program.endswith(".py") or not all(program.split(".")):
        raise ProgramNotFoundError(f"{program!r} is not the name of a module; {hint}")
    missing = f"no module is named {program!r}"
    try:
        spec = importlib.util.find_spec(program)
        if spec is not None and spec.submodule_search_locations is not None:
            missing = f"{program!r} is a package without a __main__ module"
            spec = importlib.util.find_spec(f"{program}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{program}.".startswith(f"{error.name}."):
            raise  # what a package on the way imports
        spec = None
    if spec is None:
        raise ProgramNotFoundError(f"{missing}; {hint}")


def _print(error: BaseException) -> None:
    """Prints an error as Python does, without the calls that led to the program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _CALLERS:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _ask_for_a_restart(error: Exception) -> NoReturn:
    shown = error
    if type(error).__module__.startswith("tensorflow."):  # whose words for a lost worker name none
        # Not imported above: it may import TensorFlow.
        peer_monitor = importlib.import_module("keras_dist_callbacks.cluster.peer_monitor")
        shown = peer_monitor.describe_if_peer_failure(error)
    _print(shown)
    if advice := unless_restarted(f"kdc: exit code {RESTART_EXIT_CODE}: start this job again"):
        write_line(advice, to_stderr=True)
    raise SystemExit(RESTART_EXIT_CODE) from error
