"""When training has to stop, so that it is saved before the time of the job is over."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.machine import process_start
from keras_dist_callbacks.base.progress_file import progress_file
from keras_dist_callbacks.cluster.schedulers import slurm_job_end
from keras_dist_callbacks.launch.launch_options import JOB_STARTED

_SinceEpoch = Annotated[float, Meta(gt=0, le=1e12, description="a time in seconds since 1970, as `date +%s` prints it")]


@dataclass(frozen=True)
class TimeLimit:
    """The end of a job's time, and what has to be done before it.

    Attributes:
        name: What sets it, for messages.
        end: When it is, in seconds since 1970.
        grace_period: Seconds that are kept for the step that runs, and for leaving.
        seconds_to_save: How long a save may take, by what is known now.
    """

    name: str
    end: float
    grace_period: float
    seconds_to_save: Callable[[], float]

    @classmethod
    def of(
        cls,
        limit: datetime.timedelta,
        grace_period: float,
        seconds_to_save: Callable[[], float],
        environ: Mapping[str, str] = os.environ,
    ) -> TimeLimit:
        """Counts from the start of the job, or of this process where it has no launcher; Slurm may end it earlier.

        Raises:
            ConfigError: The start of the job in the environment is not a time.
        """
        text = environ.get(JOB_STARTED, "").strip()
        began = float(validation.check(JOB_STARTED, text, _SinceEpoch, strict=False)) if text else process_start()
        end, name = began + limit.total_seconds(), f"the time limit of {limit}"
        of_slurm = slurm_job_end(environ)
        if of_slurm is not None and of_slurm < end:
            end, name = of_slurm, "the end of the Slurm job"
        return cls(name, end, grace_period, seconds_to_save)

    @property
    def left(self) -> float:
        """Seconds until the end, at least those of the grace period."""
        return max(self.grace_period, self.end - time.time())

    def is_reached(self) -> bool:
        """Returns whether it is time to stop; a launcher learns when that is."""
        stop_at = self.end - self.grace_period - self.seconds_to_save()
        progress_file().stop_at(stop_at)
        return time.time() >= stop_at
