"""Whether a run seems to be writing into a directory right now."""

from __future__ import annotations

from dataclasses import dataclass

from keras_dist_callbacks.cli import human
from keras_dist_callbacks.cli.inventory import Inventory

QUIET_SECONDS = 15 * 60.0
_SURELY_DEAD_SECONDS = 12 * 3600.0
_MISSED_BACKUPS = 3


@dataclass(frozen=True)
class Liveness:
    """What the times in the newest owner record and its commits tell.

    Attributes:
        running: Whether a run seems to be writing.
        generation: The newest one.
        why: What that is concluded from.
    """

    running: bool
    generation: int
    why: str


def has_ended(inventory: Inventory, now: float) -> bool:
    """Whether no backup can be in the middle of being written, however seldom the newest run saves."""
    silence = liveness(inventory, now, quiet=_SURELY_DEAD_SECONDS)
    return not silence.running


def liveness(inventory: Inventory, now: float, quiet: float = QUIET_SECONDS) -> Liveness:
    """Judges by the newest sign of life of the newest generation.

    A run that saves rarely is given the time of three of its own intervals.

    Args:
        inventory: The directory.
        now: The time.
        quiet: Seconds without a sign of life after which a run counts as dead.
    """
    newest = inventory.newest_generation
    manifests = [e.manifest for e in inventory.entries if e.id.generation == newest and e.manifest is not None]
    if manifests and manifests[-1].done:
        return Liveness(False, newest, "its last run has ended")
    created = sorted(float(m.info["created"]) for m in manifests if isinstance(m.info.get("created"), int | float))
    claimed = inventory.owners.get(newest)
    signs = [*created, *([claimed] if claimed is not None else [])]
    if not signs:
        return Liveness(False, newest, "nothing in it tells a time")
    marks = sorted(signs)
    interval = marks[-1] - marks[-2] if len(marks) > 1 else 0.0
    silence = now - max(signs)
    what = "the last backup was written" if created and max(signs) == created[-1] else "a run began"
    running = silence < max(quiet, _MISSED_BACKUPS * interval)
    return Liveness(running, newest, f"{what} {human.age(silence)} ago")
