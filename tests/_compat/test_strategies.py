"""What is said under strategies that Keras does not train under."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat.strategies import unsupported_reason
from keras_dist_callbacks.base.errors import ConfigError
from tests.support import ROOT
from tests.support.callback_helpers import ignore_keras_warnings
from tests.support.central_storage_job import PARTS

pytestmark = ignore_keras_warnings

COORDINATOR = """
import socket, sys
import keras
import tensorflow as tf
import keras_dist_callbacks as kdc

ports = []
for _ in range(2):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ports.append(free.getsockname()[1])
spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{ports[0]}"], "ps": [f"127.0.0.1:{ports[1]}"]})
servers = [tf.distribute.Server(spec, job_name=job, task_index=0, protocol="grpc") for job in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    for what in (
        lambda: kdc.make_or_restore_model(lambda: sys.exit("a model was built"), sys.argv[1]),
        lambda: kdc.Checkpointer(sys.argv[1], model=model, optimizer=keras.optimizers.SGD()),
    ):
        try:
            what()
        except kdc.ConfigError as error:
            print("REFUSED", error, flush=True)
import os
os._exit(0)  # the servers never end
"""


@pytest.mark.process
@pytest.mark.slow
def test_a_parameter_server_is_refused_with_what_to_use_instead(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COORDINATOR, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    refused = "REFUSED Keras 3 does not train under ParameterServerStrategy: use kdc.make_strategy()"
    assert done.stdout.count(refused) == 2, done.stdout + done.stderr


def test_a_tpu_is_refused_with_what_to_use_instead() -> None:
    strategy = object.__new__(tf.distribute.TPUStrategy)  # one with a TPU cannot be made here
    with pytest.raises(ConfigError, match=r"does not support TPUStrategy: use kdc\.make_strategy"):
        kdc.advanced.Cluster().require_connection(strategy)


def test_other_strategies_are_taken() -> None:
    for strategy in (tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy("/cpu:0")):
        assert unsupported_reason(strategy) is None


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.slow
def test_under_central_storage_what_keras_cannot_train_is_named_before_it_begins_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.central_storage_job"],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    outcomes = {tuple(row[:3]): row[3] for row in (line.split("|", 3) for line in done.stdout.splitlines()) if row[3:]}
    assert len(outcomes) == 2 * 2 * len(PARTS), done.stdout
    for (devices, part, who), said in outcomes.items():
        fails = devices == "2" and part not in {"frozen batch normalization", "nothing"}
        if not fails:
            assert said == "trained", (devices, part, who)
        elif who == "Keras":
            assert "You must specify an aggregation method" in said, part
        else:
            named = "the optimizer's use_ema" if part == "averages of weights" else f"layer '{part.replace(' ', '_')}'"
            expected = f"ConfigError: under CentralStorageStrategy Keras cannot train with {named}"
            assert said.startswith(expected), part
            assert said.endswith("use MirroredStrategy"), part
