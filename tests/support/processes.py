"""Real processes of tests, which all start from one fork server unless they must be fresh."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_dist_callbacks.testing import LocalCluster
from tests.support import ROOT
from tests.support.busy_machine import VARIABLE


def worker_processes(
    command: Sequence[str], workers: int, logs: Path, *, preload: bool = True, **options: Any
) -> LocalCluster:
    """A cluster whose programs find `tests`, in the one environment for which there is a template.

    Fresh processes are in nothing other than a user's.
    """
    env = {"PYTHONPATH": str(ROOT), VARIABLE: "1" if preload else ""}
    return LocalCluster(command, workers, logs, env=env, preload=preload, **options)
