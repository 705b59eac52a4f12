"""`python -m keras_dist_callbacks.cli.rehearsal.start [-m] PROGRAM ARGS`, or `-- COMMAND ARGS`: a rehearsed process.

What the script may not change is kept from it before its first line.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence

from keras_dist_callbacks.launch import worker
from keras_dist_callbacks.rehearsal.audit import watch_files, writable
from keras_dist_callbacks.rehearsal.plan import plan_in_force
from keras_dist_callbacks.rehearsal.write_lock import restrict_writing

COMMAND = (sys.executable, "-m", "keras_dist_callbacks.cli.rehearsal.start")


def main(words: Sequence[str]) -> None:
    """Runs a program as `__main__`, or a command in the place of this process.

    Args:
        words: `-m` for a module, the program and its arguments; or `--` and a command.
    """
    plan = plan_in_force()
    if plan is not None:
        if plan.copy:
            restrict_writing([*writable(plan), tempfile.gettempdir()])
        watch_files(plan)
    if words[0] == "--":
        os.execvp(words[1], list(words[1:]))  # noqa: S606 - the user's own command
    worker.main(words)


if __name__ == "__main__":
    main(sys.argv[1:])
