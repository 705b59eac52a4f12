"""What the user is told of a resume, and of what would make one exact."""

from __future__ import annotations

from collections.abc import Callable

from keras_dist_callbacks._compat import environment
from keras_dist_callbacks.backups import finite, verdict
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import CommitId
from keras_dist_callbacks.base.terminal import warn


def announce(restored: Restored, say: Callable[[str], None], *, warns: bool) -> None:
    """Prints where training continues and whether that is exact; what is not exact is a warning too."""
    what = "Skipped this fit(): a later one saved" if restored.is_skipped else "Resumed from"
    commit = CommitId.parse(restored.commit.removeprefix("commits/"))
    backup = restored.commit if commit is None else commit.label  # as `kdc ls` names it
    if restored.rolled_back_from:
        backup = f"{backup} (rolled back from {restored.rolled_back_from})"
    say(f"{what} {restored.path} {backup} at {restored.position}: {verdict.Verdict(restored.findings)}")
    if restored.notes and warns:
        warn("the resume is not exact:", items=restored.notes)
    if restored.not_finite and warns:
        warn(
            f"training continues with values that are not finite ({finite.in_words(restored.not_finite)}); "
            f"`kdc rollback {restored.path}` goes back to a backup that is"
        )


def reproducibility_advice(replicas: int) -> list[str]:
    """Returns what would make two uninterrupted runs of this program equal, a sentence each; empty if they are."""
    unordered = environment.unordered_sums(replicas, ())
    if not unordered:
        return []
    return [
        f"With {' and '.join(unordered)}, results may differ in their last bits from run to run; "
        "tf.config.experimental.enable_op_determinism() prevents this."
    ]
