"""killed_saver.py DIRECTORY CALL NUMBER: saves twice, and is killed before a system call of its second save."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

from tests.engine.test_one_pass import Saver


def main() -> None:
    directory, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    value = np.random.default_rng(0).integers(0, 255, 9 * 2**20 + 5, np.uint8)
    saver = Saver(directory, fsync=True)
    saver.save({"a": value})
    original, calls = getattr(os, name), 0

    def call(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **options)

    setattr(os, name, call)
    saver.save({"a": value + 1})


if __name__ == "__main__":
    main()
