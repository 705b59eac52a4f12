"""`kdc report`: one file that shows a whole training: when it ran, what was repeated, its curves, its processes."""

from __future__ import annotations

import datetime
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keras_dist_callbacks.backups import journal as journals
from keras_dist_callbacks.backups.journal import JOURNAL, WORDS, AttemptRecord, Journal
from keras_dist_callbacks.backups.snapshot import Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import duration
from keras_dist_callbacks.cli.formatting import Page
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
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em } svg { max-width: 100%; height: auto }
table { border-collapse: collapse } td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top }
td.n, th.n { text-align: right } th { font-weight: 600; border-bottom: 1px solid #ccc } .scroll { overflow-x: auto }
"""


@dataclass(frozen=True)
class Report:
    """What is known of a training.

    Attributes:
        url: Its backup directory, without credentials.
        journal: Its processes.
        backups: When the backups that are there were made, in seconds since 1970, and after which step.
        history: The values of each epoch, by name.
        epochs: Their numbers, from 1.
        verdict: How training continues from the newest backup; empty without one.
    """

    url: str
    journal: Journal
    backups: tuple[tuple[float, int], ...] = ()
    history: Mapping[str, Sequence[float]] | None = None
    epochs: Sequence[int] = ()
    verdict: str = ""


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
    manifests = [store.manifest(commit) for commit in store.commits()]
    if not manifests:
        left = store.journals()
        if not left and not claims:
            raise ConfigError(f"{url}: no run has begun here; give the backup_dir of a run")
        return Report(url, journals.continued([], claims) if claims else store.left_journal(left[-1]))
    newest = manifests[-1]
    journal = journals.continued([newest.info.get(JOURNAL)], claims)
    held = (newest.workers[0].state.get("callbacks/History()") or {}) if newest.workers else {}
    history = {name: values for name, values in (held.get("history") or {}).items() if _are_numbers(values)}
    epochs = [int(epoch) + 1 for epoch in held.get("epoch") or ()]
    return Report(url, journal, tuple(_places(manifests)), history, epochs, str(verdict_of(newest)))


def _places(manifests: Sequence[Manifest]) -> Iterator[tuple[float, int]]:
    for manifest in manifests:
        if manifest.info.get("created") is not None:
            yield float(manifest.info["created"]), manifest.position.step


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)


def page_of(report: Report) -> str:
    """Returns the report as a page that loads nothing.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figures = [_svg(_timeline(report))]
    if report.history:
        figures += [_svg(_curves(report))]
    summary = journals.summary(report.journal)
    verdict = (
        f"<p>From the newest backup, training continues {html.escape(report.verdict)}.</p>" if report.verdict else ""
    )
    title = html.escape(report.url)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1><p>{html.escape(summary)}.</p>{verdict}"
        f"<h2>Steps over time</h2>{figures[0]}"
        + "".join(f"<h2>Values of each epoch</h2>{figure}" for figure in figures[1:])
        + f"<h2>Time</h2>{_table(('what', 'time', 'share'), _time_rows(report.journal))}"
        + f"<h2>Processes</h2>{_table(_HEADERS, map(_row, _numbered(report.journal)))}</html>\n"
    )


_HEADERS = ("start", "began (UTC)", "ran for", "steps", "ended", "not counted")


def _numbered(journal: Journal) -> Iterator[tuple[int, AttemptRecord]]:
    return enumerate(journal.attempts, start=journal.older + 1)


def _row(numbered: tuple[int, AttemptRecord]) -> tuple[str, ...]:
    number, one = numbered
    began = datetime.datetime.fromtimestamp(one.began, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    unheard = "" if one.after is None else f"{duration(one.after)} unsaved"
    steps = f"{one.first:,} to {one.step:,}"
    return str(number), began, duration(one.heard - one.began), steps, one.end or "killed, or runs", unheard


def _time_rows(journal: Journal) -> Iterator[tuple[str, ...]]:
    totals = journal.totals()
    whole = sum(totals.values()) or 1.0
    for category, seconds in sorted(totals.items(), key=lambda item: -item[1]):
        yield WORDS.get(category, category), duration(seconds), f"{100 * seconds / whole:.1f} %"


def _table(headers: Sequence[str], rows: Any) -> str:
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


# --- pictures


def _figure(height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("kdc report draws with matplotlib: pip install 'keras-dist-callbacks[plot]'") from error
    return Figure(figsize=(9, height), layout="constrained")


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _timeline(report: Report) -> Figure:
    figure = _figure(4)
    axes = figure.subplots()
    attempts = report.journal.attempts
    began = attempts[0].began if attempts else 0.0
    scale, unit = _unit(max((one.heard for one in attempts), default=began) - began)
    for place, (number, one) in enumerate(_numbered(report.journal)):
        color = f"C{(number - 1) % 10}"
        start = one.began + sum(one.seconds.get(name, 0.0) for name in _PREPARATION)
        times = [(when - began) / scale for when in (one.began, start, one.heard)]
        axes.plot(times[:2], [one.first, one.first], color=color, linewidth=1, linestyle=":")
        axes.plot(times[1:], [one.first, one.step], color=color, linewidth=2)
        if one.after and one.after_step is not None:
            end = times[2] + one.after / scale
            axes.plot([times[2], end], [one.step, one.after_step], color=color, linewidth=1, linestyle="--")
        if not one.end and place + 1 < len(attempts):
            axes.plot(times[2], one.step, "x", color="crimson")
    if report.backups:
        times = [(when - began) / scale for when, _ in report.backups]
        axes.plot(times, [step for _, step in report.backups], "|", color="black", markersize=10)
    axes.set_xlabel(f"time since the first start ({unit})")
    axes.set_ylabel("steps trained")
    axes.grid(alpha=0.3)
    return figure


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds < 180 else (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")


def _curves(report: Report) -> Figure:
    history = report.history or {}
    bases = list(dict.fromkeys(name.removeprefix("val_") for name in history))
    figure = _figure(2.5 * len(bases))
    for axes, base in zip(figure.subplots(len(bases), 1, squeeze=False)[:, 0], bases, strict=True):
        for name in (base, f"val_{base}"):
            if name in history:
                epochs = list(report.epochs)[-len(history[name]) :]
                axes.plot(epochs, history[name], label=name, marker="." if len(epochs) < 30 else None)
        axes.legend()
        axes.grid(alpha=0.3)
        axes.set_xlabel("epoch")
    return figure


def show(page: Page, written: Written) -> None:
    """Prints what `kdc report` has done."""
    page.line(f"{written.file} written: {written.summary}", "green")
