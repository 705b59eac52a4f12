"""What a run was resumed from, what runs now, and whether its continuation is exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks._compat import environment, rng
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.snapshot import JSON, CommitId, Position, WorkerState
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.errors import BackupMismatchError
from keras_dist_callbacks.terminal import warn


@dataclass(frozen=True)
class Restored:
    """What a fit was resumed from.

    Attributes:
        commit: The commit's name in the backup directory.
        position: Where it was taken.
        notes: Why the continuation is not exact, one sentence each; empty if it is.
        conditions: What could not be inspected: it is exact if these hold; empty if everything was seen.
        is_skipped: Only weights were restored, because a later `fit()` of the script saved the backup.
    """

    commit: str
    position: Position
    notes: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    is_skipped: bool = False

    @property
    def verdict(self) -> str:
        """`"exact"`, `"exact if"` or `"not exact"`."""
        return verdict.verdict_of(self.notes, self.conditions)

    def carried(self, *, without: Sequence[str] = ()) -> list[str]:
        """Returns on what the resumes after this one depend because of it.

        Args:
            without: Conditions that each of them finds again.
        """
        conditions = [condition for condition in self.conditions if condition not in without]
        return [] if self.is_skipped else verdict.carried(self.position, self.notes, conditions)

    @classmethod
    def agreed_on_all(
        cls,
        commit: str,
        position: Position,
        found: Sequence[str],
        conditions: Sequence[str],
        cluster: Cluster,
        *,
        is_skipped: bool = False,
    ) -> Restored:
        """Returns the same answer on every worker, from what each of them found."""
        seen = cluster.gather([list(found), list(conditions)], "exactness", kind=tuple[list[str], list[str]])
        notes, unseen = (tuple(dict.fromkeys(itertools.chain.from_iterable(part))) for part in zip(*seen, strict=True))
        return cls(commit, position, notes, unseen, is_skipped)

    def require(self, strict: bool | str) -> None:
        """Refuses what is not exact, or not certain to be.

        Raises:
            BackupMismatchError: It is not as `strict` wants it.
        """
        refused = self.notes or (self.conditions if strict == "certain" else ())
        if refused and strict:
            certain = "would not be exact" if self.notes else "is exact only if"
            raise BackupMismatchError(
                f"strict={strict!r}: the resume from {self.commit} {certain}: {'; '.join(refused)}. The backup is "
                "unchanged; strict=False resumes from it"
            )

    def announce(self, directory: str, say: Callable[[str], None], *, warns: bool) -> None:
        """Prints where training continues and whether that is exact; what is not exact is a warning too."""
        what = "Skipped this fit(): a later one saved" if self.is_skipped else "Resumed from"
        commit = CommitId.parse(self.commit.removeprefix("commits/"))
        backup = self.commit if commit is None else commit.label  # as `kdc ls` names it
        say(f"{what} {directory} {backup} at {self.position}: {verdict.answer(self.notes, self.conditions)}")
        if self.notes and warns:
            warn("the resume is not exact: " + "; ".join(self.notes))


def describe_run(strategy: Any, workers: int) -> dict[str, JSON]:
    """Returns what must not change for a continuation to be exact, and the versions in use."""
    import keras
    import tensorflow as tf

    return {
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "strategy": type(strategy).__name__,
        "replicas": int(strategy.num_replicas_in_sync),
        "workers": workers,
        "seed": rng.global_seed(),
    }


def describe_fit(fit: RunningFit, workers: int) -> dict[str, JSON]:
    """Returns what `describe_run` returns, and what else a running fit() must not change."""
    return {
        **describe_run(fit.model.distribute_strategy, workers),
        "model": str(fit.model.name),
        "steps_per_execution": fit.steps_per_execution,
        "steps_per_epoch": fit.steps_per_epoch or fit.num_batches,
    }


def assess(
    saved: WorkerState, now: Mapping[str, JSON], reasons: Sequence[str], *, generator: bool
) -> tuple[list[str], list[str]]:
    """Returns why training will not continue exactly, and on what else that depends.

    Args:
        saved: The backup.
        now: This run, described as the backup's was.
        reasons: Those of the input.
        generator: Whether the input is a plain Python generator.
    """
    ended = saved.position.kind == "end"
    found = verdict.inexact_reasons(saved, now, generator=generator, continues_after_end=ended)
    return [*reasons, *found], verdict.conditions(saved)


def reproducibility_advice(replicas: int) -> list[str]:
    """Returns what would make two uninterrupted runs of this program equal, a sentence each; empty if they are."""
    advice = []
    if rng.global_seed() is None:
        advice.append(
            "No seed was set, so that two runs differ, and a resumed one from an uninterrupted one: call "
            "keras.utils.set_random_seed first."
        )
    unordered = environment.unordered_sums(replicas, ())
    if unordered:
        advice.append(
            f"With {' and '.join(unordered)}, results may differ in their last bits from run to run; "
            "tf.config.experimental.enable_op_determinism() prevents this."
        )
    return advice
