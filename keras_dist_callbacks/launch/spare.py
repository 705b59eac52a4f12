"""`python -m keras_dist_callbacks.launch.spare [-m] PROGRAM ARGS`: a worker that imports before it is needed.

It imports TensorFlow, Keras and this package, and waits at its standard input. The environment of its attempt, the pipe
for its output and the time arrive there as JSON; then it is what `worker` is. If nothing arrives, the launcher is gone.

Its imports find what those of the program would find. What they print is held back until the program begins.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

import keras_dist_callbacks
from keras_dist_callbacks.base.stopwatch import stopwatch
from keras_dist_callbacks.launch import worker
from keras_dist_callbacks.launch.restart import first_directory

COMMAND = (sys.executable, "-m", "keras_dist_callbacks.launch.spare")
_IMPORTED = ("tensorflow", "keras", *sorted(set(keras_dist_callbacks._HOME.values())))
_OUTPUTS = (1, 2)


def main(words: Sequence[str]) -> None:
    """Imports, waits, and runs the program.

    Args:
        words: As `worker.main` takes them.
    """
    is_module, program = worker.program(words)
    sys.path[0] = first_directory(program, is_module=is_module)
    with tempfile.TemporaryFile() as held:
        own = _redirect(held)
        with contextlib.suppress(Exception):  # the program's own import raises it again
            for name in _IMPORTED:
                importlib.import_module(name)
        text = sys.stdin.read()
        if not text:
            os._exit(0)
        order = json.loads(text)
        _restore(own, order["output"])
        held.seek(0)
        with open(2, "wb", buffering=0, closefd=False) as stderr:
            shutil.copyfileobj(held, stderr)
    os.environ.update(order["env"])
    stopwatch().begin_at(order["time"])  # until then, another process has trained
    importlib.invalidate_caches()
    worker.main(words)


def _redirect(held: IO[bytes]) -> list[int]:
    """Lets a file take what is printed; returns where it went before."""
    own = [os.dup(output) for output in _OUTPUTS]
    for output in _OUTPUTS:
        os.dup2(held.fileno(), output)
    return own


def _restore(own: Sequence[int], output: str | None) -> None:
    """Lets the outputs go to the pipe of the attempt, or to where they went before, and the input be empty."""
    sys.stdout.flush()
    sys.stderr.flush()
    for number, before in zip(_OUTPUTS, own, strict=True):
        _move(os.dup(before) if output is None else os.open(output, os.O_WRONLY), number)
        os.close(before)
    _move(os.open(os.devnull, os.O_RDONLY), 0)


def _move(descriptor: int, number: int) -> None:
    os.dup2(descriptor, number)
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
