"""Whether a continuation is exact: what follows from what was found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Position, WorkerState

Word = Literal["exact", "exact if", "not exact"]
LASTING = ("unsaved", "objects", "input_objects", "compile", "environment", "earlier")
"""Parts whose findings stay true when the fit is over; what the next one reads and runs itself is found again.

Whoever adds a part decides whether it belongs here.
"""

_SAID_FIRST = ("callbacks", "input", "step")
_SHOWN = 3


@dataclass(frozen=True)
class Verdict:
    """What was found, and what follows from it.

    Attributes:
        findings: Each once, on all workers.
    """

    findings: tuple[Finding, ...] = ()

    @property
    def lost(self) -> tuple[Finding, ...]:
        """Why it is not exact."""
        return tuple(one for one in self.findings if one.effect == "lost")

    @property
    def unknown(self) -> tuple[Finding, ...]:
        """On what it depends."""
        return tuple(one for one in self.findings if one.effect == "unknown")

    @property
    def known(self) -> tuple[Finding, ...]:
        """What is otherwise by agreement, such as batches that are skipped in this run and in each later one."""
        return tuple(one for one in self.findings if one.effect == "known")

    @property
    def word(self) -> Word:
        """`"exact"`, `"exact if"` or `"not exact"`."""
        return "not exact" if self.lost else "exact if" if self.unknown else "exact"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not exact, one sentence each with how to fix it."""
        return tuple(findings.sentences(self.lost))

    @property
    def conditions(self) -> tuple[str, ...]:
        """On what it depends, each to be read after "exact if"."""
        return tuple(findings.sentences(self.unknown))

    def __str__(self) -> str:
        text: str = self.word
        if self.word == "exact if":  # why it is not exact is a warning of its own
            conditions = self.conditions
            more = len(conditions) - _SHOWN
            text += f" {'; and if '.join(conditions[:_SHOWN])}"
            if more > 0:
                text += f"; and {more} more (callback.restored.conditions)"
        if self.known:
            text += f", with {'; '.join(findings.sentences(self.known))}"
        return text


def found_in(saved: WorkerState, parts: Collection[str] = ()) -> list[Finding]:
    """Returns what a backup says was found when it was taken.

    Args:
        saved: The backup.
        parts: Of which parts of the state. Defaults to all.
    """
    asked = parts or dict.fromkeys([*_SAID_FIRST, *(topic.partition("/")[0] for topic in saved.state)])
    return [one for part in asked for one in saved.of(part).mine.findings]


def carried(position: Position, found: Collection[Finding], without: Collection[Finding] = ()) -> list[Finding]:
    """Returns on what the resumes after this one depend because of it: on its conditions, and on what was not exact.

    Args:
        position: Where it resumed.
        found: What was found, that of the resumes before included.
        without: What each of them finds again.
    """
    known = [one for one in found if one not in without]
    earlier = {replace(one, carried_from="") for one in known if one.carried_from}
    return [
        replace(one, carried_from=str(position)) if one.effect == "lost" else one
        for one in known
        if one.carried_from or one not in earlier  # what was lost at an earlier resume too is carried from that one
    ]
