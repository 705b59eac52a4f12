"""What is done where the loss is not finite: stop, or go back to a finite backup, and skip what fails again there.

The run that diverges goes back by itself before it ends: the owner record of that rollback holds a `Divergence`, and
so does each manifest of the runs after it. An exact replay fails again if its cause is in the training itself: where
the same step has the same losses again, the last batches before it are skipped in the next run.
"""

from __future__ import annotations

import collections
import math
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

import msgspec

from keras_dist_callbacks.backups import rollback
from keras_dist_callbacks.backups.journal import JOURNAL, Journal
from keras_dist_callbacks.backups.record_io import Count
from keras_dist_callbacks.backups.snapshot import JSON, Manifest, Position
from keras_dist_callbacks.backups.store import BackupStore, listed
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.options import Rollback
from keras_dist_callbacks.run.engine.engine import DIVERGENCE

_COMPARED = 8  # losses up to the one that is not finite


class Window(msgspec.Struct, frozen=True, array_like=True):
    """Batches of an epoch that are read past, from the first to the last one."""

    epoch: Count
    first: Count
    last: Count

    def __str__(self) -> str:
        several = f"batches {self.first + 1} to {self.last + 1}"
        return f"{f'batch {self.last + 1}' if self.first == self.last else several} of epoch {self.epoch + 1}"


@dataclass(frozen=True)
class Divergence:
    """Where the loss was not finite, and what is skipped because of it.

    Attributes:
        step: Batches trained, the one included whose loss was not finite.
        losses: The losses up to there as text that says all bits, the last one not finite.
        count: Rollbacks in a row without a finite backup beyond that step.
        windows: What is skipped.
        is_repeated: Whether the run before had the same losses at this step.
    """

    step: Count
    losses: tuple[str, ...]
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    windows: tuple[Window, ...] = ()
    is_repeated: bool = False

    def to_json(self) -> dict[str, JSON]:
        """Returns it as a manifest holds it."""
        return {**asdict(self), "windows": [list(msgspec.structs.astuple(window)) for window in self.windows]}


def from_json(found: JSON) -> Divergence | None:
    """Returns the divergence that a manifest or owner record holds, if it does."""
    return None if found is None else validation.convert(found, Divergence)


class LossWatch:
    """Looks at the loss after each step, and says what is skipped.

    Args:
        option: What was asked for; None: to stop.
        before: The divergence that this run has gone back from, or that its training has in its past.
        width: Batches of an execution.

    Attributes:
        windows: The batches that are skipped.
    """

    def __init__(self, option: Rollback | None, before: Divergence | None, width: int) -> None:
        self.option, self.before = option, before
        self.windows = () if before is None else before.windows
        self._losses: collections.deque[str] = collections.deque(maxlen=_COMPARED)
        self._every = 1 if option is None else option.check_every
        self._width = width
        self.accumulation = 1, 0  # batches of an update of the weights, and those that were seen
        self.epoch_before = 0  # batches in the epoch that has ended last; 0: not known
        self.why = ""
        self._awaited = None if before is None or before.is_repeated else before.step  # where it may be the same again
        self._is_past = False  # it was not

    def is_due(self, step: int) -> bool:
        """Whether the loss of this step is looked at."""
        return step // self._every > (step - self._width) // self._every

    def look(self, loss: float | None, step: int) -> str:
        """A step's loss; returns what is to be said, once the step is past at which the run before has diverged."""
        if loss is None:
            return ""
        self._losses.append(float(loss).hex())
        self.why = "" if math.isfinite(loss) else f"the loss ({loss})"
        if self._awaited is None or step < self._awaited:
            return ""
        if step == self._awaited:
            self._is_past = not self.why
            return ""
        awaited, self._awaited = self._awaited, None
        if not self._is_past:
            return ""
        return (
            f"the loss of step {awaited} is finite now, which was not in the run before: a fault, or an operation that "
            "is not deterministic. Nothing was skipped"
        )

    def skips(self, epoch: int, first: int, last: int) -> bool:
        """Whether a step, of these batches of an epoch, is skipped: with one of its batches all of them are."""
        return any(one.epoch == epoch and one.first <= last and first <= one.last for one in self.windows)

    def after(self, position: Position, *, is_beyond: bool) -> Divergence:
        """Returns what the next run is to know.

        Args:
            position: After the step whose loss was not finite.
            is_beyond: Whether a finite backup was saved beyond the divergence before.
        """
        before, losses, windows = self.before, tuple(self._losses), self.windows
        count = 1 if before is None or is_beyond else before.count + 1
        is_repeated = False
        if before is not None and before.step == position.step:
            known = min(len(losses), len(before.losses))
            is_repeated = known > 0 and losses[-known:] == before.losses[-known:]
        if is_repeated and self.option is not None and self.option.skip_batches:
            first = position.batch - self.count_before(position)
            if first < 0:  # in the epoch before
                windows = (*windows, Window(position.epoch - 1, self.epoch_before + first, self.epoch_before - 1))
            windows = (*windows, Window(position.epoch, max(0, first), position.batch - 1))
        return Divergence(position.step, losses, count, windows, is_repeated)

    def count_before(self, position: Position) -> int:
        """How many batches before a place may be the cause, or are in one execution or update of weights with it."""
        batches = 1 if self.option is None else self.option.skip_batches + self.option.check_every - 1
        most, (every, seen) = position.batch + self.epoch_before, self.accumulation

        def is_within(count: int) -> bool:
            batch = position.batch - count
            return (batch if batch >= 0 else batch + self.epoch_before) % self._width > 0 or (seen - count) % every > 0

        return next((count for count in range(min(most, batches), most) if not is_within(count)), most)


class WentBack(NamedTuple):
    """What has happened.

    Attributes:
        text: In words.
        goes_on: Whether a restart continues.
        position: From where; None: it begins again.
    """

    text: str
    goes_on: bool
    position: Position | None = None


def go_back(store: BackupStore, watch: LossWatch, position: Position, journal: Journal) -> WentBack:
    """Makes the newest finite backup before a bad step the newest one.

    Args:
        store: The backup directory.
        watch: Of the run that ends here.
        position: After the step whose loss was not finite.
        journal: Of the training up to there.
    """
    option = watch.option or Rollback()
    usable = [one for one in map(store.manifest, reversed(store.commits())) if listed(one).is_finite]
    is_beyond = watch.before is not None and bool(usable) and usable[0].position.step > watch.before.step
    found = watch.after(position, is_beyond=is_beyond)
    if found.count > option.max_rollbacks:
        text = f"after {option.max_rollbacks} rollbacks in a row (max_rollbacks) nothing is tried any more"
        return WentBack(text, goes_on=False)
    limit = position.step - watch.count_before(position)
    target = next((one for one in usable if one.position.step <= limit and _is_usable(store, one)), None)
    newest = store.commits()[-1:]
    store.claim(
        {DIVERGENCE: found.to_json(), JOURNAL: msgspec.to_builtins(journal)},
        "rollback",
        rolled_back_to="" if target is None else target.id.file_name,
        rolled_back_from=newest[0].label if newest else "",
    )
    rollback.tidy(store)
    place = "the start" if target is None else f"{target.id.label}, at {target.position}"
    again = "; the same losses as before" if found.is_repeated else ""
    new = found.windows[len(watch.windows) :]
    skipped = f", so that {' and '.join(map(str, new))} will be skipped" if new else ""
    text = f"training goes back to {place} (rollback {found.count} of {option.max_rollbacks}{again}{skipped})"
    return WentBack(text, goes_on=True, position=None if target is None else target.position)


def _is_usable(store: BackupStore, manifest: Manifest) -> bool:
    """Whether all of a backup is there, and all of it is finite."""
    try:
        return not store.not_finite(manifest)
    except DamagedBackupError:
        return False
