"""What the processes of one training have done with their time: a record of each, carried from manifest to manifest.

A process that is killed is recorded as of its last backup. What came after that belongs to the gap before the next
process, unless that was told when the one before it ended. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.backups.record_io import Count, Format, Time
from keras_dist_callbacks.backups.snapshot import JSON
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.stopwatch import Category
from keras_dist_callbacks.base.terminal import duration

JOURNAL = "journal"
"""The key of a journal in what manifests and owner records say of a run."""

KEPT = 100
_LEAST_SHARE = 0.05  # per cent
_RECOVERY: Category = "infrastructure_recovery_from_disruption"
_WASTED: Category = "wasted_progress_from_disruption"
_TRAINING: Category = "training"
Seconds = dict[str, Annotated[float, msgspec.Meta(ge=0, le=2**40)]]


class AttemptRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of a training.

    Attributes:
        generation: Its number in the backup directory.
        began: When it began, in seconds since 1970 by its own clock.
        first: Steps that were trained when it began.
        step: And when it was last heard of.
        seconds: What it had done with its time then, by category.
        end: How it ended, as far as it could say so: `"finished"`, `"preempted"`, `"interrupted"` (by Ctrl-C),
            `"diverged"` or `"failed"`.
        after: Seconds that it ran on unheard, as the launcher has seen it; None where nobody has.
        after_step: Likewise, the last step that it trained.
    """

    generation: Count
    began: Time
    first: Count = 0
    step: Count = 0
    seconds: Seconds = {}
    end: str = ""
    after: Annotated[float, msgspec.Meta(ge=0, le=2**40)] | None = None
    after_step: Count | None = None

    @property
    def heard(self) -> float:
        """When it was last heard of."""
        return self.began + sum(self.seconds.values())

    @property
    def in_vain(self) -> float:
        """Seconds of `after` that a later process does again: none if it has said how it ends, and lost no step."""
        lost = not self.end or (self.after_step or 0) > self.step
        return self.after or 0.0 if lost else 0.0


class Journal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The processes of one training.

    Attributes:
        attempts: The last ones, the newest last.
        older: How many there were before these.
        began: When the first of all began; None if it is among the last ones.
        seconds: Of those before, and of the gaps after them.
        repeated: Steps that those before have trained in vain, as far as that is known.
    """

    attempts: tuple[AttemptRecord, ...] = ()
    older: Count = 0
    began: Time | None = None
    seconds: Seconds = {}
    repeated: Count = 0

    def with_attempt(self, attempt: AttemptRecord) -> Journal:
        """Returns it with a newer record of the newest attempt, or with a new one."""
        others = tuple(one for one in self.attempts if one.generation != attempt.generation)
        found = msgspec.structs.replace(self, attempts=(*others, attempt))
        while len(found.attempts) > KEPT:
            first, second, *_ = found.attempts
            past = seconds_of([first, second], whole_last=False)
            found = Journal(
                found.attempts[1:],
                found.older + 1,
                found.began if found.began is not None else first.began,
                _sums(found.seconds, past),
                found.repeated + repeated_steps([first, second]),
            )
        return found

    @property
    def newest(self) -> AttemptRecord | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def starts(self) -> int:
        """How many processes there were."""
        return self.older + len(self.attempts)

    def totals(self) -> dict[str, float]:
        """Returns seconds by category, from the begin of the first process to what is known of the last."""
        return _sums(self.seconds, seconds_of(self.attempts))

    @property
    def steps_repeated(self) -> int:
        """Steps that were trained in vain, as far as that is known."""
        return self.repeated + repeated_steps(self.attempts)


def _sums(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {*one, *other}}


RECORD = Format("keras_dist_callbacks journal", 1, Journal)


def continued(found: Iterable[JSON], claims: Iterable[tuple[int, OwnerRecord]]) -> Journal:
    """Returns the journal that a new process continues.

    Args:
        found: Journals as manifests hold them; the one that knows most counts.
        claims: The owner records in the directory: what they claimed it for, and died before a backup, is added. Those
            of rollbacks hold what was known when the training went back.
    """
    claims = sorted(claims)
    held = (*found, *(owner.info.get(JOURNAL) for _, owner in claims))
    journal = max(map(_parsed, held), key=_knowledge, default=Journal())
    for generation, owner in claims:
        newest = journal.newest
        if not owner.is_of_rollback and (newest is None or generation > newest.generation):
            step = 0 if newest is None else newest.step
            journal = journal.with_attempt(AttemptRecord(generation, owner.claimed, step, step))
    return journal


def _parsed(found: JSON) -> Journal:
    """A journal; an empty one where another program has written something else: training does not depend on it."""
    try:
        return Journal() if found is None else validation.convert(found, Journal)
    except ValueError:
        return Journal()


def _knowledge(journal: Journal) -> tuple[float, ...]:
    newest = journal.newest
    return () if newest is None else (newest.generation, newest.heard)


def seconds_of(attempts: Sequence[AttemptRecord], *, whole_last: bool = True) -> dict[str, float]:
    """Returns seconds by category of several attempts in a row, and of the gaps between them.

    Args:
        attempts: The newest last.
        whole_last: Count the last one too, and not only the gap before it.
    """
    found: dict[str, float] = {}

    def add(category: str, seconds: float) -> None:
        found[category] = found.get(category, 0.0) + seconds

    for place, one in enumerate(attempts):
        if place:
            before = attempts[place - 1]
            gap = max(0.0, one.began - before.heard)  # clocks of two machines differ
            ran = min(gap, before.in_vain)
            add(_WASTED, ran)
            add(_RECOVERY, gap - ran)
        if place == len(attempts) - 1 and not whole_last:
            break
        steps = one.step - one.first
        kept = _kept(one, attempts[place + 1 :]) - one.first
        useful = max(0, kept) / steps if steps > 0 else 1.0  # which part of its steps was not trained again later
        for category, seconds in one.seconds.items():
            if category == _TRAINING:
                add(_WASTED, seconds * (1.0 - useful))
                seconds *= useful
            add(category, seconds)
    return {category: seconds for category, seconds in found.items() if seconds}


def repeated_steps(attempts: Sequence[AttemptRecord]) -> int:
    """Returns how many steps each attempt but the last has trained that a later one trains again."""
    found = 0
    for place, one in enumerate(attempts[:-1]):
        last = one.step if one.after_step is None else one.after_step
        found += max(0, last - max(one.first, _kept(one, attempts[place + 1 :])))
    return found


def _kept(one: AttemptRecord, later: Iterable[AttemptRecord]) -> int:
    """Up to which step what an attempt has trained was not trained again."""
    return min([one.step, *(other.first for other in later)])


def summary(journal: Journal) -> str:
    """Returns how often a training was started, how long it has taken, and where the time went."""
    totals = journal.totals()
    whole = sum(totals.values())
    largest_first = sorted(totals.items(), key=lambda item: (item[0] != _TRAINING, -item[1]))
    shares = [(WORDS.get(category, category), 100 * seconds / (whole or 1)) for category, seconds in largest_first]
    told = ", ".join(f"{share:.1f} % {name}" for name, share in shares if share >= _LEAST_SHARE)
    starts = "1 start" if journal.starts == 1 else f"{journal.starts} starts"
    if not whole:
        return starts
    return f"{starts} in {duration(whole)}: {told}"


WORDS: Mapping[str, str] = {
    "training": "training",
    "wasted_progress_from_disruption": "repeated steps",
    "infrastructure_recovery_from_disruption": "not running",
    "program_startup": "starting",
    "training_prep": "preparing",
    "unproductive_checkpoint_restore_time": "restoring",
    "data_loading_sync": "reading past batches",
    "unproductive_checkpoint_save_time": "saving",
    "custom_badput_events/eval_step": "validation",
    "other": "other",
}
"""The categories in plain words."""
