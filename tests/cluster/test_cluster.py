"""TF_CONFIG and roles, the start-up preflight, and messages between real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.preflight import wait_for_everyone
from keras_dist_callbacks.cluster.strategy import make_strategy
from keras_dist_callbacks.errors import ClusterError, ClusterTimeoutError, ConfigError
from keras_dist_callbacks.testing.plugin import ClusterFactory


def detect(config: Any) -> Cluster:
    return Cluster.detect({"TF_CONFIG": config if isinstance(config, str) else json.dumps(config)})


def config(cluster: dict[str, list[str]], task_type: str = "worker", index: Any = 0) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": task_type, "index": index}}


WORKERS = {"worker": ["a:1", "b:2", "c:3"]}
WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}


def test_without_tf_config_the_process_is_the_chief_of_one_worker() -> None:
    for environ in ({}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}):
        cluster = Cluster.detect(environ)
        assert (cluster.num_workers, cluster.is_chief, cluster.is_evaluator) == (1, True, False)


@pytest.mark.parametrize(
    ("cluster", "task_type", "index", "worker_index", "is_chief"),
    [
        (WORKERS, "worker", 0, 0, True),
        (WORKERS, "worker", 2, 2, False),
        (WORKERS, "worker", "1", 1, False),
        (WITH_CHIEF, "chief", 0, 0, True),
        (WITH_CHIEF, "worker", 0, 1, False),
        (WITH_CHIEF, "worker", 1, 2, False),
        ({**WITH_CHIEF, "ps": ["p:1"], "evaluator": ["e:1"]}, "worker", 1, 2, False),
        ({"master": ["a:1"], "worker": ["b:2", "c:3"]}, "master", 0, 0, True),
        ({"master": ["a:1"], "worker": ["b:2", "c:3"]}, "worker", 1, 2, False),
    ],
)
def test_roles_and_ranks(
    cluster: dict[str, list[str]], task_type: str, index: Any, worker_index: int, is_chief: bool
) -> None:
    found = detect(config(cluster, task_type, index))
    assert found.addresses == ("a:1", "b:2", "c:3")
    assert (found.num_workers, found.worker_index, found.is_chief) == (3, worker_index, is_chief)


@pytest.mark.parametrize("cluster", [WORKERS, {**WORKERS, "evaluator": ["e:1"]}])
def test_an_evaluator_is_neither_chief_nor_worker(cluster: dict[str, list[str]]) -> None:
    found = detect(config(cluster, "evaluator"))
    assert (found.is_evaluator, found.is_chief, found.worker_index) == (True, False, -1)


def test_a_cluster_of_one_worker_is_a_chief() -> None:
    found = detect(config({"worker": ["a:1"]}))
    assert (found.num_workers, found.is_chief) == (1, True)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{not json", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ({"cluster": [], "task": {}}, r"TF_CONFIG\['cluster'\] must be an object"),
        ({"cluster": WORKERS}, r"TF_CONFIG\['task'\] must be an object"),
        ({"cluster": WORKERS, "task": {"index": 0}}, r"TF_CONFIG\['task'\]\['type'\] must be a string"),
        (config(WORKERS, index=-1), r"\['task'\]\['index'\] must be an integer of 0 or more, got -1"),
        (config(WORKERS, index="one"), r"\['task'\]\['index'\] must be an integer"),
        (config(WORKERS, index=3), r"\['index'\] is 3, but TF_CONFIG\['cluster'\]\['worker'\] names 3"),
        (config(WORKERS, "chief"), r"\['cluster'\]\['chief'\] names 0"),
        (config(WORKERS, "boss"), r"\['type'\] is 'boss'"),
        (config({"worker": "a:1"}), r"\['worker'\] must be a list"),  # type: ignore[dict-item]
        (config({"worker": ["a"]}), "'a' is no address of the form host:port"),
        (config({"worker": ["a:99999"]}), "no address"),
        (config({"chief": ["a:1", "b:1"]}, "chief"), "there can be one chief"),
        (config({"workers": ["a:1"]}), "unknown job 'workers'"),
        (config({**WORKERS, "ps": ["p:1"]}, "ps"), "parameter servers do not work"),
    ],
)
def test_a_malformed_tf_config_names_the_field(text: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        detect(text)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"kind": "parameter_server"}, "kind must be"),
        ({"kind": "multi_worker"}, "needs a TF_CONFIG"),
        ({"startup_timeout": 0}, "seconds above 0"),
    ],
)
def test_make_strategy_refuses_bad_arguments(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_strategy(**arguments)


def test_one_process_gets_the_default_strategy() -> None:
    import tensorflow as tf

    assert make_strategy() is tf.distribute.get_strategy()


def test_an_evaluator_gets_the_default_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setenv("TF_CONFIG", json.dumps(config(WORKERS, "evaluator")))
    assert make_strategy() is tf.distribute.get_strategy()


def test_one_worker_talks_to_itself() -> None:
    cluster = Cluster()
    assert cluster.gather(1, "t") == [1]
    assert cluster.broadcast("x", "t") == "x"
    assert cluster.agree(lambda: 3, "t") == 3
    cluster.barrier("t")
    cluster.leave("t")
    with pytest.raises(ZeroDivisionError):
        cluster.agree(lambda: 1 // 0, "t")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_lone_chief_names_who_is_missing_in_bounded_time() -> None:
    addresses = [f"127.0.0.1:{free_port()}", "127.0.0.1:1", "127.0.0.1:2"]
    began = time.monotonic()
    with pytest.raises(ClusterTimeoutError, match=r"no contact from worker 1 \(127.0.0.1:1\), worker 2 .* within 1 s"):
        wait_for_everyone(addresses, 0, 1.0, "t")
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_a_lone_worker_names_the_chief_in_bounded_time() -> None:
    addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    with pytest.raises(ClusterTimeoutError, match=f"worker 1: the chief {addresses[0]} .* within 1 s"):
        wait_for_everyone(addresses, 1, 1.0, "t")


@pytest.mark.parametrize("index", [0, 1])
def test_an_occupied_port_is_an_error_that_names_it(index: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
        addresses[index] = f"127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"cannot listen on its own port {port} .*end the process that occupies"):
            wait_for_everyone(addresses, index, 1.0, "t")


@pytest.mark.slow
def test_strangers_on_the_chiefs_port_do_not_count() -> None:
    port = free_port()
    import threading

    def stranger() -> None:
        for message in (b"GET / HTTP/1.1\r\n\r\n", b'{"index": 1, "token": "another cluster"}\n', b"\xff\n"):
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(message)

    timer = threading.Timer(0.3, stranger)
    timer.start()
    with pytest.raises(ClusterTimeoutError, match="no contact from worker 1"):
        wait_for_everyone([f"127.0.0.1:{port}", "127.0.0.1:1"], 0, 1.5, "t")
    timer.join()


@pytest.mark.process
def test_a_waiting_chief_obeys_sigterm() -> None:
    port = free_port()
    environ = {**os.environ, "TF_CONFIG": json.dumps(config({"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"]}))}
    code = "import keras_dist_callbacks as kdc; kdc.make_strategy(startup_timeout=60)"
    with subprocess.Popen([sys.executable, "-c", code], env=environ) as process:
        wait_until_it_listens(port)
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM


def wait_until_it_listens(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "the chief never listened"
            time.sleep(0.05)
        else:
            return


_TALK = """
import sys, keras_dist_callbacks as kdc
from keras_dist_callbacks.errors import ClusterError
kdc.make_strategy(startup_timeout=60)
cluster = kdc.Cluster.detect()
me = cluster.worker_index
assert cluster.gather({"me": me}, "g") == [{"me": 0}, {"me": 1}, {"me": 2}]
assert cluster.broadcast("from %d" % me, "b") == "from 0"
assert cluster.broadcast("x" * 3_000_000 if me == 0 else None, "big") == "x" * 3_000_000
assert cluster.on_chief(lambda: me, "c") == (0 if me == 0 else None)
def action():
    if me == 1:
        raise FileNotFoundError("no such file here")
    return me
try:
    cluster.agree(action, "reading")
except ClusterError as error:
    assert me != 1 and str(error) == "reading failed on worker 1: FileNotFoundError: no such file here", error
except FileNotFoundError:
    assert me == 1
else:
    raise AssertionError
try:
    cluster.on_chief(lambda: 1 // 0, "on the chief")
except (ClusterError, ZeroDivisionError) as error:
    print(type(error).__name__)
cluster.leave("end")
print("talked", me)
"""


@pytest.mark.cluster
def test_three_workers_talk_and_fail_together(local_cluster: ClusterFactory) -> None:
    cluster = local_cluster([sys.executable, "-c", _TALK], 3, chief=True)
    cluster.start()
    assert cluster.wait(120) == [0, 0, 0], cluster.tails()
    assert "ZeroDivisionError" in cluster.log(0)
    assert "ClusterError" in cluster.log(1)


def test_a_strategy_that_joins_nobody_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import tiny

    monkeypatch.setenv("TF_CONFIG", json.dumps(config(WORKERS)))
    with pytest.raises(ConfigError, match="TF_CONFIG names 3 workers, but the model was made under"):
        tiny.fit(tiny.model(), tmp_path)


def test_errors_are_of_builtin_kinds() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ClusterTimeoutError, TimeoutError)
    assert issubclass(ClusterTimeoutError, ClusterError)
