"""Real local clusters, real kills and exact comparison, to prove that training resumes.

Names are loaded when they are first used: processes that only start and watch others need neither Keras nor
TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_dist_callbacks.base.lazy import exports

_HOME = {
    "Attempt": "keras_dist_callbacks.testing.local_cluster",
    "CountCalls": "keras_dist_callbacks.testing.steps",
    "KillAt": "keras_dist_callbacks.testing.faults",
    "LocalCluster": "keras_dist_callbacks.testing.local_cluster",
    "Step": "keras_dist_callbacks.testing.steps",
    "StepLog": "keras_dist_callbacks.testing.steps",
    "assert_same_run": "keras_dist_callbacks.testing.record",
    "compare_runs": "keras_dist_callbacks.testing.record",
    "count_calls": "keras_dist_callbacks.testing.steps",
    "read_steps": "keras_dist_callbacks.testing.steps",
    "record_run": "keras_dist_callbacks.testing.record",
    "run_until_done": "keras_dist_callbacks.testing.local_cluster",
}

if TYPE_CHECKING:
    from keras_dist_callbacks.testing.faults import KillAt as KillAt
    from keras_dist_callbacks.testing.local_cluster import Attempt as Attempt
    from keras_dist_callbacks.testing.local_cluster import LocalCluster as LocalCluster
    from keras_dist_callbacks.testing.local_cluster import run_until_done as run_until_done
    from keras_dist_callbacks.testing.record import assert_same_run as assert_same_run
    from keras_dist_callbacks.testing.record import compare_runs as compare_runs
    from keras_dist_callbacks.testing.record import record_run as record_run
    from keras_dist_callbacks.testing.steps import CountCalls as CountCalls
    from keras_dist_callbacks.testing.steps import Step as Step
    from keras_dist_callbacks.testing.steps import StepLog as StepLog
    from keras_dist_callbacks.testing.steps import count_calls as count_calls
    from keras_dist_callbacks.testing.steps import read_steps as read_steps
else:
    __getattr__, __dir__ = exports(globals(), _HOME)

__all__ = [*_HOME]
