"""Exit codes that tell a scheduler whether to start a job again."""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_dist_callbacks.errors import RESTART_EXIT_CODE, is_temporary
from keras_dist_callbacks.texts import print_line

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
        told = _explained(error)
        sys.excepthook(type(told), told, told.__traceback__)
        print_line(f"exit code {RESTART_EXIT_CODE}: start this job again", to_stderr=True)
        raise SystemExit(RESTART_EXIT_CODE) from error


def is_worth_a_restart(error: BaseException) -> bool:
    """Whether the same program may well succeed when it is started again."""
    if is_temporary(error):
        return True
    cause = error.__cause__  # such as too many backups that failed in a row
    if cause is not None and type(error).__module__.startswith("keras_dist_callbacks."):
        return is_worth_a_restart(cause)
    # TensorFlow's, told by their names: nothing here may import it.
    return any(c.__module__.startswith("tensorflow.") and c.__name__ in _LOST_PEER for c in type(error).__mro__)


def _explained(error: Exception) -> Exception:
    """TensorFlow's own words for a lost worker name none; the cluster knows more."""
    if not type(error).__module__.startswith("tensorflow."):
        return error
    loss = importlib.import_module("keras_dist_callbacks.cluster.loss")  # not above: it may import TensorFlow
    told: Exception = loss.explained_here(error)
    return told


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs a Python script as `python script.py args` does, with the exit codes of `restartable`.

    Args:
        script: Its path.
        arguments: What it finds in `sys.argv[1:]`.
    """
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    with restartable():
        runpy.run_path(script, run_name="__main__")
