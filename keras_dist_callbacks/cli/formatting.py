"""Sizes, ages and positions as people write them, and the lines and tables of them that all commands print."""

from __future__ import annotations

import datetime
import io
import itertools
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.base.terminal import data_size

Cell = str | Text

_SPANS = (("min", 60), ("h", 60), ("d", 24))
_STYLES = {
    "ok": "green", "intact": "green", "exact": "green", "exact if": "cyan", "not exact": "yellow", "done": "green",
    "warn": "yellow", "too new": "yellow", "unfinished": "yellow", "damaged": "bold red", "fail": "bold red",
    "new": "dim", "as before": "dim",
}  # fmt: skip
_RESULTS = {"", "resume"}
_NARROW = 72
_PIPE_WIDTH = 160


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


def moment(timestamp: float | None, seconds_ago: float | None = None) -> str:
    """A time as a date in UTC, with its age if that is given; a dash if unknown."""
    if timestamp is None:
        return "-"
    date = datetime.datetime.fromtimestamp(timestamp, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return date if seconds_ago is None else f"{date}, {age(seconds_ago)} ago"


def epoch(where: Position) -> int:
    """The epoch of a position, counted from 1 as Keras prints them.

    It is the running one, or between two epochs the last one that ended: 0 before the first.
    """
    return where.epoch + 1 if where.kind == "within" else where.epoch


def position(where: Position, epochs: int | None = None) -> str:
    """A position in training, epochs and batches counted from 1 as Keras prints them.

    Args:
        where: The position.
        epochs: How many are asked for; None if that is not to be said.
    """
    of = "" if epochs is None else f" of {epochs}"
    if where.kind == "within":
        return f"epoch {epoch(where)}{of}, batch {where.batch}"
    if where.kind == "end":
        return f"end, after epoch {where.epoch}"
    return f"after epoch {where.epoch}{of}" if where.epoch else f"before epoch 1{of}"


def count(number: int, noun: str) -> str:
    """`1 backup`, `2 backups`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sum_of_sizes(sizes: Collection[int], noun: str) -> str:
    """`2 blobs, 6.9 MiB`; an empty text for no sizes."""
    return f"{count(len(sizes), noun)}, {size(sum(sizes))}" if sizes else ""


def styled(word: str) -> Text:
    """A state or result in its color."""
    return Text(word, style=_STYLES.get(word, ""))


class Page:
    """What a command prints for people on the standard output; nothing in it is taken for markup."""

    def __init__(self) -> None:
        stream = io.StringIO() if sys.stdout is None else sys.stdout  # None: the shell has closed it
        width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
        self._console = Console(file=stream, markup=False, emoji=False, highlight=False, width=width)

    def line(self, text: str, style: str = "") -> None:
        """One line, however long."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def notes(self, notes: Iterable[tuple[str, str | None]], style: str = "") -> None:
        """One indented line for each name that has a note."""
        for name, note in notes:
            if note:
                self._console.print(Text.assemble("  ", (name, style), f": {note}"), soft_wrap=True)

    def facts(self, facts: Iterable[Sequence[Cell]]) -> None:
        """Names, each with what there is to say of it."""
        grid = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
        grid.add_column(style="dim", no_wrap=True)
        for fact in facts:
            grid.add_row(*fact)
        self._console.print(grid)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[Cell]], only_if_wide: Collection[str] = ()) -> None:
        """A table without lines.

        On a narrow terminal, results (the columns without a header, and `resume`) stay as they are and the others wrap.

        Args:
            headers: One for each column; those that begin with `>` are of columns of numbers.
            rows: The cells.
            only_if_wide: Headers of columns that a narrow terminal does not get.
        """
        is_narrow = self._console.width < _NARROW
        is_shown = [not (is_narrow and header in only_if_wide) for header in headers]
        table = Table(box=None, header_style="dim", padding=(0, 0, 0, 2))
        for header in itertools.compress(headers, is_shown):
            justify: Literal["left", "right"] = "right" if header.startswith(">") else "left"
            table.add_column(header.removeprefix(">"), justify=justify, no_wrap=header in _RESULTS, overflow="fold")
        for row in rows:
            table.add_row(*itertools.compress(row, is_shown))
        self._console.print(table)
