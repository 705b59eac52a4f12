"""The strategy of each process, and clusters that a strategy does not join."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.strategy import make_strategy
from tests.support.processes import worker_processes
from tests.support.tf_config import WORKERS, config


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"kind": "parameter_server"}, "kind must be"),
        ({"kind": "multi_worker"}, "needs a TF_CONFIG"),
        ({"cluster_options": {"timeout": 3}}, "cluster_options must be a .*ClusterOptions, or None"),
    ],
)
def test_make_strategy_refuses_bad_arguments(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_strategy(**arguments)


def test_one_process_gets_the_default_strategy() -> None:
    import tensorflow as tf

    assert make_strategy() is tf.distribute.get_strategy()


def test_options_of_communication_are_those_of_tensorflow() -> None:
    import tensorflow as tf

    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    assert make_strategy(communication_options=options) is tf.distribute.get_strategy()
    with pytest.raises(ConfigError, match=r"must be a tf\.distribute\.experimental\.CommunicationOptions, or None"):
        make_strategy(communication_options=ring)


def test_an_evaluator_gets_the_default_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setenv("TF_CONFIG", json.dumps(config(WORKERS, "evaluator")))
    assert make_strategy() is tf.distribute.get_strategy()


def test_a_strategy_that_joins_no_one_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import tiny

    monkeypatch.setenv("TF_CONFIG", json.dumps(config(WORKERS)))
    with pytest.raises(ConfigError, match="TF_CONFIG names 3 workers, but the model was made under"):
        tiny.fit(tiny.model(), tmp_path)


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_sigterm_ends_a_worker_between_the_strategy_and_fit(tmp_path: Path) -> None:
    """TensorFlow takes SIGTERM over while it builds the cluster, and would swallow it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import time\nimport keras_dist_callbacks as kdc\nkdc.make_strategy()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    with worker_processes([sys.executable, str(script)], 2, tmp_path / "logs", grace=1.0) as cluster:
        cluster.start()
        deadline = time.monotonic() + 60.0
        while not all("ready" in cluster.log(worker) for worker in range(2)) and time.monotonic() < deadline:
            time.sleep(0.05)
        struck = time.monotonic()
        for worker in range(2):
            cluster.kill(worker, signal.SIGTERM)
        assert cluster.wait(30.0) == [-signal.SIGTERM] * 2
        assert time.monotonic() - struck < 5.0


STUCK = """
import ctypes, json, os
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]},
                                      "task": {"type": "worker", "index": 0}})
from keras_dist_callbacks._compat import multi_worker
from keras_dist_callbacks.cluster import rendezvous, strategy
rendezvous.wait_for_everyone = lambda *arguments: None
multi_worker.build_strategy = lambda *arguments: ctypes.PyDLL(None).sleep(60)
strategy._STUCK_SECONDS = 0.5
strategy.make_strategy(cluster_options=strategy.ClusterOptions(startup_timeout=1.0))
"""


@pytest.mark.process
def test_a_start_in_which_tensorflow_never_returns_ends_with_138() -> None:
    """It holds the GIL meanwhile, so that nothing in Python can end it."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 138, done.stderr
    assert "Timeout (0:00:01" in done.stderr  # where it hangs
    assert "make_strategy" in done.stderr
