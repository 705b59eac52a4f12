"""What a run was resumed from, what runs now, and whether its continuation is exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from keras_dist_callbacks._compat import environment
from keras_dist_callbacks.backups import findings, finite, verdict
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import CommitId, Position
from keras_dist_callbacks.base.errors import BackupMismatchError
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.cluster.cluster import Cluster


def agreed_restored(
    path: str,
    commit: str,
    position: Position,
    found: Sequence[Finding],
    cluster: Cluster,
    *,
    is_skipped: bool = False,
    rolled_back_from: str = "",
    not_finite: tuple[str, ...] = (),
) -> Restored:
    """Returns the same answer on every worker, from what each of them found."""
    seen = cluster.gather(findings.to_json(found), "exactness", kind=findings.SAVED_LIST)
    united = dict.fromkeys(itertools.chain.from_iterable(map(findings.from_json, seen)))
    place = path, position.epoch, position.step
    return Restored(*place, tuple(united), position, commit, is_skipped, rolled_back_from, not_finite)


def carried(restored: Restored, *, without: Collection[Finding] = ()) -> list[Finding]:
    """Returns on what the resumes after this one depend because of it.

    Args:
        restored: What a backup was resumed to.
        without: What each of them finds again.
    """
    if restored.is_skipped or restored.position is None:
        return []
    return verdict.carried(restored.position, restored.findings, without)


def require(restored: Restored, strict: bool | Literal["certain"]) -> None:
    """Refuses what is not exact, or not certain to be.

    Raises:
        BackupMismatchError: It is not as `strict` wants it.
    """
    found = verdict.Verdict(restored.findings)
    refused = found.lost or (found.unknown if strict == "certain" else ())
    if refused and strict:
        certain, why = (
            "would not be exact" if found.lost else "is exact only if",
            "; ".join(findings.sentences(refused)),
        )
        raise BackupMismatchError(
            f"strict={strict!r}: the resume from {restored.commit} {certain}: {why}. The backup is unchanged; "
            "strict=False resumes from it"
        )


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
    advice = []
    unordered = environment.unordered_sums(replicas, ())
    if unordered:
        advice.append(
            f"With {' and '.join(unordered)}, results may differ in their last bits from run to run; "
            "tf.config.experimental.enable_op_determinism() prevents this."
        )
    return advice
