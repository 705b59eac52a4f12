"""When a job is started again, and when that would go on for ever."""

from __future__ import annotations

import pytest

from keras_dist_callbacks.base.progress_file import NO_BACKUP, Phase, ProgressReport
from keras_dist_callbacks.launch.restart_policy import RestartPolicy, WorkerEnd

End = tuple[int, int, tuple[int, int]]
"""The fit and the step at which a worker was killed, and the newest backup."""


def decide(policy: RestartPolicy, fit: int, step: int, backup: tuple[int, int]) -> str:
    """Why there is no restart; empty if there is one."""
    report = ProgressReport(True, Phase.OUTSIDE, fit, 0, step, backup, 0, ())
    decision = policy.decide(WorkerEnd(0, -9, report), backup)
    return decision.reason if decision.delay is None else ""


LOOPS: list[tuple[list[End], str]] = [
    # Stopped on the way, and killed after each complete fit(), which deletes its backup.
    ([(1, 50, (1, 50)), (1, 100, NO_BACKUP)], "3 times it came to the same end without a backup, and began again"),
    ([(1, 20, (1, 10)), (1, 60, (1, 60)), (1, 100, NO_BACKUP)], "3 times it came to the same end without a backup"),
    ([(2, 50, (2, 50)), (2, 100, NO_BACKUP)], "3 times it came to the same end without a backup"),
    ([(1, 100, NO_BACKUP)], "2 restart(s) in a row left no backup"),
    ([(1, 50, (1, 50))], "2 restart(s) in a row left no newer backup than that of step 50"),
]


@pytest.mark.parametrize(("repeated", "reason"), LOOPS)
def test_what_repeats_itself_ends(repeated: list[End], reason: str) -> None:
    policy = RestartPolicy(2, on_error=False)
    reasons = [decide(policy, *end) for _ in range(5) for end in repeated]
    assert reason in next(filter(None, reasons), "it goes on for ever")


def test_what_gets_on_is_started_again_however_often() -> None:
    policy = RestartPolicy(2, on_error=False)
    for fold in range(1, 20):  # each of its fits deletes its backup, and the job is killed on the way and between them
        assert not decide(policy, fold, 100 * fold - 50, (fold, 100 * fold - 50))
        assert not decide(policy, fold, 100 * fold, NO_BACKUP)


def test_after_a_rollback_backups_up_to_the_old_step_are_progress() -> None:
    policy = RestartPolicy(2, on_error=False)
    steps = [100, 200, 300, 40, 80, 120, 160, 200, 240, 280]  # rolled back after the third
    assert not any(decide(policy, 1, step + 5, (1, step)) for step in steps)
    assert "left no newer backup" in [decide(policy, 1, 285, (1, 280)) for _ in range(3)][-1]
