"""The settings of TensorFlow's coordination service, wherever this TensorFlow keeps them."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from tensorflow.python.eager import context

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks.base.errors import CompatError

# tensorflow/tsl/protobuf in TensorFlow 2.18, tensorflow/compiler/xla/tsl/protobuf in 2.19 to 2.21
PATHS = ("tensorflow.tsl", "tensorflow.compiler.xla", "tensorflow.core.protobuf")


class Recording:
    """A context that keeps what it is configured with."""

    def configure_coordination_service(self, heartbeat_timeout_in_ms: int, **settings: Any) -> None:
        self.settings = {"heartbeat_timeout_in_ms": heartbeat_timeout_in_ms, **settings}


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Stands for TensorFlow's context, which can be configured only before its first operation."""
    made = Recording()
    monkeypatch.setattr(context, "context", lambda: made)
    return made


def configure() -> None:
    coordination.configure([("worker", 2)], "/job:worker", heartbeat_ms=10, register_ms=20, shutdown_ms=30)


def test_the_service_is_configured_with_the_jobs_and_time_outs(recording: Recording) -> None:
    configure()
    (job,) = recording.settings.pop("coordinated_jobs")
    assert (job.name, job.num_tasks) == ("worker", 2)
    assert recording.settings == {
        "service_type": "standalone",
        "service_leader": "/job:worker",
        "heartbeat_timeout_in_ms": 10,
        "cluster_register_timeout_in_ms": 20,
        "shutdown_barrier_timeout_in_ms": 30,
    }


def test_the_service_is_configured_when_tensorflow_keeps_its_messages_under_another_path(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = types.SimpleNamespace(CoordinatedJob=lambda **fields: fields)
    for name in list(sys.modules):
        if name.startswith(PATHS) and name.endswith("coordination_config_pb2"):
            monkeypatch.setitem(sys.modules, name, None)
            monkeypatch.delattr(sys.modules[name.rpartition(".")[0]], "coordination_config_pb2", raising=False)
    monkeypatch.setattr(context, "coordination_config_pb2", messages)
    configure()
    assert recording.settings["coordinated_jobs"] == [{"name": "worker", "num_tasks": 2}]


def test_a_tensorflow_without_these_messages_is_a_clear_error(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(context, "coordination_config_pb2")
    with pytest.raises(CompatError, match=r"has no coordination_config_pb2 .* install versions that docs/limits.md"):
        configure()


def test_a_tensorflow_whose_service_takes_other_settings_is_a_clear_error(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "configure_coordination_service", lambda **settings: None)
    with pytest.raises(CompatError, match="has no configure_coordination_service"):
        configure()
