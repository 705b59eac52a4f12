"""A table of results, the bounds it is held against, and how both are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.estimates import Estimate


@dataclass(frozen=True)
class Bound:
    """What must be reached, and what was.

    Attributes:
        what: The quantity.
        limit: What it must reach, in words.
        measured: What was measured.
        met: Whether that is reached.
        why: If not: what was measured that bears on the reason.
        certain: Whether the whole interval reaches it; otherwise noise may decide.
    """

    what: str
    limit: str
    measured: str
    met: bool
    why: str = ""
    certain: bool = True

    @property
    def verdict(self) -> str:
        """`met`, `met, within noise` or `NOT met`."""
        if not self.met:
            return "**NOT met**"
        return "met" if self.certain else "met, within noise"


@dataclass
class Table:
    """Rows under a title.

    Attributes:
        title: Of the table.
        columns: Their heads.
        rows: Cells as text.
        bounds: What it is held against.
        notes: How it was measured.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Prints it."""
        rich = RichTable(title=self.title, title_justify="left")
        for index, column in enumerate(self.columns):
            rich.add_column(column, justify="left" if index == 0 else "right")
        for row in self.rows:
            rich.add_row(*row)
        console.print(rich)
        for bound in self.bounds:
            style = ("green" if bound.certain else "yellow") if bound.met else "bold red"
            verdict = bound.verdict.strip("*")
            why = "" if bound.met else f" {bound.why}"
            console.print(f"[{style}]{verdict}[/] {bound.what}: {bound.measured}; must be {bound.limit}.{why}")

    def markdown(self) -> Iterator[str]:
        """Its lines in Markdown."""
        yield from (f"### {self.title}", "")
        yield from (note + "  " for note in self.notes)
        yield ""
        yield "| " + " | ".join(self.columns) + " |"
        yield "|---" + "|---:" * (len(self.columns) - 1) + "|"
        yield from ("| " + " | ".join(row) + " |" for row in self.rows)
        yield ""


def bounds_markdown(bounds: Sequence[Bound]) -> Iterator[str]:
    """All bounds as one table, and the reasons of those not met."""
    yield from ("| What | Must be | Measured | |", "|---|---|---|---|")
    yield from (f"| {b.what} | {b.limit} | {b.measured} | {b.verdict} |" for b in bounds)
    yield ""
    for bound in bounds:
        if not bound.met:
            yield f"- **{bound.what}**, {bound.measured} instead of {bound.limit}: {bound.why or 'no reason is known'}"
    yield ""


def at_most(what: str, measured: Estimate, limit: float, why: str = "", unit: str = "") -> Bound:
    """A bound on an estimate; limits below one half are written as a fraction."""
    written = f"1/{1 / limit:.3g}" if limit <= 0.5 and not unit else f"{limit:.3g}{unit}"
    met = measured.value <= limit
    return Bound(what, f"≤ {written}", measured.show() + unit, met, why, measured.high <= limit)
