"""Tables and lines for people, made of the same values that `--json` prints."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.details import CheckpointDetails, CommitDetails, TensorRow
from keras_dist_callbacks.cli.doctor import Diagnosis
from keras_dist_callbacks.cli.listing import CheckpointRow, CommitRow, DirectoryListing
from keras_dist_callbacks.cli.pruning import PrunePlan
from keras_dist_callbacks.cli.verifying import Verification

_STYLES = {
    "ok": "green", "whole": "green", "exact": "green", "exact if": "cyan", "not exact": "yellow", "done": "green",
    "warn": "yellow", "too new": "yellow", "unfinished": "yellow", "damaged": "bold red", "fail": "bold red",
}  # fmt: skip
_SHOWN_TENSORS = 40
_RESULTS = {"", "resume"}
_NARROW = 72
"""Below this width, `kdc ls` shows names, positions and results only."""


def show_listing(console: Console, listing: DirectoryListing) -> None:
    """`kdc ls`."""
    if listing.commits:
        summary = f"{formatting.count(len(listing.commits), 'backup')}, {formatting.size(listing.bytes)} in all"
        _heading(console, f"{listing.url}: {summary}")
        console.print(_commit_table(listing.commits, narrow=console.width < _NARROW))
        _notes(console, ((row.commit, row.problem) for row in listing.commits), "red")
        _notes(console, ((row.commit, reason) for row in listing.commits for reason in row.inexact_reasons), "yellow")
        _notes(console, (item for row in listing.commits for item in _conditions(row)), "cyan")
    elif listing.earlier_runs:
        _line(console, f"{listing.url}: a run began here, but there is no backup")
    if listing.checkpoints or listing.checkpoint_problems:
        _heading(console, f"{listing.url}: {formatting.count(len(listing.checkpoints), 'checkpoint')}")
    if listing.checkpoints:
        console.print(_checkpoint_table(listing.checkpoints, narrow=console.width < _NARROW))
        _notes(console, ((row.name, f"a copy of {row.published_name}") for row in _renamed(listing.checkpoints)), "")
    _notes(console, (("damaged", problem) for problem in listing.checkpoint_problems), "red")
    _notes(
        console,
        ((name, "no record: written or rewritten by another program") for name in listing.without_record),
        "",
    )


def show_details(console: Console, details: CommitDetails, *, every_tensor: bool) -> None:
    """`kdc show`."""
    row, run = details.commit, dict(details.run)
    _heading(console, f"{details.url}/{row.name}")
    facts = _grid()
    facts.add_row("position", f"{row.position} (step {row.step})" if row.step is not None else "-")
    facts.add_row("state", _styled(row.state if row.problem else "done" if row.done else "not done"))
    facts.add_row(
        "written", f"{formatting.moment(row.created)}, {formatting.age(row.age_seconds)} ago" if row.created else "-"
    )
    facts.add_row("resume", _resume(row))
    facts.add_row("generation", str(row.generation))
    facts.add_row("versions", ", ".join(f"{name} {version}" for name, version in details.versions.items()) or "-")
    for name, value in run.items():
        facts.add_row(name.replace("_", " "), "-" if value is None else str(value).removeprefix("_"))
    facts.add_row("random states", ", ".join(details.random_states) or "none")
    facts.add_row("callbacks", "\n".join(details.callbacks) or "none")
    facts.add_row("other state", ", ".join(details.topics) or "none")
    console.print(facts)
    _notes(console, [(row.commit, row.problem)], "red")
    _notes(console, ((row.commit, reason) for reason in row.inexact_reasons), "yellow")
    _notes(console, _conditions(row), "cyan")
    console.print()
    _heading(console, f"{formatting.count(len(details.blobs), 'blob')}, {formatting.size(row.bytes)}")
    console.print(_blob_table(details))
    _show_tensors(console, details.tensors, details.tensor_bytes, every_tensor=every_tensor)


def show_checkpoint(console: Console, details: CheckpointDetails, *, every_tensor: bool) -> None:
    """`kdc show` of a checkpoint."""
    row = details.checkpoint
    _heading(console, f"{details.url}/{row.name}")
    facts = _grid()
    facts.add_row("position", f"{formatting.count(row.epoch, 'epoch')} finished (step {row.step})")
    facts.add_row("state", _styled(details.state))
    written = (
        "-"
        if details.written is None
        else f"{formatting.moment(details.written)}, {formatting.age(details.age_seconds)} ago"
    )
    facts.add_row("written", written)
    facts.add_row("holds", "the whole model" if row.kind == "model" else "weights and optimizer")
    facts.add_row("monitored", _monitored(row))
    facts.add_row("template", details.template)
    if row.name != row.published_name:
        facts.add_row("published as", row.published_name)
    facts.add_row("generation", f"{row.generation}, file {details.sequence} of its run")
    facts.add_row("digest", details.digest)
    for name, value in details.saved_by.items():
        facts.add_row(name.replace("_", " "), value)
    console.print(facts)
    _notes(console, [(row.name, details.problem), *(("damaged", remark) for remark in details.remarks)], "red")
    if details.tensors:
        _show_tensors(console, details.tensors, details.tensor_bytes, every_tensor=every_tensor)


def _show_tensors(console: Console, tensors: Sequence[TensorRow], total: int, *, every_tensor: bool) -> None:
    console.print()
    _heading(console, f"{formatting.count(len(tensors), 'tensor')}, {formatting.size(total)}")
    shown = tensors if every_tensor else tensors[:_SHOWN_TENSORS]
    console.print(_tensor_table(shown))
    if len(shown) < len(tensors):
        _line(console, f"  and {len(tensors) - len(shown):,} more: add --all", "dim")


def show_verification(console: Console, found: Verification) -> None:
    """`kdc verify`."""
    _heading(console, found.url)
    table = _table("name", "", "position", ">size")
    for verdict in found.verdicts:
        table.add_row(verdict.name, _styled(verdict.state), verdict.where or "-", formatting.size(verdict.bytes))
    console.print(table)
    _notes(console, ((v.name, v.problem) for v in found.verdicts), "red")
    if found.set_aside:
        _line(
            console,
            f"{formatting.count(found.set_aside, 'damaged manifest')} in damaged/, quarantined by an earlier run",
        )
    counts = collections.Counter(verdict.state for verdict in found.verdicts)
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    _line(console, summary, "green" if found.all_intact else "bold red")


def show_plan(console: Console, plan: PrunePlan) -> None:
    """`kdc prune`: what is to go."""
    _heading(console, plan.url)
    facts = _grid()
    facts.add_row("keep", "\n".join(plan.kept))
    rows = [
        *plan.commits,
        _sum("blob", plan.blobs),
        _sum("unfinished file", plan.temporaries),
        formatting.count(len(plan.owners), "idle owner record") if plan.owners else "",
    ]
    facts.add_row("delete", "\n".join(row for row in rows if row) or "nothing")
    console.print(facts)
    if plan.spared_generation:
        note = f"generation {plan.spared_generation} seems to be writing: it is left alone, and others need --force"
        _line(console, note, "yellow")
    if not plan.is_empty:
        _line(console, f"{formatting.size(plan.bytes)} to be freed")


def _sum(noun: str, files: Mapping[str, int]) -> str:
    return f"{formatting.count(len(files), noun)}, {formatting.size(sum(files.values()))}" if files else ""


def show_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """`kdc doctor`."""
    _heading(console, diagnosis.url)
    table = _grid()
    tried = [check for check in diagnosis.checks if check.status != "skipped"]
    for check in tried:
        table.add_row(check.name, _styled(check.status), check.detail)
        if check.advice:
            table.add_row("", "", Text(check.advice, style="italic"))
    console.print(table)
    failed = sum(check.status == "fail" for check in diagnosis.checks)
    warned = sum(check.status == "warn" for check in diagnosis.checks)
    verdict = "backups work here" if diagnosis.is_usable else f"{formatting.count(failed, 'check')} failed"
    if len(tried) < len(diagnosis.checks):
        _line(console, f"  the other {len(diagnosis.checks) - len(tried)} checks were skipped", "dim")
    remarks = f", {formatting.count(warned, 'remark')}" if warned else ""
    _line(console, verdict + remarks, "green" if diagnosis.is_usable else "bold red")


def _commit_table(rows: Sequence[CommitRow], *, narrow: bool) -> Table:
    numbers = () if narrow else (">step", ">age", ">size", ">new", ">gen")
    table = _table("backup", "position", *numbers, "resume", "")
    for row in rows:
        values = (
            "-" if row.step is None else f"{row.step:,}",
            formatting.age(row.age_seconds),
            formatting.size(row.bytes),
            formatting.size(row.new_bytes),
            str(row.generation),
        )
        table.add_row(
            row.commit,
            row.position or "-",
            *values[: len(numbers)],
            _resume(row),
            _styled(row.state if row.state != "ok" else "done" if row.done else ""),
        )
    return table


def _checkpoint_table(rows: Sequence[CheckpointRow], *, narrow: bool) -> Table:
    details = () if narrow else ("kind", ">step", "monitored", ">size")
    table = _table("checkpoint", ">epoch", *details)
    for row in rows:
        values = (row.kind, f"{row.step:,}", _monitored(row), formatting.size(row.bytes))
        table.add_row(row.name, str(row.epoch), *values[: len(details)])
    return table


def _renamed(rows: Sequence[CheckpointRow]) -> Iterable[CheckpointRow]:
    return (row for row in rows if row.name != row.published_name)


def _monitored(row: CheckpointRow) -> str:
    value = "-" if row.value is None else f"{row.monitor} {row.value:.6g}"
    return value + (" (best)" if row.best_only else "")


def _blob_table(details: CommitDetails) -> Table:
    table = _table("blob", ">size", "")
    for blob in details.blobs:
        missing = blob.stored is None or blob.stored != blob.bytes
        note = _styled("damaged") if missing else Text("new" if blob.new else "as before", style="dim")
        table.add_row(blob.path, formatting.size(blob.bytes), note)
    return table


def _tensor_table(rows: Iterable[TensorRow]) -> Table:
    """One line for each variable: its replicas and workers are counted, not listed."""
    merged: dict[tuple[str, str, tuple[int, ...]], list[TensorRow]] = {}
    for row in rows:
        merged.setdefault((row.name, row.dtype, row.shape), []).append(row)
    table = _table("tensor", "type", "shape", ">size", "")
    for (name, dtype, shape), members in merged.items():
        text = " x ".join(str(length) for length in shape) or "scalar"
        table.add_row(name, dtype, text, formatting.size(members[0].bytes), _copies(members))
    return table


def _copies(members: Sequence[TensorRow]) -> str:
    replicas = f"{len(members)} replicas" if len(members) > 1 else ""
    workers = sorted({worker for member in members for worker in member.workers})
    apart = f"workers {', '.join(map(str, workers))}" if workers != [0] else ""
    return ", ".join(text for text in (replicas, apart) if text)


def _conditions(row: CommitRow) -> list[tuple[str, str]]:
    return [] if row.inexact_reasons else [(row.commit, f"exact if {condition}") for condition in row.conditions]


def _resume(row: CommitRow) -> Text:
    return _styled(row.verdict or "-")


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _heading(console: Console, text: str) -> None:
    _line(console, text, "bold")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _notes(console: Console, notes: Iterable[tuple[str, str | None]], style: str) -> None:
    for name, note in notes:
        if note:
            console.print(Text.assemble("  ", (name, style), f": {note}"), soft_wrap=True)


def _table(*headers: str) -> Table:
    """A table without lines; headers that begin with `>` are of columns of numbers.

    On a narrow terminal, results (the columns without a header, and `resume`) stay as they are and the others wrap.
    """
    table = Table(box=None, header_style="dim", padding=(0, 0, 0, 2))
    for header in headers:
        justify: Literal["left", "right"] = "right" if header.startswith(">") else "left"
        table.add_column(header.removeprefix(">"), justify=justify, no_wrap=header in _RESULTS, overflow="fold")
    return table


def _grid() -> Table:
    grid = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
    grid.add_column(style="dim", no_wrap=True)
    return grid
