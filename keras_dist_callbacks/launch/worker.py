"""`python -m keras_dist_callbacks.launch.worker [-m] PROGRAM ARGS`: what `kdc launch` starts for each worker.

It is `kdc run` without a command line of its own, so that it imports the standard library alone: a script's first line
waits for nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from keras_dist_callbacks.base.terminal import write_line
from keras_dist_callbacks.launch.restart import ProgramNotFoundError, run_program

COMMAND = (sys.executable, "-m", "keras_dist_callbacks.launch.worker")
_NOT_FOUND = 2


def main(words: Sequence[str]) -> None:
    """Runs the program as `__main__`; ends with the exit codes of `kdc run`.

    Args:
        words: `-m` for a module, the program and its arguments.
    """
    is_module, name = program(words)
    try:
        run_program(name, words[1 + is_module :], is_module=is_module)
    except ProgramNotFoundError as error:
        write_line(f"kdc: {error}", to_stderr=True)
        sys.exit(_NOT_FOUND)


def program(words: Sequence[str]) -> tuple[bool, str]:
    """Whether it is a module, and its name or path."""
    is_module = words[0] == "-m"
    return is_module, words[is_module]


if __name__ == "__main__":
    main(sys.argv[1:])
