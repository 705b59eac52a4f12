"""`kdc watch`: where a job is, how long it still takes, and what goes wrong; from the store alone.

A look is a listing of two directories, a read of the newest owner record, and one of the newest manifest where that is
another one. It takes no lock and writes nothing.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from keras_dist_callbacks.backups import journal as journals
from keras_dist_callbacks.backups.journal import JOURNAL, AttemptRecord, Journal
from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.backups.snapshot import Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import progress_file
from keras_dist_callbacks.base.errors import DamagedBackupError, StorageError
from keras_dist_callbacks.base.progress_file import Phase
from keras_dist_callbacks.base.terminal import data_size, duration
from keras_dist_callbacks.cli import formatting, listing
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.history import Values, curves_of
from keras_dist_callbacks.cli.inventory import created_at

State = Literal["nothing", "starting", "running", "not running", "stalled", "finished"]
Trouble = Literal["stalled", "restart storm", "no progress between restarts", "backups failing"]

STALE_SECONDS = 1800.0
_STORM = 5  # starts within `_STORM_SECONDS`
_STORM_SECONDS = 1800.0
_SAME_STEP = 3  # starts from one step
_MISSED = 4  # intervals between backups
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 40  # values
_NAMES = 15  # columns


@dataclass(frozen=True)
class LastWarning:
    """What a process has warned of.

    Attributes:
        age: Seconds ago.
        text: What it said.
    """

    age: float
    text: str


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
        backup_seconds: How long it took to write, in the background.
        phase: What its process does now; empty where only another machine, or nobody, knows that.
        steps_at_risk: What a kill would cost now; None if that is not known, or nothing runs.
        is_estimated: Whether that is estimated from the pace, and not known from the process.
        starts: How many processes there were.
        ends: How the last hundred of them have ended, the newest last; empty for a kill, and for the one that runs.
        goodput: The share of training in all time so far; None if that is not known.
        summary: Where the time has gone, in words.
        seconds: Of all time so far, by category.
        loss: That of each epoch; None for what is not finite.
        notes: What the newest backup says of itself: not finite, not exact.
        warnings: The last ones of the newest process, up to its newest backup, the newest last.
        troubles: What goes wrong.
        unseen: Seconds since the directory could be read; then all else is what was seen last. None: it was read now.
        failure: Why it cannot be read.
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
    backup_seconds: float | None = None
    phase: str = ""
    steps_at_risk: int | None = None
    is_estimated: bool = True
    starts: int = 0
    ends: tuple[str, ...] = ()
    goodput: float | None = None
    summary: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    loss: Values = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[LastWarning, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    unseen: float | None = None
    failure: str = ""


class Watch:
    """Looks at a directory again and again.

    Args:
        store: The directory.
        stale: Seconds without a sign of life after which a run counts as stalled.
    """

    def __init__(self, store: BackupStore, stale: float = STALE_SECONDS) -> None:
        self._store, self._stale = store, stale
        self._newest: Manifest | None = None

    def look(self, now: float) -> JobView:
        """Returns what there is to see.

        Args:
            now: Seconds since 1970, by the clock that the records are compared with.
        """
        store = self._store
        claims = store.claims(again=True)
        commits = store.commits(claims)
        if not commits:
            return self._without_backup(claims, now)
        newest = commits[-1]
        if self._newest is None or self._newest.id != newest:
            try:
                self._newest = store.manifest_in(newest.name, newest)  # `manifest` would keep all that were ever seen
            except DamagedBackupError:
                if store.storage.exists(newest.name):
                    raise
                return self.look(now)  # the run has deleted it meanwhile
        journal = journals.continued([self._newest.info.get(JOURNAL)], claims)
        return _described(store.storage.display(), self._newest, journal, claims, now, self._stale)

    def _without_backup(self, claims: Sequence[tuple[int, OwnerRecord]], now: float) -> JobView:
        store = self._store
        url = store.storage.display()
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
    created = created_at(manifest) or now
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
        manifest.info.get("seconds"),
        loss=curves_of(manifest).values.get("loss", ())[-_CURVE:],
        notes=tuple(_notes(manifest)),
        warnings=tuple(
            LastWarning(max(0.0, now - one["time"]), one["text"]) for one in manifest.info.get("warnings") or ()
        ),
        troubles=troubles,
    )
    return _of_journal(dataclasses.replace(look, **_risk(look, position.step, whole, claims)), journal)


def _risk(look: JobView, saved: int, pace: float | None, claims: Sequence[tuple[int, OwnerRecord]]) -> dict[str, Any]:
    """What a kill would cost, from the process itself if it runs under `kdc launch` on this machine."""
    if look.state != "running":
        return {}
    runs = [owner for _, owner in claims if owner.runs_here]
    report = progress_file.of_process(runs[-1].pid) if runs else None
    if report is None or report.step is None or report.backup != (report.fit, saved):  # it may train another one now
        return {} if pace is None else {"steps_at_risk": round((look.backup_age or 0.0) * pace)}
    phase = "" if report.phase is Phase.OUTSIDE else str(report.phase)
    return {"steps_at_risk": max(0, report.step - saved), "is_estimated": False, "phase": phase}


def _notes(manifest: Manifest) -> Iterator[str]:
    if manifest.info.get("not_finite"):
        yield "the newest backup is not finite"
    if listing.verdict_of(manifest).word == "not exact":
        yield "`kdc show` says why a resume is not exact"


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
    steps = 0 if own is None else own.step - own.first - 1  # the first step is preparation
    if own is None or steps < 1 or not own.seconds.get("training"):
        return None, None
    training = own.seconds["training"]
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
    state = f"{look.state}, {look.phase}" if look.phase else look.state
    yield "state", state if look.unseen is None else f"{state} {formatting.age(look.unseen)} ago"
    if look.position:
        yield "position", f"{look.position}, step {look.step:,}"
    if look.steps_per_second is not None:
        yield "pace", f"{look.steps_per_second:.3g} steps/s"
    if look.seconds_left is not None and look.state == "running":
        yield "time left", f"about {duration(look.seconds_left)}"
    if look.backup_age is not None and look.state != "finished":
        size = "" if look.backup_bytes is None else f", {data_size(look.backup_bytes)}"
        took = "" if look.backup_seconds is None else f", took {look.backup_seconds:.2g} s"
        yield "newest backup", f"{formatting.age(look.backup_age)} ago{size}{took}"
    if look.steps_at_risk is not None:
        yield "at risk", f"{'about ' if look.is_estimated else ''}{formatting.count(look.steps_at_risk, 'step')}"
    if look.summary:
        yield "time so far", look.summary
    if len(look.ends) > 1:
        ends = collections.Counter(end or "killed" for end in look.ends[:-1])
        yield "earlier ends", ", ".join(f"{count} {end}" for end, count in ends.most_common())
    if look.loss:
        last = "not finite" if look.loss[-1] is None else f"{look.loss[-1]:.4g}"
        yield "loss", f"{sparkline(look.loss)} {last}"


def remarks(look: JobView) -> Iterator[tuple[str, str]]:
    """What is wrong, and what the job has warned of: kinds and texts."""
    yield from (("warning", f"{formatting.age(one.age)} ago: {one.text}") for one in look.warnings)
    yield from (("note", note) for note in look.notes)
    yield from (("trouble", trouble) for trouble in look.troubles)
    if look.failure:
        yield "trouble", look.failure


def show(page: Page, look: JobView) -> None:
    """Prints one look."""
    page.line(look.url, "bold")
    page.facts(facts(look))
    page.notes(remarks(look), "red")


def follow(watch: Callable[[], JobView], every: float, patience: float) -> JobView:
    """Looks until the run has ended or stalled, and shows what there is: a screen, or a line for each change.

    A store that cannot be read for a while is waited for.

    Args:
        watch: Looks.
        every: Seconds between two looks.
        patience: For how many seconds the store is waited for.

    Raises:
        StorageError: It cannot be read, and was not before or has not been for so long.
    """
    console = Console(highlight=False)
    is_screen = console.is_terminal and not console.is_dumb_terminal
    look, before, seen = watch(), "", time.monotonic()
    live = (
        Live(_screen(look, console.width), console=console, auto_refresh=False)
        if is_screen
        else contextlib.nullcontext()
    )
    with live:
        while True:
            change = f"{look.state} {look.position} {look.step} {look.troubles} {look.unseen is None}"
            if isinstance(live, Live):
                live.update(_screen(look, console.width), refresh=True)
            elif change != before:
                texts = [*(f"{name} {fact}" for name, fact in facts(look)), *(text for _, text in remarks(look))]
                print("; ".join(texts), flush=True)
            before = change
            if look.state in ("finished", "stalled"):
                return look
            time.sleep(every)
            try:
                look, seen = watch(), time.monotonic()
            except StorageError as error:
                unseen = time.monotonic() - seen
                if not error.unavailable or unseen > patience:
                    raise
                look = dataclasses.replace(look, unseen=unseen, failure=str(error))


def _screen(look: JobView, width: int) -> Group:
    """The state with what is wrong, then all else, so that a small terminal cuts off what matters least."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=_NAMES - 2)
    grid.add_column(overflow="fold")
    state, *others = facts(look)
    grid.add_row(*state)
    for kind, text in remarks(look):
        grid.add_row(Text(kind, style="bold red"), Text(text, style="red"))
    for name, fact in others:
        grid.add_row(name, Text(_folded(fact, width - _NAMES)))
    return Group(Text(look.url, style="bold", overflow="fold"), grid)


def _folded(fact: str, room: int) -> str:
    """In lines that end after a comma or colon, if all of its parts are short enough for that."""
    parts, lines = re.split(r"(?<=[,:]) ", fact), [""]
    if max(map(len, parts)) > room:
        return fact
    for part in parts:
        longer = f"{lines[-1]} {part}".lstrip()
        lines[-1:] = [longer] if len(longer) <= room else [lines[-1], part]
    return "\n".join(lines)
