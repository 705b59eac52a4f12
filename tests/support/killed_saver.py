"""killed_saver.py DIRECTORY CALL NUMBER [SAVES]: saves, and is killed before a system call of the last save."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

from tests.run.engine.test_committer import Saver


def main() -> None:
    directory, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    saves = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    value = np.random.default_rng(0).integers(0, 255, 9 * 2**20 + 5, np.uint8)
    saver = Saver(directory, fsync=True)
    for save in range(1, saves):
        saver.save({"a": value - save})
    original, calls = getattr(os, name), 0

    def call(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **options)

    setattr(os, name, call)
    saver.save({"a": value})


if __name__ == "__main__":
    main()
