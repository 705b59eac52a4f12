"""Real trainings that hang are restarted after the limit of their phase, and end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_dist_callbacks.testing.local_cluster import WORKER_ENV
from tests.support import SUPPORT
from tests.support.launching import Launched, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.kill, pytest.mark.timeout(900)]


PHASES = {"input": "in a step", "callback": "in a step", "store": "in a save"}


@pytest.mark.parametrize("where", PHASES)
def test_a_hang_is_found_and_restarted(
    tmp_path: Path, where: str, record_property: Callable[[str, object], None]
) -> None:
    run = [sys.executable, "-m", "keras_dist_callbacks.cli", "run", str(SUPPORT / "hanging_job.py")]
    command = [*run, where, str(tmp_path / "backup")]
    job = Launched(tmp_path, {}, WORKER_ENV, command=command, hang_timeout="auto", log_dir="logs")
    wait_for(lambda: "attempt 1" in (tmp_path / "err").read_text(), 600)
    code, out, err = job.end(300)
    assert (code, out.splitlines()[-1]) == (0, "finished"), err
    found = f"kdc launch: worker 0 hung {PHASES[where]}, without progress for "
    assert found in err
    seconds = float(err.partition(found)[2].split()[0])
    print(f"{where}: {seconds:.0f} s until it is found; {err}")
    record_property("seconds_without_progress", seconds)
    assert seconds >= 60
    assert "most recent call first" in (tmp_path / "logs" / "worker-0-run-0.log").read_text()
