"""Whatever a worker finds in the coordination service is one of this version's messages, or a clear error."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks.base.errors import ClusterError
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.cluster import cluster as cluster_module
from keras_dist_callbacks.cluster import messaging, peer_monitor
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.coordinated_stop import CoordinatedStop

ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2")
CHIEF = Cluster("worker", 0, 0, ADDRESSES, 20.0)
NOT_OURS = "the message is not one of this version"


def chunk(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return f"1:{base64.b64encode(text).decode()}"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A key-value store; no one is ever lost."""
    values: dict[str, str] = {}

    def get_value(key: str, timeout_ms: int) -> str | None:
        if key not in values:
            time.sleep(0.05)
        return values.get(key)

    monkeypatch.setattr(coordination, "get_value", get_value)
    monkeypatch.setattr(coordination, "set_value", values.__setitem__)
    monkeypatch.setattr(coordination, "delete_value", lambda key: values.pop(key, None))
    monkeypatch.setattr(coordination, "set_once", lambda key, value: values.setdefault(key, value) == value)
    monkeypatch.setattr(peer_monitor, "begin", lambda role, on_loss=None: None)
    monkeypatch.setattr(peer_monitor, "end", lambda on_loss=None: None)
    monkeypatch.setattr(shared(cluster_module._Calls), "numbers", iter(range(100)))
    monkeypatch.setattr(shared(messaging.Peers), "lost", None)
    return values


@pytest.mark.parametrize(
    "value", ["", "1", ":", "\n:", "x:", "²:AAAA", "-1:AAAA", "1e3:AAAA", f"{10**30}:AAAA", "1:A", "1:!!!!", "1:ÄÄÄÄ"]
)
def test_a_value_that_was_not_published_by_a_worker_is_a_clear_error(published: dict[str, str], value: str) -> None:
    published["key/0"] = value
    with pytest.raises(ClusterError, match=f"key: {NOT_OURS}"):
        messaging.fetch("key", 5.0)


def test_what_is_published_comes_back(published: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "_CHUNK", 8)
    for value in (b"", b"a", b"abcdefgh" * 100):
        published.clear()
        messaging.publish("key", value, 5.0)
        assert messaging.fetch("key", 5.0) == value


JUNK = [
    b"",
    b"\xff",
    b"[" * 100_000,
    b"null",
    b"[]",
    b"{}",
    b'{"tag": "t"}',
    b'{"tag": 1, "value": null}',
    b'{"tag": "t", "value": null, "more": 1}',
    b'{"tag": "t", "value": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("junk", JUNK)
def test_junk_in_place_of_an_answer_is_a_clear_error_that_names_the_worker(
    published: dict[str, str], junk: bytes
) -> None:
    published["kdc/call/0/1/0"] = chunk(junk)
    with pytest.raises(ClusterError, match=rf"^worker 1 \(127.0.0.1:2\) about 't': {NOT_OURS}"):
        CHIEF.gather(None, "t")


@pytest.mark.parametrize("value", [1, "failed", ["failed"], ["failed", 1], [1, True], ["failed", True, 1], {}])
def test_an_invalid_report_of_a_failure_is_a_clear_error(published: dict[str, str], value: Any) -> None:
    published["kdc/call/0/1/0"] = chunk({"tag": "t", "value": value})
    with pytest.raises(ClusterError, match=f"worker 1 .*{NOT_OURS}"):
        CHIEF.agree(lambda: None, "t")


@pytest.mark.parametrize("value", [None, [], {"a": 1}, {"a": None}, "a"])
def test_invalid_facts_are_a_clear_error(published: dict[str, str], value: Any) -> None:
    published["kdc/call/0/1/0"] = chunk({"tag": "t", "value": value})
    with pytest.raises(ClusterError, match=f"worker 1 .*{NOT_OURS}"):
        CHIEF.require_same({"a": "1"}, "t")


def test_the_service_does_not_grow_with_every_call(published: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_KEPT_CALLS", 3)
    for number in range(10):
        CHIEF.broadcast("long" * 2**20 if number == 2 else number, "t")  # in several chunks
    assert list(published) == [f"kdc/call/{call}/0/0" for call in (7, 8, 9)]


def test_values_of_every_kind_arrive_as_they_were(published: dict[str, str]) -> None:
    values = {"a": [1, -(2**70), 1.5, 1e300, None, True, "ü", {"b": []}], "inf": float("inf")}
    published["kdc/call/0/1/0"] = chunk({"tag": "t", "value": values})
    published["kdc/call/1/1/0"] = chunk({"tag": "t", "value": float("nan")})
    assert CHIEF.gather(None, "t") == [None, values]
    assert str(CHIEF.gather(None, "t")) == "[None, nan]"


def test_junk_about_an_exception_means_that_not_all_have_raised_it(published: dict[str, str]) -> None:
    for number, junk in enumerate((b"", b"[" * 100_000, b"\xff")):
        published[f"kdc/{number}/1/0"] = chunk(junk)
        assert CHIEF.gather_soon([1], str(number), 5.0) is None


def boundaries(stop: CoordinatedStop) -> None:
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        assert stop.boundary() is None
        time.sleep(0.01)


@pytest.mark.parametrize("request_", [b"[" * 100_000, b"[]", b"{}", b'{"kind": 1, "why": "", "worker": 1}', b"\xff"])
def test_junk_in_place_of_a_request_to_stop_ends_training_with_a_clear_error(
    published: dict[str, str], request_: bytes
) -> None:
    published["kdc/name/stop/0/request/0"] = chunk(request_)
    stop = CoordinatedStop(CHIEF, "name", lambda request: None, 20.0)
    stop.start()
    with pytest.raises(ClusterError, match=f"which worker requests a stop: .*{NOT_OURS}"):
        boundaries(stop)
    stop.close()


@pytest.mark.parametrize("answer", [b"", b"two", b"1.5", b"-1", b"true", "²".encode(), b"1" * 5000])
def test_junk_in_place_of_an_answer_to_it_does_too(published: dict[str, str], answer: bytes) -> None:
    published["kdc/name/stop/0/request/0"] = chunk({"kind": "stopped", "why": "asked", "worker": 1})
    published["kdc/name/stop/0/answer/1/0"] = chunk(answer)
    stop = CoordinatedStop(CHIEF, "name", lambda request: None, 20.0)
    stop.start()
    with pytest.raises(ClusterError, match=f"the next boundary of worker 1: .*{NOT_OURS}"):
        boundaries(stop)
    stop.close()


@pytest.mark.parametrize(
    "told",
    ["worker 99 ended with a bug", f"worker {'9' * 5000} ended with it", "worker ² ended with it",
     f"/job:worker/task:{'9' * 5000} is gone", "/job:worker/task:99 is gone", "lost: ", ""],
)  # fmt: skip
def test_nonsense_about_a_lost_worker_names_no_one(
    published: dict[str, str], monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setattr(peer_monitor, "_port_error", lambda address: None)
    assert "worker 1" not in peer_monitor.parse_report(CHIEF, told)
    assert not peer_monitor.is_own_report(CHIEF, told)


@pytest.mark.parametrize(
    ("chief", "answers", "expected"),
    [
        (OSError(110, "timed out"), False, r"^the chief \(.*\) cannot be reached: timed out$"),
        (None, False, r"^the chief \(.*\) does not answer: it is frozen or disconnected$"),
        (None, True, r"^worker 1 \(.*\) sends no heartbeats"),
        (ConnectionRefusedError(), False, r"^worker 1 \(.*\) sends no heartbeats"),
    ],
)
def test_a_worker_that_listens_is_not_named_where_the_chief_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, chief: OSError | None, answers: bool, expected: str
) -> None:
    """An error of a step names the worker that ended it first, who may have lost the chief as well."""
    addresses = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    monkeypatch.setattr(peer_monitor, "_port_error", lambda address: chief if address == addresses[0] else None)
    monkeypatch.setattr(peer_monitor, "_service_answers", lambda role: answers)
    told = "Collective ops is aborted by: /job:worker/replica:0/task:1 is unavailable"
    assert re.search(expected, peer_monitor.parse_report(Cluster("worker", 2, 2, addresses), told))


@pytest.mark.parametrize("value", ["3", 1.5, True, [], None])
def test_a_value_of_another_kind_than_agreed_is_a_clear_error(published: dict[str, str], value: Any) -> None:
    published["kdc/call/0/0/0"] = chunk({"tag": "t", "value": value})
    worker = Cluster("worker", 1, 1, ADDRESSES, 20.0)
    with pytest.raises(ClusterError, match=f"worker 0 .*{NOT_OURS}"):
        worker.broadcast(None, "t", kind=int)


def test_a_value_of_the_agreed_kind_arrives_as_it_was(published: dict[str, str]) -> None:
    published["kdc/call/0/1/0"] = chunk({"tag": "t", "value": ["a", 1]})
    assert CHIEF.gather(("b", 2), "t", kind=tuple[str, int] | None) == [("b", 2), ["a", 1]]
