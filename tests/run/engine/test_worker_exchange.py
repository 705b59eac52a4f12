"""What workers say to each other about a save is checked before it is used."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups.packing import Fingerprint, fingerprints, hash_array
from keras_dist_callbacks.backups.snapshot import FINDINGS, Position, SharedArray, Snapshot
from keras_dist_callbacks.base.errors import BackupError
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange, _pack_message
from tests.support.service import Service

CHIEF = Cluster("worker", 0, 0, ("127.0.0.1:1", "127.0.0.1:2"))
EXCHANGE = WorkerStateExchange(CHIEF, "fit", 2**20, 5.0)
VALUE = np.float32([1, 2])
HASH = hash_array(VALUE)
HELLO: dict[str, Any] = {"tensors": {"a": [HASH, "float32", [2]]}, "topics": {}}
HEAD = {"state": {"t": [float("inf")]}, "sent": ["a"]}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What worker 1 has published, by topics."""
    values = {"hello": json.dumps(HELLO).encode(), "values": _pack_message(HEAD, {"a": VALUE})}
    monkeypatch.setattr(messaging, "publish", lambda key, value, timeout: 1)
    monkeypatch.setattr(messaging, "publish_once", lambda key, value, timeout: True)
    monkeypatch.setattr(messaging, "fetch", lambda key, *arguments: values[key.rpartition("/")[2]])
    return values


def collect() -> Any:
    taken = Snapshot(Position("within", 0, 1, 1), {}, {})
    (found,) = EXCHANGE.collect(1, taken, {"a": Fingerprint("01", "float32", (2,))})
    return found


def test_what_a_worker_has_arrives(said: dict[str, bytes]) -> None:
    found = collect()
    assert found.tensors["a"].array().tolist() == [1, 2]
    assert found.prints == {"a": Fingerprint(HASH, "float32", (2,))}
    assert found.state == {"t": [float("inf")]}


@pytest.mark.finds("local-state")
def test_what_a_worker_had_too_much_of_is_a_finding(said: dict[str, bytes]) -> None:
    said["values"] = _pack_message({**HEAD, "sent": []}, {})
    assert collect().state[f"engine/{FINDINGS}"] == [["local-state", "worker 1", [], ""]]


HELLOS: list[Any] = [
    b"",
    b"\xff",
    b"[" * 100_000,
    None,
    [],
    {},
    {"tensors": [], "topics": {}},
    {"tensors": {"a": []}, "topics": {}},
    {"tensors": {"a": ["00", "float32", 2]}, "topics": {}},
    {"tensors": {"a": ["00", "float32", [2.5]]}, "topics": {}},
    {"tensors": {}, "topics": {"t": 1}},
]


@pytest.mark.parametrize("hello", HELLOS)
def test_an_invalid_hello_fails_this_save_and_names_the_worker(said: dict[str, bytes], hello: Any) -> None:
    said["hello"] = hello if isinstance(hello, bytes) else json.dumps(hello).encode()
    with pytest.raises(BackupError, match="worker 1 in save 1: the message is not one of this version"):
        collect()


@pytest.mark.parametrize(
    "values",
    [b"", b"\xff" * 8, b"\xff" * 100, _pack_message({"state": {}}, {}), _pack_message({"state": [], "sent": []}, {})],
)
def test_invalid_values_fail_this_save_and_name_the_worker(said: dict[str, bytes], values: bytes) -> None:
    said["values"] = values
    with pytest.raises(BackupError, match="worker 1 in save 1: the message is not one of this version"):
        collect()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
STATE = Snapshot(Position("within", 0, 1, 1), {"a": SharedArray(VALUE)}, {"t": 1})


def side(worker: int, timeout: float = 0.3) -> WorkerStateExchange:
    return WorkerStateExchange(Cluster("worker", worker, worker, ADDRESSES), "fit", 2**20, timeout)


def own(worker: int) -> Snapshot:
    return dataclasses.replace(STATE, tensors={"a": SharedArray(VALUE + worker)}, state={"t": worker})


class Delivering(threading.Thread):
    """A worker's background thread."""

    def __init__(self, exchange: WorkerStateExchange, save: int) -> None:
        super().__init__(daemon=True)
        self.exchange, self.save, self.failure = exchange, save, ""
        self.start()

    def run(self) -> None:
        try:
            self.exchange.deliver(self.save, own(self.exchange.cluster.worker_index))
        except BackupError as error:
            self.failure = str(error)

    def end(self) -> str:
        self.join(10)
        assert not self.is_alive()
        return self.failure


@pytest.fixture
def prints() -> dict[str, Fingerprint]:
    return fingerprints(STATE.tensors)


def test_what_differs_is_sent_and_nothing_is_left_behind(service: Service, prints: dict[str, Fingerprint]) -> None:
    workers = [Delivering(side(worker), 1) for worker in (1, 2)]
    found = side(0, 10).collect(1, own(0), prints)
    assert [worker.end() for worker in workers] == ["", ""]
    assert [(each.tensors["a"].array()[0], each.state) for each in found] == [(2, {"t": 1}), (3, {"t": 2})]
    assert service.values == {}


def test_what_only_the_chief_has_is_none_on_another_worker(service: Service) -> None:
    tensors = {name: SharedArray(VALUE) for name in ("a", "variables/seed@0", "callbacks/sums")}
    chiefs = dataclasses.replace(STATE, tensors=tensors, state={"t": 1, "objects/changed": {"seen": 1}})
    worker = Delivering(side(1), 1)
    two = dataclasses.replace(side(0, 10).cluster, addresses=ADDRESSES[:2])
    (found,) = dataclasses.replace(side(0, 10), cluster=two).collect(1, chiefs, fingerprints(tensors))
    assert worker.end() == ""
    assert found.state == {"objects/changed": None, "variables/seed@0": None, "callbacks/sums": None}


def test_a_save_that_is_queued_is_waited_for_however_long_it_takes(
    service: Service, prints: dict[str, Fingerprint]
) -> None:
    chief = side(0, 10)
    chief.mark_queued(1)
    workers = [Delivering(side(worker, timeout=0.05), 1) for worker in (1, 2)]
    time.sleep(0.5)
    assert all(worker.is_alive() for worker in workers)
    assert len(chief.collect(1, own(0), prints)) == 2
    assert [worker.end() for worker in workers] == ["", ""]
    assert service.values == {}


def test_one_of_which_the_chief_says_nothing_is_given_up(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_dist_callbacks.run.engine.worker_exchange._LOOK", 0.05)
    failure = Delivering(side(1), 1).end()
    assert failure == "the chief did not take part in save 1 within 0.3 s"
    assert service.values == {}


def test_the_end_of_the_run_ends_the_waiting_for_the_chief(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    side(0).mark_queued(1)
    exchange = side(1, timeout=0.1)
    worker = Delivering(exchange, 1)
    time.sleep(0.3)
    exchange.abort.set()
    ended = r"the chief had not taken part in save 1 when this run ended, 0\.\d s after the request"
    assert re.fullmatch(ended, worker.end())


def test_a_run_that_is_terminated_reports_how_long_it_really_waited_for_a_worker(
    service: Service, prints: dict[str, Fingerprint], monkeypatch: pytest.MonkeyPatch
) -> None:
    chief = side(0)
    chief.abort.set()
    with pytest.raises(BackupError) as caught:
        chief.collect(1, own(0), prints)
    ended = r"worker 1 had not delivered its state when this run ended, \d\.\d s after the request"
    assert re.fullmatch(ended, str(caught.value))
    monkeypatch.setattr(shared(messaging.Peers), "lost", "worker 2 is lost")
    with pytest.raises(BackupError, match=r"delivered its state .* \(worker 2 is lost\)"):
        chief.collect(1, own(0), prints)


@pytest.mark.parametrize("late", [1, 2])
def test_a_worker_that_comes_too_late_learns_that_the_save_does_not_happen(
    service: Service, prints: dict[str, Fingerprint], late: int
) -> None:
    chief = side(0)
    chief.mark_queued(1)  # without an answer it would wait for ever
    other = Delivering(side(3 - late), 1)
    with pytest.raises(BackupError, match=f"worker {late} did not deliver its state within"):
        chief.collect(1, own(0), prints)
    assert other.end() == ""
    assert Delivering(side(late), 1).end() == ""
    assert service.values == {}


@pytest.mark.parametrize("garbled", [1, 2])
def test_all_are_answered_where_one_says_what_no_one_understands(
    service: Service, prints: dict[str, Fingerprint], garbled: int
) -> None:
    service.publish(f"kdc/fit/1/{garbled}/hello", b"what?", 1)
    other = Delivering(side(3 - garbled), 1)
    with pytest.raises(BackupError, match=f"worker {garbled} in save 1"):
        side(0, 10).collect(1, own(0), prints)
    assert other.end() == ""
    assert service.fetch(f"kdc/fit/1/{garbled}/wanted", 10) == b"skip"
