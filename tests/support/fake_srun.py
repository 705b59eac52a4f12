"""Slurm's `srun` and `scontrol`, as far as a batch script needs them: tasks are processes of this machine.

`FAKE_NODES` and `FAKE_TASKS_PER_NODE` say where tasks would be. Exits with the largest code, as srun does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from keras_dist_callbacks.cluster import schedulers


def main() -> int:
    if Path(sys.argv[0]).name == "scontrol":
        assert sys.argv[1:] == ["requeue", os.environ["SLURM_JOB_ID"]]
        Path("requeued").touch()
        return 0
    command = sys.argv[1:]
    while command[0].startswith("-"):
        assert command.pop(0) in ("--kill-on-bad-exit=0", "--distribution=block")
    nodes, tasks = os.environ["FAKE_NODES"], os.environ["FAKE_TASKS_PER_NODE"]
    counts = schedulers._tasks_per_node(tasks)
    names = [name for name, count in zip(schedulers.expand_hosts(nodes), counts, strict=True) for _ in range(count)]
    running = []
    for rank, name in enumerate(names):
        step = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURMD_NODENAME": name}
        running.append(subprocess.Popen(command, env={**os.environ, **step, "SLURM_PROCID": str(rank)}))
    codes = [process.wait() for process in running]
    return max(code if code >= 0 else 128 - code for code in codes)


if __name__ == "__main__":
    sys.exit(main())
