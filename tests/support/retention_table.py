"""Twelve epochs of given values, and what the rules of ModelCheckpoint make of them."""

from __future__ import annotations

import math

Given = tuple[int | None, int | None, int | None]

VALUES = [9.0, 4.0, None, 4.0, 7.0, 2.0, math.nan, 3.0, 2.0, 8.0, 1.0, 5.0]
ALL = list(range(1, 13))
TABLE: dict[Given, tuple[list[int], list[int]]] = {
    # max_to_keep=2, keep_best=3, keep_every=5, each given or not: epochs of the files that are written, and kept
    (None, None, None): (ALL, ALL),
    (2, None, None): (ALL, [11, 12]),
    (None, 3, None): ([1, 2, 4, 5, 6, 8, 9, 11], [6, 9, 11]),
    (None, None, 5): ([5, 10], [5, 10]),
    (2, 3, None): (ALL, [6, 9, 11, 12]),
    (2, None, 5): (ALL, [5, 10, 11, 12]),
    (None, 3, 5): ([1, 2, 4, 5, 6, 8, 9, 10, 11], [5, 6, 9, 10, 11]),
    (2, 3, 5): (ALL, [5, 6, 9, 10, 11, 12]),
}
