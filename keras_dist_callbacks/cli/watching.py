"""`kdc watch`: where a job is, how long it still takes, and what goes wrong; from the store alone.

A look is a listing of three directories, and a read of the newest manifest where that is another one. It takes no lock
and writes nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from keras_dist_callbacks.backups import journal as journals
from keras_dist_callbacks.backups.journal import JOURNAL, AttemptRecord, Journal
from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.backups.snapshot import Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.terminal import data_size, duration
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.history import Values, curves_of

State = Literal["nothing", "starting", "running", "not running", "stalled", "finished"]
Trouble = Literal["stalled", "restart storm", "no progress between restarts", "backups failing"]

STALE_SECONDS = 1800.0
_STORM = 5  # starts within `_STORM_SECONDS`
_STORM_SECONDS = 1800.0
_SAME_STEP = 3  # starts from one step
_MISSED = 4  # intervals between backups
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 40  # values


@dataclass(frozen=True)
class JobView:
    """What `kdc watch` shows.

    Attributes:
        url: The directory, without credentials.
        state: `"nothing"`: no run has begun here; `"starting"`: one has, and has saved nothing yet;
            `"not running"`: its process has ended, which only its own machine knows; elsewhere it is `"running"` until
            it is `"stalled"`.
        position: Where the newest backup was taken, in words.
        step: Batches trained then.
        epoch: The running epoch, counted from 1.
        epochs: How many are asked for.
        steps_per_second: Of the newest process, while it trains.
        seconds_left: To the end of training, at the pace of the newest process; None if that is not known.
        backup_age: Seconds since the newest backup; None without one.
        backup_bytes: What that refers to.
        steps_at_risk: What a kill would cost now, estimated from the pace; None if nothing runs.
        starts: How many processes there were.
        ends: How the last hundred of them have ended, the newest last; empty for a kill, and for the one that runs.
        goodput: The share of training in all time so far; None if that is not known.
        summary: Where the time has gone, in words.
        seconds: Of all time so far, by category.
        loss: That of each epoch; None for what is not finite.
        notes: What the newest backup says of itself: not finite, not exact.
        troubles: What goes wrong.
    """

    url: str
    state: State
    position: str = ""
    step: int = 0
    epoch: int | None = None
    epochs: int | None = None
    steps_per_second: float | None = None
    seconds_left: float | None = None
    backup_age: float | None = None
    backup_bytes: int | None = None
    steps_at_risk: int | None = None
    starts: int = 0
    ends: tuple[str, ...] = ()
    goodput: float | None = None
    summary: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    loss: Values = ()
    notes: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()


class Watch:
    """Looks at a directory again and again.

    Args:
        store: The directory.
        stale: Seconds without a sign of life after which a run counts as stalled.
    """

    def __init__(self, store: BackupStore, stale: float = STALE_SECONDS) -> None:
        self._storage, self._stale = store.storage, stale
        self._newest: Manifest | None = None

    def look(self, now: float) -> JobView:
        """Returns what there is to see.

        Args:
            now: Seconds since 1970, by the clock that the records are compared with.
        """
        store = BackupStore(self._storage)
        url, claims, commits = self._storage.display(), store.claims(), store.commits()
        if not commits:
            return self._without_backup(store, claims, now)
        newest = commits[-1]
        if self._newest is None or self._newest.id != newest:
            self._newest = store.manifest(newest)
        manifest = self._newest
        journal = journals.continued([manifest.info.get(JOURNAL)], claims)
        return _described(url, manifest, journal, claims, now, self._stale)

    def _without_backup(self, store: BackupStore, claims: Sequence[tuple[int, OwnerRecord]], now: float) -> JobView:
        url = self._storage.display()
        if claims:
            journal = journals.continued([], claims)
            began = claims[-1][1].claimed
            troubles = _troubles(journal, now, now - began > self._stale, is_late=False)
            state: State = "stalled" if troubles[:1] == ("stalled",) else _running(claims, "starting")
            return JobView(url, state, starts=journal.starts, troubles=troubles)
        left = store.journals()
        if not left:
            return JobView(url, "nothing")
        journal = store.left_journal(left[-1])
        last = journal.attempts[-1]
        return dataclasses.replace(_of_journal(JobView(url, "finished", step=last.step), journal), position="the end")


def _described(
    url: str, manifest: Manifest, journal: Journal, claims: Sequence[tuple[int, OwnerRecord]], now: float, stale: float
) -> JobView:
    state, position = manifest.workers[0].state, manifest.position
    created = float(manifest.info.get("created") or now)
    age = max(0.0, now - created)
    own = next((one for one in reversed(journal.attempts) if one.generation == manifest.id.generation), None)
    pace, whole = _paces(own)
    fit = state.get("progress/fit") or {}
    steps_left = _steps_left(manifest, fit)
    last_sign = max([created, *(owner.claimed for _, owner in claims)])
    is_silent = not manifest.done and now - last_sign > stale
    seen = None  # seconds between two backups
    if own is not None and own.seconds:
        seen = (own.heard - own.began) / max(1, manifest.id.sequence)
    standing: State = "finished" if manifest.done else "stalled" if is_silent else _running(claims, "running")
    is_late = standing == "running" and seen is not None and age > _MISSED * max(seen, 60.0)
    troubles = () if manifest.done else _troubles(journal, now, is_silent, is_late=is_late)
    look = JobView(
        url,
        standing,
        formatting.position(position, fit.get("epochs")),
        position.step,
        formatting.epoch(position),
        fit.get("epochs"),
        pace,
        None if manifest.done or whole is None or steps_left is None else max(0.0, steps_left / whole - age),
        age,
        sum(blob.size for blob in manifest.blobs),
        None if standing in ("finished", "not running") or pace is None else round(age * pace),
        loss=curves_of(manifest).values.get("loss", ())[-_CURVE:],
        notes=("the newest backup is not finite",) if manifest.info.get("not_finite") else (),
        troubles=troubles,
    )
    return _of_journal(look, journal)


def _running(claims: Sequence[tuple[int, OwnerRecord]], otherwise: State) -> State:
    runs = [owner for _, owner in claims if not owner.is_of_rollback]
    return "not running" if runs and runs[-1].has_ended else otherwise


def _of_journal(look: JobView, journal: Journal) -> JobView:
    totals = journal.totals()
    whole = sum(totals.values())
    return dataclasses.replace(
        look,
        starts=journal.starts,
        ends=tuple(one.end for one in journal.attempts),
        goodput=totals.get("training", 0.0) / whole if whole else None,
        summary=journals.summary(journal) if whole else "",
        seconds=totals,
    )


def _paces(own: AttemptRecord | None) -> tuple[float | None, float | None]:
    """Steps per second while a process trains, and with what it does between."""
    if own is None or own.step <= own.first or not own.seconds.get("training"):
        return None, None
    steps, training = own.step - own.first, own.seconds["training"]
    between = sum(
        own.seconds.get(name, 0.0)
        for name in ("unproductive_checkpoint_save_time", "custom_badput_events/eval_step", "other")
    )
    return steps / training, steps / (training + between)


def _steps_left(manifest: Manifest, fit: dict[str, Any]) -> int | None:
    position, batches = manifest.position, manifest.info.get("steps_per_epoch")
    if not batches or not fit.get("epochs"):
        return None
    return max(0, (int(fit["epochs"]) - position.epoch) * int(batches) - position.batch)


def _troubles(journal: Journal, now: float, is_silent: bool, *, is_late: bool) -> tuple[Trouble, ...]:
    recent = [one for one in journal.attempts if now - one.began < _STORM_SECONDS]
    last = journal.attempts[-_SAME_STEP:]
    in_vain = len(last) == _SAME_STEP and len({one.step for one in last}) == 1 and last[-1].first == last[-1].step
    found: dict[Trouble, bool] = {
        "stalled": is_silent,
        "restart storm": len(recent) >= _STORM,
        "no progress between restarts": in_vain,
        "backups failing": is_late and not is_silent,
    }
    return tuple(trouble for trouble, holds in found.items() if holds)


# --- what is shown


def sparkline(values: Values) -> str:
    """A curve of values in one line; what is not finite is a gap."""
    finite = [value for value in values if value is not None]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if value is None else _BARS[round((value - low) * scale)] for value in values)


def facts(look: JobView) -> Iterator[tuple[str, str]]:
    """Names, and what there is to say of each."""
    yield "state", look.state
    if look.position:
        yield "position", f"{look.position}, step {look.step:,}"
    if look.steps_per_second is not None:
        yield "pace", f"{look.steps_per_second:.3g} steps/s"
    if look.seconds_left is not None and look.state == "running":
        yield "time left", f"about {duration(look.seconds_left)}"
    if look.backup_age is not None and look.state != "finished":
        size = "" if look.backup_bytes is None else f", {data_size(look.backup_bytes)}"
        risk = "" if look.steps_at_risk is None else f"; about {look.steps_at_risk:,} steps at risk"
        yield "newest backup", f"{formatting.age(look.backup_age)} ago{size}{risk}"
    if look.summary:
        yield "time so far", look.summary
    if len(look.ends) > 1:
        ends = collections.Counter(end or "killed" for end in look.ends[:-1])
        yield "earlier ends", ", ".join(f"{count} {end}" for end, count in ends.most_common())
    if look.loss:
        last = "not finite" if look.loss[-1] is None else f"{look.loss[-1]:.4g}"
        yield "loss", f"{sparkline(look.loss)} {last}"


def show(page: Page, look: JobView) -> None:
    """Prints one look."""
    page.line(look.url, "bold")
    page.facts(facts(look))
    page.notes((("note", note) for note in look.notes), "red")
    page.notes((("trouble", trouble) for trouble in look.troubles), "bold red")


def follow(watch: Callable[[], JobView], every: float, *, shown: bool) -> JobView:
    """Looks until the run has ended or stalled, and shows what there is: a screen, or a line for each change.

    Args:
        watch: Looks.
        every: Seconds between two looks.
        shown: Whether the output is a terminal.
    """
    look, before = watch(), ""
    with Live(_screen(look), console=Console(), auto_refresh=False, transient=False) if shown else _Lines() as live:
        while True:
            told = f"{look.state} {look.position} {look.step} {look.troubles}"
            if shown:
                live.update(_screen(look), refresh=True)
            elif told != before:
                print("; ".join(f"{name} {fact}" for name, fact in facts(look)), *look.troubles, sep="; ", flush=True)
            before = told
            if look.state in ("finished", "stalled"):
                return look
            time.sleep(every)
            look = watch()


class _Lines:
    """Stands for a screen where there is none."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        sys.stdout.flush()


def _screen(look: JobView) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_row(Text(look.url, style="bold"), "")
    for name, fact in facts(look):
        grid.add_row(name, Text(fact))
    for word in (*look.notes, *look.troubles):
        grid.add_row(Text("!", style="bold red"), Text(word, style="red"))
    return grid
