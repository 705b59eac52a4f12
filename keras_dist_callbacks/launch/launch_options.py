"""What `kdc launch` was asked for, and the environment that each worker gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from keras_dist_callbacks.base import progress_file, validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.machine import process_start
from keras_dist_callbacks.cluster.roles import tf_config
from keras_dist_callbacks.launch import worker
from keras_dist_callbacks.launch.processes import LOOPBACK

ATTEMPT = "KDC_ATTEMPT"
JOB_STARTED = "KDC_JOB_STARTED"
"""When the first attempt began, in seconds since 1970: that of an outer launcher, or of the user, counts."""
_GPUS = "CUDA_VISIBLE_DEVICES"
_MOST_WORKERS = 1000


@dataclass(frozen=True)
class LaunchOptions:
    """How a command is run.

    Attributes:
        command: Program and arguments of each worker.
        workers: How many there are.
        max_restarts: Restarts in a row without a new backup; 0 for no restart.
        restart_on_error: Restart after any exit code.
        grace: Seconds from a signal, or from the first worker's failure, until SIGKILL for the others.
        log_dir: Where each worker's output is kept; None for nowhere.
        gpus_per_worker: How many GPUs each worker sees; None for all of them.
        hang_timeout: Seconds without progress that are a hang; "auto" for five times what was seen; None for no limit.
        standby: Have a spare interpreter for each worker that has imported TensorFlow before it is needed.

    Raises:
        ConfigError: A value is wrong, TF_CONFIG is set, or `standby` is asked for a command of another kind.
    """

    command: tuple[str, ...]
    workers: validation.Some = 1
    max_restarts: validation.Count = 3
    restart_on_error: bool = False
    grace: validation.SecondsFromZero = 40.0
    log_dir: str | None = None
    gpus_per_worker: validation.Some | None = None
    hang_timeout: validation.Seconds | Literal["auto"] | None = None
    standby: bool = False

    def __post_init__(self) -> None:
        validation.check_fields(self)
        validation.check("workers", self.workers, validation.number_of("workers", 1, _MOST_WORKERS), default=1)
        for name in ("TF_CONFIG", "KDC_CLUSTER"):
            if os.environ.get(name, "").strip():
                raise ConfigError(f"{name} is set: its cluster has a launcher already; unset it, or use `kdc run`")
        if self.standby and self.program is None:
            raise ConfigError(
                "--standby is for a Python script or module, as in `kdc launch --standby train.py`; leave it out for a "
                "command after `--`"
            )
        if self.gpus_per_worker is not None:
            gpus_of(0, self.gpus_per_worker, self.workers)

    @property
    def program(self) -> tuple[str, ...] | None:
        """The Python program that workers run and its arguments, as `worker.main` takes them; None for another one."""
        size = len(worker.COMMAND)
        return self.command[size:] if self.command[:size] == worker.COMMAND else None

    @property
    def has_output_of_its_own(self) -> bool:
        """Whether workers write to pipes, and not to the launcher's own output."""
        return self.workers > 1 or self.log_dir is not None

    def environment(self, worker: int, attempt: int, ports: Sequence[int], progress: Path) -> dict[str, str]:
        """All variables of one worker.

        Args:
            worker: Its index.
            attempt: Which start it is, from 0.
            ports: One for each worker.
            progress: Its progress file.
        """
        unless_set = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", JOB_STARTED: f"{process_start():.3f}"}
        env = {**unless_set, **os.environ, ATTEMPT: str(attempt), progress_file.VARIABLE: str(progress)}
        if self.workers > 1:
            env["TF_CONFIG"] = tf_config([f"{LOOPBACK}:{port}" for port in ports], worker)
            env.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, _cores() // self.workers)))
        if self.gpus_per_worker is not None:
            env[_GPUS] = ",".join(gpus_of(worker, self.gpus_per_worker, self.workers))
        return env


def gpus_of(worker: int, each: int, workers: int) -> list[str]:
    """The names of a worker's GPUs, as CUDA_VISIBLE_DEVICES takes them.

    Raises:
        ConfigError: There are fewer GPUs than the workers need.
    """
    if _GPUS in os.environ:
        named = [name.strip() for name in os.environ[_GPUS].split(",")]
        found = [name for name in named if name not in ("", "-1")]
    else:
        found = [str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    if len(found) < each * workers:
        raise ConfigError(
            f"--gpus-per-worker {each} with {workers} worker(s) needs {each * workers} GPUs; {len(found)} are visible"
        )
    return found[worker * each : (worker + 1) * each]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
