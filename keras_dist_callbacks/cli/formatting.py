"""Sizes, ages and positions as people write them."""

from __future__ import annotations

import datetime

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.terminal import data_size

_SPANS = (("min", 60), ("h", 60), ("d", 24))


def size(count: int | None) -> str:
    """Bytes, as `812 B` or `6.9 MiB`; a dash if unknown."""
    return "-" if count is None else data_size(count)


def age(seconds: float | None) -> str:
    """A span of time in its largest unit, as `45 s`, `12 min`, `3.5 h` or `9 d`; a dash if unknown."""
    if seconds is None:
        return "-"
    value, unit = max(0.0, seconds), "s"
    for larger, factor in _SPANS:
        if round(value) < factor:
            break
        value, unit = value / factor, larger
    precise = unit in {"h", "d"} and value < 9.95
    return f"{value:.1f} {unit}" if precise else f"{round(value)} {unit}"


def moment(timestamp: float | None) -> str:
    """A time as a date in UTC; a dash if unknown."""
    if timestamp is None:
        return "-"
    return datetime.datetime.fromtimestamp(timestamp, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def position(where: Position) -> str:
    """A position in training, epochs and batches counted from 1 as Keras prints them."""
    if where.kind == "within":
        return f"epoch {where.epoch + 1}, batch {where.batch}"
    if where.kind == "end":
        return f"end, after epoch {where.epoch}"
    return f"after epoch {where.epoch}" if where.epoch else "before epoch 1"


def count(number: int, noun: str) -> str:
    """`1 backup`, `2 backups`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
