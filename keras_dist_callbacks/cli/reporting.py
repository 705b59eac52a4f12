"""`kdc report`: one file that shows a whole training: when it ran, what was repeated, its curves, its processes."""

from __future__ import annotations

import datetime
import html
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keras_dist_callbacks.backups import journal as journals
from keras_dist_callbacks.backups.journal import JOURNAL, WORDS, AttemptRecord, Journal
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import duration
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.history import Curves, curves_of
from keras_dist_callbacks.cli.inventory import created_at
from keras_dist_callbacks.cli.listing import verdict_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREPARATION = (
    "program_startup",
    "training_prep",
    "unproductive_checkpoint_restore_time",
    "data_loading_sync",
)
_STYLE = """
:root { color-scheme: light dark } @media print { :root { color-scheme: light } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em; overflow-wrap: anywhere } h2 { font-size: 1.1em; margin-top: 2em; break-after: avoid }
figure { margin: 0; break-inside: avoid } svg { max-width: 100%; height: auto }
.phone { display: none } @media (max-width: 40em) { .phone { display: block } .desk { display: none } }
table { border-collapse: collapse } tr { break-inside: avoid } .scroll { overflow-x: auto }
td, th { padding: .2em 1em .2em 0; text-align: left; white-space: nowrap } .n { text-align: right }
th { border-bottom: 1px solid } td:first-child.n { padding-left: .2em }
"""
_WIDTHS = {"desk": 9.0, "phone": 3.9}
"""By class the width of a drawing in inches: each picture is drawn for both, so that its letters keep their size."""
_INK = "#010203"
"""The color of letters and lines while matplotlib draws them; in the page it is that of the text, dark or light."""
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
_KILL = "#dc143c"


@dataclass(frozen=True)
class Report:
    """What is known of a training.

    Attributes:
        url: Its backup directory, without credentials.
        journal: Its processes.
        backups: When the backups that are there were made, in seconds since 1970, and after which step.
        curves: The values of each epoch.
        verdict: How training continues from the newest backup; empty without one.
        has_finished: Whether it is complete.
        is_running: Whether the newest process may still run.
        seen: When it was read, in seconds since 1970.
    """

    url: str
    journal: Journal
    backups: tuple[tuple[float, int], ...] = ()
    curves: Curves = field(default_factory=Curves)
    verdict: str = ""
    has_finished: bool = False
    is_running: bool = False
    seen: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Written:
    """What `kdc report` has written.

    Attributes:
        url: The backup directory, without credentials.
        file: The file.
        summary: Where the time has gone, in words.
    """

    url: str
    file: str
    summary: str


def gather(store: BackupStore) -> Report:
    """Reads what there is of a training.

    Raises:
        ConfigError: No run has begun in the directory.
    """
    url, claims = store.storage.display(), store.claims()
    # without those that the running job deletes meanwhile, and damaged ones
    manifests = [store.manifest(commit) for commit in store.commits() if store.is_readable(commit)]
    if not manifests and not claims:
        left = store.journals()
        if not left:
            raise ConfigError(f"{url}: no run has begun here; give the backup_dir of a run")
        return Report(url, store.left_journal(left[-1]), has_finished=True)
    journal = journals.continued([manifests[-1].info.get(JOURNAL)] if manifests else [], claims)
    is_running = bool(claims) and not claims[-1][1].has_ended
    if not manifests:
        return Report(url, journal, is_running=is_running)
    newest = manifests[-1]
    return Report(
        url,
        journal,
        tuple((made, one.position.step) for one in manifests if (made := created_at(one)) is not None),
        curves_of(newest),
        str(verdict_of(newest)),
        has_finished=newest.done,
        is_running=is_running and not newest.done,
    )


def page_of(report: Report) -> str:
    """Returns the report as a page that loads nothing.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    title = html.escape(report.url)
    sentences = [journals.summary(report.journal) + ".", *_standing(report)]
    known = bool(report.journal.totals())
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>",
        *(f"<p>{html.escape(sentence).replace(' %', '&nbsp;%')}</p>" for sentence in sentences),
        _drawn("Steps over time", timeline, report) if known else "",
        _drawn("Values of each epoch", curves, report) if report.curves.values else "",
        f"<h2>Where the time went</h2>{_table(_TIMES, _time_rows(report.journal))}" if known else "",
        f"<h2>Starts</h2>{_table(_HEADERS, _rows(report))}</html>\n",
    ]
    return "".join(parts)


def _standing(report: Report) -> Iterator[str]:
    """Sentences on how far the training is, and on what is not in the page."""
    if report.has_finished:
        yield "Training has finished."
    else:
        yield f"On {_date(report.seen)} UTC training had not finished."
    if report.verdict:
        yield f"A resume from the newest backup: {report.verdict}."
    if not report.backups:
        yield "There is no backup, so the values of each epoch are not known."
    if older := report.journal.older:
        yield f"Of the first {older:,} starts only the sums are known: they are not drawn, and not in the last table."


_TIMES = ("what", ">time", ">share")
_HEADERS = (">start", ">steps", "ended", ">repeated", ">ran for", "began (UTC)")


def _numbered(journal: Journal) -> Iterator[tuple[int, AttemptRecord]]:
    return enumerate(journal.attempts, start=journal.older + 1)


def _color(number: int) -> str:
    return _COLORS[(number - 1) % len(_COLORS)]


def _date(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _rows(report: Report) -> Iterator[tuple[str, ...]]:
    attempts = report.journal.attempts
    for place, (number, one) in enumerate(_numbered(report.journal)):
        is_last = place + 1 == len(attempts)
        repeated = journals.repeated_steps(attempts[place:]) - journals.repeated_steps(attempts[place + 1 :])
        is_exact = bool(one.end) or one.after_step is not None
        again = "-" if is_last else f"{repeated:,}" if is_exact else f"at least {repeated:,}" if repeated else "unknown"
        steps = f"{one.first:,} to {max(one.step, one.after_step or 0):,}"
        ran = duration(one.heard - one.began + (one.after or 0.0))
        end = one.end or ("running" if is_last and report.is_running else "killed" if one.seconds else "unknown")
        yield f"<span style='color:{_color(number)}'>■</span> {number}", steps, end, again, ran, _date(one.began)


def _time_rows(journal: Journal) -> Iterator[tuple[str, ...]]:
    totals = journal.totals()
    whole = sum(totals.values()) or 1.0
    for category, seconds in sorted(totals.items(), key=lambda item: -item[1]):
        yield WORDS.get(category, category), duration(seconds), f"{100 * seconds / whole:.1f} %"


def _table(headers: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    """A table of cells in HTML; headers that begin with `>` are of columns of numbers."""
    kinds = [" class=n" if header.startswith(">") else "" for header in headers]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    head = line("th", [header.removeprefix(">") for header in headers])
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


# --- pictures


def _drawn(title: str, draw: Callable[[Report, float], Figure], report: Report) -> str:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError("kdc report draws with matplotlib: pip install 'keras-dist-callbacks[plot]'") from error
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    page: dict[Any, Any] = {"svg.fonttype": "none", "text.parse_math": False, **dict.fromkeys(inked, _INK)}
    with mpl.rc_context(page):
        pictures = {name: _svg(draw(report, width)) for name, width in _WIDTHS.items()}
    figures = "".join(f"<figure class={name}>{picture}</figure>" for name, picture in pictures.items())
    return f"<h2>{title}</h2>{figures}"


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def timeline(report: Report, width: float = _WIDTHS["desk"]) -> Figure:
    """Draws steps over time, one color for each process.

    Args:
        report: What is known of the training.
        width: In inches.
    """
    figure = _figure(width, 4)
    axes = figure.subplots()
    attempts = report.journal.attempts
    began = attempts[0].began if attempts else 0.0
    scale, unit = _unit(max((one.heard for one in attempts), default=began) - began)
    ink = axes.xaxis.label.get_color()
    drawn: dict[str, dict[str, Any]] = {}  # by what it means, how it looks

    def draw(meaning: str, when: Sequence[float], steps: Sequence[float], color: Any, **style: Any) -> None:
        axes.plot([(one - began) / scale for one in when], steps, color=color, **style)
        drawn[meaning] = style

    for place, (number, one) in enumerate(_numbered(report.journal)):
        color, later = _color(number), attempts[place + 1 :]
        start = one.began + sum(one.seconds.get(name, 0.0) for name in _PREPARATION)
        draw("starting, restoring", [one.began, start], [one.first, one.first], color, linewidth=1.2, linestyle=":")
        kept = min([one.step, *(max(one.first, other.first) for other in later)])
        turn = start + (one.heard - start) * (kept - one.first) / max(1, one.step - one.first)
        draw("training", [start, turn], [one.first, kept], color, linewidth=2.0)
        again = [(turn, kept), (one.heard, one.step)] if kept < one.step else [(turn, kept)]
        if one.after and one.after_step is not None:
            again.append((one.heard + one.after, one.after_step))
        if len(again) > 1:
            when, steps = zip(*again, strict=True)
            draw("training that was repeated", when, steps, color, linewidth=2.0, linestyle=(0, (1.5, 1)))
        if not one.end and (later or not report.is_running):
            last, meaning = again[-1], "killed" if one.after else "killed some time later"
            draw(meaning, last[:1], last[1:], _KILL, marker="x", linestyle="", markersize=6)
    if report.backups:
        when, steps = zip(*report.backups, strict=True)
        draw("backup that is there", when, steps, ink, marker="|", linestyle="", markersize=10)
    for meaning, style in drawn.items():
        axes.plot([], [], color=_KILL if meaning.startswith("killed") else ink, label=meaning, **style)
    figure.legend(loc="outside upper left", ncols=3 if width > 6 else 2, frameon=False, fontsize="small")
    axes.set_xlabel(f"time since start {report.journal.older + 1} ({unit})")
    axes.set_ylabel("steps trained")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.15)
    return figure


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds < 180 else (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")


def curves(report: Report, width: float = _WIDTHS["desk"]) -> Figure:
    """Draws what History holds: one panel for each value, with that of validation.

    Args:
        report: What is known of the training.
        width: In inches.
    """
    from matplotlib.ticker import MaxNLocator

    values, numbers = report.curves.values, report.curves.epochs
    bases = sorted(dict.fromkeys(name.removeprefix("val_") for name in values), key=lambda name: name != "loss")
    columns = 2 if width > 6 and len(bases) > 1 else 1
    rows = -(-len(bases) // columns)
    figure = _figure(width, 2.5 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for base, axes in zip(bases, panels, strict=False):  # in this order: what is left of the panels is used below
        for name, label in ((base, "training"), (f"val_{base}", "validation")):
            if name in values:
                epochs = list(numbers)[-len(values[name]) :]
                points = [math.nan if value is None else value for value in values[name]]
                axes.plot(epochs, points, label=label, marker="." if len(epochs) < 30 else None)
        axes.set_title(base, loc="left", fontsize="medium")
        if len(axes.lines) > 1 and not figure.legends:
            figure.legend(
                *axes.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize="small"
            )
        axes.grid(alpha=0.15)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    for axes in panels:  # one is left where there is no value for it
        axes.set_axis_off()
    return figure


def show(page: Page, written: Written) -> None:
    """Prints what `kdc report` has done."""
    page.line(f"{written.file} written: {written.summary}", "green")
