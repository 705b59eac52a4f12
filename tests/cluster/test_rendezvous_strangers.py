"""Strangers at the ports of a cluster that starts: silent, slow, chattering and lying ones."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from keras_dist_callbacks.base.errors import ClusterTimeoutError
from keras_dist_callbacks.cluster import rendezvous
from keras_dist_callbacks.cluster.rendezvous import Hello, Reply, decode, encode, wait_for_everyone
from tests.support.cluster_starts import (
    ClusterStarts,
    drip,
    is_hung_up,
    port_of,
    read_all,
    read_line,
    serving,
    starting,
)

NONCE = "a" * 64


def hello(cluster: ClusterStarts, index: int = 1, *, has_token: bool = False) -> bytes:
    digest = hashlib.sha256(",".join(cluster.addresses).encode()).hexdigest()
    return encode(Hello(digest, index, NONCE, has_token))


@pytest.mark.slow
def test_a_stranger_who_says_a_byte_now_and_then_holds_the_chief_no_longer_than_its_deadline() -> None:
    with starting(1) as cluster:
        cluster.addresses.append("127.0.0.1:1")
        chief = cluster.begin(0, 3.0)
        slow = threading.Thread(target=drip, args=(cluster.call(), [b" "] * 60, 0.5))
        slow.start()
        with pytest.raises(ClusterTimeoutError, match="no contact from worker 1") as caught:
            chief.result(90)
        assert caught.value.seconds < 15  # type: ignore[attr-defined]
        cluster.connections[0].close()
        slow.join()


def test_a_hundred_silent_strangers_do_not_delay_a_complete_cluster() -> None:
    with starting(3) as cluster:
        chief = cluster.begin(0)
        for _ in range(100):
            cluster.call()
        workers = [cluster.begin(index) for index in (1, 2)]
        assert all(start.result(90) < 30 for start in (chief, *workers))


def test_more_silent_strangers_than_are_listened_to_do_not_delay_a_complete_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "_MOST_STRANGERS", 10)
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 600.0)
    with starting(2) as cluster:
        chief = cluster.begin(0)
        strangers = [cluster.call() for _ in range(40)]
        assert is_hung_up(strangers[0])  # long before its time is over
        worker = cluster.begin(1)
        assert chief.result(90) < 30
        assert worker.result(90) < 30


def test_a_stranger_who_stays_silent_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 0.5)
    with starting(2) as cluster:
        chief = cluster.begin(0)
        assert is_hung_up(cluster.call())
        worker = cluster.begin(1)
        assert max(chief.result(90), worker.result(90)) < 60


JUNK: dict[str, bytes] = {
    "nested": b"[" * 4095 + b"\n",
    "nested a little": b'{"a":' + b"[" * 500 + b"\n",
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "no text": b"\xff\xfe\x00\n",
    "no message": b'{"index": 1, "token": "another cluster"}\n',
    "an empty line": b"\n",
    "a number": b"1" * 400 + b"\n",
    "an unknown type": b'{"goodbye":""}\n',
    "a worker's turn": b'{"proof":"","nonce":"' + NONCE.encode() + b'"}\n',
    "a proof before a hello": b'{"proof":""}\n',
    "a lot": b"a" * 100_000,
    "two lines": b'{"proof":""}\n' * 2,
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
def test_junk_ends_its_own_connection_and_no_start(junk: bytes) -> None:
    with starting(2) as cluster:
        chief = cluster.begin(0)
        stranger = cluster.call()
        with contextlib.suppress(OSError):  # it may be hung up on before it has said everything
            stranger.sendall(junk)
        assert is_hung_up(stranger)
        worker = cluster.begin(1)
        assert max(chief.result(90), worker.result(90)) < 30


BENT = [
    {"index": 0}, {"index": 2}, {"index": -1}, {"index": "1"}, {"index": True}, {"index": 1.0}, {"index": 10**99},
    {"cluster": "b" * 64}, {"cluster": 1}, {"nonce": ""}, {"nonce": NONCE + "\n"}, {"has_token": 0}, {"more": 1},
]  # fmt: skip


def test_a_hello_that_is_not_exactly_one_is_not_taken_for_a_workers() -> None:
    with starting(2) as cluster:
        chief = cluster.begin(0)
        for change in BENT:
            bent = json.dumps(json.loads(hello(cluster)) | change).encode() + b"\n"
            assert b"nonce" not in read_all(cluster.call(said=bent)), change
        assert b"nonce" in read_line(cluster.call(said=hello(cluster)))
        worker = cluster.begin(1)
        assert max(chief.result(90), worker.result(90)) < 60


@pytest.mark.in_gate(1)
@pytest.mark.slow
@pytest.mark.parametrize("more", [b"", b" "])
def test_a_worker_that_has_gone_again_or_talks_on_is_not_there(more: bytes) -> None:
    with starting(3) as cluster:
        chief = cluster.begin(0)
        guest = cluster.call(said=hello(cluster))
        assert b"nonce" in read_line(guest)
        guest.sendall(encode(Reply("")))
        if more:
            time.sleep(0.2)
            guest.sendall(more)
        else:
            guest.close()
        other = cluster.begin(2)
        with pytest.raises(TimeoutError):
            other.result(2.0)
        worker = cluster.begin(1)
        assert max(chief.result(90), worker.result(90), other.result(90)) < 60


def test_a_worker_that_was_restarted_while_it_waited_takes_the_place_of_the_former() -> None:
    with starting(3) as cluster:
        chief = cluster.begin(0)
        former, guest = cluster.call(), cluster.call()
        for connection in (former, guest):
            connection.sendall(hello(cluster))
            read_line(connection)
            connection.sendall(encode(Reply("")))
        assert is_hung_up(former)
        worker = cluster.begin(2)
        assert decode(read_line(guest), Reply) == Reply("")
        guest.close()
        assert max(chief.result(90), worker.result(90)) < 30


def test_a_cluster_can_start_again_at_once_whoever_closed_the_connections_first() -> None:
    with starting(2) as cluster:
        chief = cluster.begin(0)
        guest = cluster.call(said=hello(cluster))
        read_line(guest)
        guest.sendall(encode(Reply("")))
        assert decode(read_line(guest), Reply) == Reply("")
        assert chief.result(90) < 30
        guest.close()
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):  # by TIME_WAIT, on the chief's side
            plain.bind(("127.0.0.1", port_of(cluster.addresses[0])))
        again = [cluster.begin(index) for index in (0, 1)]
        assert all(start.result(90) < 30 for start in again)


FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
from keras_dist_callbacks.cluster import rendezvous
rendezvous.STRANGER_SECONDS = 600.0
rendezvous.wait_for_everyone(sys.argv[1:], 0, 60.0, None)
"""


@pytest.mark.process
def test_strangers_who_take_all_descriptors_do_not_end_the_chief() -> None:
    with starting(2) as cluster:
        command = [sys.executable, "-c", FEW_DESCRIPTORS, *cluster.addresses]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as chief:
            for _ in range(60):
                cluster.call()
            cluster.begin(1)
            _, said = chief.communicate(timeout=90)
        assert chief.returncode == 0, said


def endless(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"a" * 4096)


IMPOSTORS: dict[str, Callable[[socket.socket], object]] = {
    "silent": lambda connection: read_line(connection) and read_line(connection),
    "slow": lambda connection: drip(connection, [b" "] * 200, 0.1),
    "endless": endless,
    "nested": lambda connection: drip(connection, [b"[" * 4000], 0.1),
    "gone": lambda connection: None,
    "hasty": lambda connection: drip(connection, [encode(Reply(""))], 0.1),
    "strange": lambda connection: drip(connection, [b'{"proof":"","refusal":"unwanted"}\n'], 0.1),
    "proving": lambda connection: drip(connection, [encode(Reply("b" * 64, NONCE)) + b" " * 9], 0.1),
    "an older chief": lambda connection: drip(connection, [b"GO\n"], 0.1),
}


@pytest.mark.in_gate(1)
@pytest.mark.slow
@pytest.mark.parametrize("impostor", IMPOSTORS.values(), ids=IMPOSTORS.keys())
def test_a_stranger_who_answers_as_the_chief_holds_a_worker_no_longer_than_its_deadline(
    impostor: Callable[[socket.socket], None],
) -> None:
    with starting(2) as cluster, serving(cluster.addresses[0], impostor):
        worker = cluster.begin(1, 1.0)
        with pytest.raises(ClusterTimeoutError, match=r"worker 1: the chief .* did not start within 1 s") as caught:
            worker.result(60)
        assert caught.value.seconds < 10  # type: ignore[attr-defined]


def test_a_chief_that_comes_after_an_impostor_is_found() -> None:
    with starting(2) as cluster:
        with serving(cluster.addresses[0], lambda connection: drip(connection, [b"[" * 600], 0.0)):
            worker = cluster.begin(1)
            cluster.call(1).close()
        chief = cluster.begin(0)
        assert max(chief.result(90), worker.result(90)) < 60


def test_whatever_is_said_is_a_message_or_not_understood() -> None:
    chance = random.Random(7)  # noqa: S311 - the same cases each time
    digest = "0" * 64
    whole = [Hello(digest, 1, NONCE, True), Reply(digest, NONCE), Reply("", refusal="token"), Reply(digest)]
    understood = 0
    for _ in range(20_000):
        message = chance.choice(whole)
        said = bytearray(encode(message))
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(said))
            said[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        with contextlib.suppress(ConnectionError):
            decode(bytes(said), type(message))
            understood += 1
    assert understood < 2_000  # a nonce with one other digit is one


def test_one_worker_alone_need_not_wait() -> None:
    with starting(1) as cluster:
        wait_for_everyone(cluster.addresses, 0, 1.0)
