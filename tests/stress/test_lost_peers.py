"""One worker is lost, in every way and phase: the others end in time, name it, and the job continues exactly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.lost_peer_run import Case, Row, cases, lose, run
from tests.support.networks import reason_against

LOST = r"(?:PeerLostError|ClusterTimeoutError): .*"
REASONS = "has ended|no heartbeats|does not answer|cannot be reached|reported that it ended|no contact|did not start"
# by itself the loser ends as its fault is; cut off or alone, it is one of those who have lost the others
LOSER = {"kill": -9, "freeze": None, "exit": 0, "raise": 1, "partition": 138, "lone start": 138}


def check_ends(case: Case, row: Row) -> None:
    assert row.seconds < case.limit, row
    loser = 0 if case.fault == "lone start" else case.who
    assert row.codes[loser] == LOSER[case.fault], row.logs[loser][-3000:]
    for worker, (code, log) in enumerate(zip(row.codes, row.logs, strict=True)):
        if worker == loser and case.fault not in ("partition", "lone start"):
            continue
        assert code == 138, (worker, row, log[-3000:])
        told = re.findall(LOST, log)
        assert told, log[-3000:]
        name = "chief" if case.chief == (case.fault != "lone start") else r"worker \d"
        if worker != loser or case.fault == "lone start":
            assert re.search(rf"{name} .*(?:{REASONS})|no contact from {name} ", told[-1]), told[-1]


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(120)
def test_a_frozen_chief_does_not_block_the_others_at_the_end(tmp_path: Path) -> None:
    """No step is left that TensorFlow could end, and nothing that the chief was asked has an answer."""
    case = Case(2, True, "freeze", "end")
    check_ends(case, lose(case, tmp_path))


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_others_end_in_time_name_the_lost_worker_and_the_job_continues(tmp_path: Path, case: Case) -> None:
    if case.fault == "partition" and (reason := reason_against()):
        pytest.skip(reason)
    row = run(case, tmp_path)
    check_ends(case, row)
    assert row.identical, row
    if case.phase != "start-up":
        assert row.resumed_at > 0, row
