"""What the processes of a training have done with their time: sums, gaps, what was in vain, and what is summed up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keras_dist_callbacks.backups import journal
from keras_dist_callbacks.backups.journal import KEPT, AttemptRecord, Journal
from keras_dist_callbacks.backups.owner_records import OwnerRecord

TRAINING, WASTED = "training", "wasted_progress_from_disruption"
RECOVERY = "infrastructure_recovery_from_disruption"


def attempt(generation: int, began: float, steps: tuple[int, int], training: float, **more: Any) -> AttemptRecord:
    """One that takes 5 s to start, and is last heard of at the end of its training."""
    return AttemptRecord(generation, began, *steps, {"program_startup": 5.0, TRAINING: training}, **more)


def of(*attempts: AttemptRecord) -> Journal:
    return Journal(attempts)


def test_the_time_between_two_processes_is_a_gap_and_all_of_it_sums_up() -> None:
    found = of(attempt(1, 1000.0, (0, 100), 50.0), attempt(2, 1075.0, (100, 200), 50.0))
    assert found.totals() == {"program_startup": 10.0, TRAINING: 100.0, RECOVERY: 20.0}
    assert sum(found.totals().values()) == 1130.0 - 1000.0
    assert found.steps_repeated == 0


def test_what_a_launcher_has_seen_divides_the_gap() -> None:
    killed = attempt(1, 1000.0, (0, 100), 50.0, after=12.0, after_step=124)
    found = of(killed, attempt(2, 1075.0, (100, 200), 50.0))
    assert found.totals() == {"program_startup": 10.0, TRAINING: 100.0, WASTED: 12.0, RECOVERY: 8.0}
    assert found.steps_repeated == 24


@pytest.mark.parametrize(
    ("more", "in_vain"),
    [
        ({"end": "preempted", "after_step": 100}, 0.0),
        ({"end": "failed", "after_step": 124}, 12.0),  # the backup of its end has failed
        ({"after_step": 100}, 12.0),  # killed in a validation, say
    ],
)
def test_what_a_process_does_after_its_last_backup_is_in_vain_only_if_it_lost_something(
    more: dict[str, Any], in_vain: float
) -> None:
    ended = attempt(1, 1000.0, (0, 100), 50.0, after=12.0, **more)
    found = of(ended, attempt(2, 1075.0, (100, 200), 50.0)).totals()
    assert (found.get(WASTED, 0.0), found[RECOVERY]) == (in_vain, 20.0 - in_vain)


@pytest.mark.parametrize(("began", "gap"), [(1050.0, 0.0), (900.0, 0.0), (1055.0 + 3, 3.0)])
def test_clocks_that_differ_make_no_negative_gap(began: float, gap: float) -> None:
    found = of(attempt(1, 1000.0, (0, 100), 50.0), attempt(2, began, (100, 200), 50.0))
    assert found.totals().get(RECOVERY, 0.0) == gap


def test_steps_that_a_later_process_trains_again_were_in_vain() -> None:
    found = of(
        attempt(1, 1000.0, (0, 100), 50.0),
        attempt(2, 1055.0, (100, 300), 100.0),
        attempt(4, 1160.0, (50, 60), 5.0),  # rolled back
    )
    totals = found.totals()
    assert totals[TRAINING] == pytest.approx(25.0 + 0.0 + 5.0)
    assert totals[WASTED] == pytest.approx(25.0 + 100.0)
    assert found.steps_repeated == 50 + 200


def test_the_last_attempts_are_kept_and_older_ones_summed() -> None:
    whole, bounded = [], Journal()
    for number in range(1, 251):
        one = attempt(number, number * 100.0, (number * 10 - 10, number * 10), 50.0)
        whole.append(one)
        bounded = bounded.with_attempt(one)
    assert len(bounded.attempts) == KEPT
    assert bounded.starts == 250
    assert bounded.began == 100.0
    assert bounded.totals() == pytest.approx(of(*whole).totals())
    assert len(msgspec.json.encode(bounded)) < 20_000


def test_a_newer_record_of_an_attempt_takes_the_place_of_the_one_before() -> None:
    found = of(attempt(1, 0.0, (0, 1), 1.0)).with_attempt(attempt(1, 0.0, (0, 9), 9.0))
    assert [one.step for one in found.attempts] == [9]


def owner(claimed: float, **more: Any) -> OwnerRecord:
    record = {"token": "0" * 32, "made_directory": True, "by": "kdc", "script": "train.py", "host": "a", "pid": 1}
    return OwnerRecord(claimed=claimed, **{**record, "info": {}, **more})


def test_processes_that_died_before_a_backup_are_known_by_their_owner_records() -> None:
    known = of(attempt(1, 1000.0, (0, 100), 50.0))
    claims = [(1, owner(1001.0)), (2, owner(1100.0, rolled_back_to="")), (3, owner(1200.0))]
    found = journal.continued([None, msgspec.to_builtins(known)], claims)
    assert [one.generation for one in found.attempts] == [1, 3]
    assert found.totals()[RECOVERY] == 1200.0 - 1055.0
    assert found.steps_repeated == 0


def test_a_rollback_holds_what_was_known_when_the_training_went_back() -> None:
    known = of(attempt(1, 1000.0, (0, 100), 50.0), attempt(2, 1055.0, (100, 300), 100.0))
    back = owner(1300.0, rolled_back_to="", info={journal.JOURNAL: msgspec.to_builtins(known)})
    of_target = msgspec.to_builtins(of(attempt(1, 1000.0, (0, 50), 25.0)))
    assert journal.continued([of_target], [(1, owner(1000.0)), (2, owner(1055.0)), (3, back)]) == known


@pytest.mark.parametrize("found", ["text", {"attempts": 1}, {"attempts": [{"generation": 1, "began": float("nan")}]}])
def test_what_is_no_journal_is_none(found: Any) -> None:
    assert journal.continued([found], []) == Journal()


def test_the_summary_names_starts_time_and_shares_in_plain_words() -> None:
    found = of(attempt(1, 0.0, (0, 100), 3600.0, after=20.0), attempt(2, 3700.0, (100, 200), 3600.0))
    assert journal.summary(found) == (
        "2 starts in 2 h 2 min: 98.6 % training, 1.0 % not running, 0.3 % repeated steps, 0.1 % starting"
    )
    assert journal.summary(of(AttemptRecord(1, 0.0))) == "1 start"
    assert journal.summary(of(attempt(1, 0.0, (0, 5), 35.0))) == "1 start in 40 s: 87.5 % training, 12.5 % starting"
