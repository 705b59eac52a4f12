"""What the chief alone has is not given to other workers, and these get what they had."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support import SUPPORT
from tests.support.processes import worker_processes


def run(directory: Path, name: str, *options: str) -> list[str]:
    command = [sys.executable, str(SUPPORT / "chief_alone_job.py"), str(directory / name), *options]
    with worker_processes(command, 2, directory / f"logs-{name}", grace=3.0) as cluster:
        cluster.start()
        codes = cluster.wait(120)
        assert codes[0] == (-9 if options else 0), cluster.tails()
        return [cluster.log(worker) for worker in range(2)]


@pytest.mark.kill
@pytest.mark.timeout(300)
def test_each_worker_resumes_with_its_own_state_and_nothing_of_the_chiefs(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole")
    run(tmp_path, "killed", "kill")
    resumed = run(tmp_path, "killed")
    for worker in range(2):
        ends = [re.findall("AT THE END .*", log) for log in (whole[worker], resumed[worker])]
        assert ends[0] == ends[1] != [], worker
        assert "RESUMED 10 ()" in resumed[worker]
