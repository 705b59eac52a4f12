"""A rehearsal as people read it."""

from __future__ import annotations

from collections.abc import Iterator

from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.rehearsal.causes import Restart
from keras_dist_callbacks.cli.rehearsal.comparison import Difference
from keras_dist_callbacks.cli.rehearsal.costs import Costs
from keras_dist_callbacks.cli.rehearsal.rehearse import EQUAL, Rehearsal

_SHOWN = 6
_REFUSED = "The short runs may not change these files; give the script paths in its working directory, or --in-place:"
_CHANGED = "The short runs have changed these files in their real place:"


def show_rehearsal(page: Page, found: Rehearsal) -> None:
    """Prints the result: what it is, then what it is made of."""
    page.line(found.summary, "green" if found.exit_code == EQUAL else "bold red")
    for title, lines in (("What this means:", found.advice), ("Problems:", found.problems)):
        if lines:
            page.line(title)
            page.facts(("-", line) for line in lines)
    page.facts(_facts(found))
    if found.difference is not None:
        page.line(f"First difference, between {found.between}:")
        page.facts(_differences(found.difference))
    if found.unstable:
        page.line("These values differ between any two runs, and were not compared:")
        page.facts(("-", name) for name in found.unstable)
    if found.costs is not None:
        page.line("Costs, measured in these short runs:")
        page.facts(_costs(found.costs))
    for title, paths in ((_REFUSED, found.refused), (_CHANGED, found.files)):
        if paths:
            page.line(title)
            page.facts(("-", path) for path in paths)
    if found.output:
        page.line("The end of its output:")
        page.facts(("|", line) for line in found.output)
    if found.kept:
        page.line(f"What the runs have written is kept in {' and '.join(found.kept)}")


def _facts(found: Rehearsal) -> Iterator[tuple[str, str]]:
    if found.runs:
        yield "runs", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.runs.items())
    for fit in found.fits:
        rest = "; its input continues from epoch to epoch" if fit.continues else ""
        batches = f"{fit.batches} batch{'es' if fit.batches > 1 else ''}"
        yield "fit", f"{fit.epochs} of {fit.asked} epochs, {batches} each at most, a backup every {fit.save_freq}{rest}"
    for resume in found.resumes:
        source = f", resumed at {resume.resumed}" if resume.resumed else ""
        details = "" if found.advice else _details(resume)
        yield "kill", f"{resume.killed}{source}: {resume.verdict}{details}"


def _details(resume: Restart) -> str:
    """Why a resume is not certain to be exact, where nothing else says it."""
    if resume.notes:
        return f": {'; '.join(resume.notes)}"
    return f" {'; and if '.join(resume.conditions)}" if resume.conditions else ""


def _differences(found: Difference) -> Iterator[tuple[str, str]]:
    yield "at", found.position
    for variable in found.variables[:_SHOWN]:
        detail = "" if variable.differ is None else f": {variable.differ} of {variable.size} values differ"
        gap = "" if variable.largest is None else f", by {variable.largest:.3g} at most"
        yield variable.kind, f"{variable.name}{detail}{gap}"
    yield from _more(len(found.variables))
    for state in found.states[:_SHOWN]:
        path = f"{state.path}: " if state.path else ""
        yield state.words, f"{path}{state.one} and {state.other}"
    yield from _more(len(found.states))


def _more(count: int) -> Iterator[tuple[str, str]]:
    if count > _SHOWN:
        yield "", f"and {count - _SHOWN} more"


def _costs(costs: Costs) -> Iterator[tuple[str, str]]:
    yield "backup", f"{formatting.size(costs.state_bytes)}, written {costs.written_seconds:.2f} s after its step"
    yield "delay", f"{costs.delay_seconds * 1000:.1f} ms per backup, with steps of {costs.step_seconds * 1000:.1f} ms"
    if costs.restart_seconds:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in costs.restart_seconds.items())
        yield "restart", f"{sum(costs.restart_seconds.values()):.1f} s: {parts}"
    yield "save_freq", f"{costs.save_freq} or more keeps backups below 2 % of the training time"
    yield (
        "after a kill",
        f"{costs.lost_steps:g} steps are trained again on average with it; {costs.lost_seconds:.1f} s in all, restart "
        "included",
    )
