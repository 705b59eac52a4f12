"""A lone process of a cluster names who is missing, in bounded time, and handles signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from keras_dist_callbacks.base.errors import ClusterTimeoutError, ConfigError
from keras_dist_callbacks.cluster.rendezvous import wait_for_everyone
from tests.support.tf_config import config


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_lone_chief_names_who_is_missing_in_bounded_time() -> None:
    addresses = [f"127.0.0.1:{free_port()}", "127.0.0.1:1", "127.0.0.1:2"]
    began = time.monotonic()
    with pytest.raises(ClusterTimeoutError, match=r"no contact from worker 1 \(127.0.0.1:1\), worker 2 .* within 1 s"):
        wait_for_everyone(addresses, 0, 1.0)
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_a_lone_worker_names_the_chief_in_bounded_time() -> None:
    addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    with pytest.raises(ClusterTimeoutError, match=f"worker 1: the chief {addresses[0]} .* within 1 s"):
        wait_for_everyone(addresses, 1, 1.0)


@pytest.mark.parametrize("index", [0, 1])
def test_an_occupied_port_is_an_error_that_names_it(index: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
        addresses[index] = f"127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"cannot listen on its own port {port} .*end the process that uses"):
            wait_for_everyone(addresses, index, 1.0)


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
        wait_for_everyone([f"127.0.0.1:{port}", "127.0.0.1:1"], 0, 1.5)
    timer.join()


@pytest.mark.process
def test_a_waiting_chief_handles_sigterm() -> None:
    port = free_port()
    environ = {**os.environ, "TF_CONFIG": json.dumps(config({"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"]}))}
    code = (
        "import keras_dist_callbacks as kdc; kdc.make_strategy(cluster_options=kdc.ClusterOptions(startup_timeout=60))"
    )
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
