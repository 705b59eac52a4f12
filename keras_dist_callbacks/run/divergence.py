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

from keras_dist_callbacks.backups import finite, rollback
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.record_io import Count
from keras_dist_callbacks.backups.snapshot import JSON, Manifest, Position, SharedArray
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

    @property
    def findings(self) -> list[Finding]:
        """What a resume says of the windows, each once."""
        return [
            Finding("skipped-batches", detail=(str(one.first + 1), str(one.last + 1), str(one.epoch + 1)))
            for one in self.windows
        ]


def from_json(found: JSON) -> Divergence | None:
    """Returns the divergence that a manifest or owner record holds, if it does."""
    return None if found is None else validation.convert(found, Divergence)


class LossWatch:
    """Looks at the loss after each step, and says what is skipped.

    Args:
        option: What was asked for; None: to stop.
        before: The divergence that this run has gone back from, or that its training has in its past.
    """

    def __init__(self, option: Rollback | None, before: Divergence | None) -> None:
        self.option, self.before = option, before
        self._losses: collections.deque[str] = collections.deque(maxlen=_COMPARED)
        self._every = 1 if option is None else option.check_every
        self._width = 1  # batches of an execution
        self.why = ""

    def is_due(self, step: int) -> bool:
        """Whether the loss of this step is looked at."""
        return step // self._every > (step - self._width) // self._every

    def look(self, loss: float | None) -> None:
        """A step's loss."""
        if loss is not None:
            self._losses.append(float(loss).hex())
            self.why = "" if math.isfinite(loss) else f"the loss ({loss})"

    def skips(self, epoch: int, first: int, last: int) -> bool:
        """Whether a step, of these batches of an epoch, is skipped: with one of its batches all of them are."""
        self._width = last - first + 1
        windows = () if self.before is None else self.before.windows
        return any(one.epoch == epoch and one.first <= last and first <= one.last for one in windows)

    def after(self, position: Position, *, is_beyond: bool) -> Divergence:
        """Returns what the next run is to know.

        Args:
            position: After the step whose loss was not finite.
            is_beyond: Whether a finite backup was saved beyond the divergence before.
        """
        before, losses = self.before, tuple(self._losses)
        windows = () if before is None else before.windows
        count = 1 if before is None or is_beyond else before.count + 1
        same = min(len(losses), 0 if before is None else len(before.losses))
        is_same_step = before is not None and before.step == position.step
        is_repeated = is_same_step and bool(same) and before is not None and losses[-same:] == before.losses[-same:]
        if is_repeated and self.option is not None and self.option.skip_batches:
            windows = (*windows, Window(position.epoch, self.first_before(position), position.batch - 1))
        return Divergence(position.step, losses, count, windows, is_repeated)

    def first_before(self, position: Position) -> int:
        """The first batch of the epoch that may be the cause, or is in one execution with it."""
        batches = 1 if self.option is None else self.option.skip_batches + self.option.check_every - 1
        return max(0, position.batch - batches) // self._width * self._width


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


def go_back(store: BackupStore, watch: LossWatch, position: Position) -> WentBack:
    """Makes the newest finite backup before a bad step the newest one.

    Args:
        store: The backup directory.
        watch: Of the run that ends here.
        position: After the step whose loss was not finite.
    """
    option = watch.option or Rollback()
    usable = [one for one in map(store.manifest, reversed(store.commits())) if listed(one).is_finite]
    is_beyond = watch.before is not None and bool(usable) and usable[0].position.step > watch.before.step
    found = watch.after(position, is_beyond=is_beyond)
    if found.count > option.max_rollbacks:
        text = f"after {option.max_rollbacks} rollbacks in a row (max_rollbacks) nothing is tried any more"
        return WentBack(text, goes_on=False)
    limit = position.step - (position.batch - watch.first_before(position))
    target = next((one for one in usable if one.position.step <= limit and _is_usable(store, one)), None)
    newest = store.commits()[-1:]
    store.claim(
        {DIVERGENCE: found.to_json()},
        "rollback",
        rolled_back_to="" if target is None else target.id.name.rpartition("/")[2],
        rolled_back_from=newest[0].label if newest else "",
    )
    rollback.tidy(store)
    place = "the start" if target is None else f"{target.id.label}, at {target.position}"
    again = "; the same losses as before" if found.is_repeated else ""
    skipped = ""
    if found.is_repeated and found.windows:
        last = found.windows[-1]
        skipped = f", so that batches {last.first + 1} to {last.last + 1} of epoch {last.epoch + 1} are skipped"
    text = f"training goes back to {place} (rollback {found.count} of {option.max_rollbacks}{again}{skipped})"
    return WentBack(text, goes_on=True, position=None if target is None else target.position)


def _is_usable(store: BackupStore, manifest: Manifest) -> bool:
    """Whether all of a backup is there, and all of it is finite."""
    try:
        states = [store.load(manifest, worker) for worker in range(len(manifest.workers))]
    except DamagedBackupError:
        return False
    arrays = ({name: SharedArray(array) for name, array in state.tensors.items()} for state in states)
    return not any(
        finite.not_finite(finite.trained(held, state.state), whole=True)
        for held, state in zip(arrays, states, strict=True)
    )
