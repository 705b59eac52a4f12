"""Reads the newest backup of a directory again and again, and writes down what it has read.

    python -m tests.support.many_reads COUNT OUT < {"url": ..., "options": ...}

Each line is the step that was read and the digest of every variable of the model.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

import keras_dist_callbacks as kdc

ITERATION = "momentum/iteration"


def digest(values: Iterable[tuple[str, Any]]) -> str:
    """Of variables by their paths, which may come in any order."""
    found = xxhash.xxh3_128()
    for path, value in sorted(values):
        found.update(path.encode())
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    warnings.simplefilter("error")
    place = json.load(sys.stdin)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for _ in range(int(sys.argv[1])):
            read = kdc.load_backup(place["url"], storage_options=place["options"])
            out.write(f"{int(read[ITERATION])} {digest(read.items())}\n")
