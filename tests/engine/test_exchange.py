"""What workers say to each other about a save is checked before it is used."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups.codec import Fingerprint, hash_array
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.engine.exchange import Exchange, _pack_message
from keras_dist_callbacks.errors import BackupError

CHIEF = Cluster("worker", 0, 0, ("127.0.0.1:1", "127.0.0.1:2"))
EXCHANGE = Exchange(CHIEF, "fit", 2**20, 5.0)
VALUE = np.float32([1, 2])
HASH = hash_array(VALUE)
HELLO: dict[str, Any] = {"tensors": {"a": [HASH, "float32", [2]]}, "topics": {}}
HEAD = {"state": {"t": [float("inf")]}, "sent": ["a"]}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What worker 1 has published, by topics."""
    values = {"hello": json.dumps(HELLO).encode(), "values": _pack_message(HEAD, {"a": VALUE})}
    monkeypatch.setattr(messaging, "publish", lambda key, value, timeout: 1)
    monkeypatch.setattr(messaging, "fetch", lambda key, *arguments: values[key.rpartition("/")[2]])
    return values


def collect() -> Any:
    return EXCHANGE._collect_from(1, 1, {"a": Fingerprint("01", "float32", (2,))}, {})


def test_what_a_worker_has_arrives(said: dict[str, bytes]) -> None:
    found = collect()
    assert found.tensors["a"].array().tolist() == [1, 2]
    assert found.prints == {"a": Fingerprint(HASH, "float32", (2,))}
    assert found.state == {"t": [float("inf")]}


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
def test_a_hello_that_is_none_fails_this_save_and_names_the_worker(said: dict[str, bytes], hello: Any) -> None:
    said["hello"] = hello if isinstance(hello, bytes) else json.dumps(hello).encode()
    with pytest.raises(BackupError, match="worker 1 in save 1: what was published there is not"):
        collect()


@pytest.mark.parametrize(
    "values",
    [b"", b"\xff" * 8, b"\xff" * 100, _pack_message({"state": {}}, {}), _pack_message({"state": [], "sent": []}, {})],
)
def test_values_that_are_none_do_too(said: dict[str, bytes], values: bytes) -> None:
    said["values"] = values
    with pytest.raises(BackupError, match="worker 1 in save 1: what was published there is not"):
        collect()


@pytest.mark.parametrize(
    ("announced", "sent"),
    [
        ([HASH, "float32", [2]], ["b"]),
        (["0" * 32, "float32", [2]], ["a"]),
        ([HASH, "float32", [3]], ["a"]),
        ([HASH, "float32", [-1]], ["a"]),
        ([HASH, "float32", [2**62, 2**62]], ["a"]),
        ([HASH, "no such type", [2]], ["a"]),
        ([HASH, "object", [2]], ["a"]),
        ([HASH, "float32", [2]], ["a", "a"]),
    ],
)
def test_other_tensors_than_announced_do_too(said: dict[str, bytes], announced: list[Any], sent: list[str]) -> None:
    said["hello"] = json.dumps({"tensors": {"a": announced}, "topics": {}}).encode()
    said["values"] = _pack_message({"state": {}, "sent": sent}, {"a": np.float32([1, 2])})
    with pytest.raises(BackupError, match="worker 1 in save 1"):
        collect()
