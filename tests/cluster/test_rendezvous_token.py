"""Who has the cluster's token is a worker, who has not is a stranger; and workers whose tokens differ get an error."""

from __future__ import annotations

import hashlib
import socket
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import ClusterTimeoutError, ConfigError
from keras_dist_callbacks.cluster import rendezvous
from keras_dist_callbacks.cluster.cluster_token import ClusterToken
from keras_dist_callbacks.cluster.rendezvous import Hello, Reply, decode, encode, prove
from keras_dist_callbacks.testing.plugin import ClusterFactory
from tests.support.cluster_starts import ClusterStarts, is_hung_up, read_all, read_line, serving, starting
from tests.support.processes import worker_processes

ONE, OTHER = (f"{number} secret that nobody can guess" for number in ("first", "second"))
TOKENS = {"none": None, "one": ClusterToken(ONE.encode()), "other": ClusterToken(OTHER.encode())}
NONCE = "a" * 64


def digest(cluster: ClusterStarts) -> str:
    return hashlib.sha256(",".join(cluster.addresses).encode()).hexdigest()


def hello(cluster: ClusterStarts, index: int = 1, *, has_token: bool = True) -> Hello:
    return Hello(digest(cluster), index, NONCE, has_token)


def reply_on(connection: socket.socket) -> Reply:
    return decode(read_line(connection), Reply)


def error_of(start: Future[float]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        start.result(90)
    assert not any(secret in str(caught.value) for secret in (ONE, OTHER))
    assert caught.value.seconds < 30  # type: ignore[attr-defined] # of the 60 that it might have waited
    return caught.value


def test_workers_with_the_same_token_start() -> None:
    with starting(4) as cluster:
        started = [cluster.begin(index, token=TOKENS["one"]) for index in (2, 0, 3, 1)]
        assert all(start.result(90) < 30 for start in started)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    ("chief", "worker", "match"),
    [
        ("one", "none", "has no KDC_CLUSTER_TOKEN, but the chief has one"),
        ("none", "one", "has a KDC_CLUSTER_TOKEN, but the chief has none"),
        ("one", "other", "has another KDC_CLUSTER_TOKEN than the chief"),
    ],
)
def test_a_worker_whose_token_differs_gets_an_error_and_the_chief_names_it(chief: str, worker: str, match: str) -> None:
    with starting(3) as cluster:
        waiting = cluster.begin(0, 4.0, token=TOKENS[chief])
        there = cluster.begin(1, 5.0, token=TOKENS[chief])
        said = str(error_of(cluster.begin(2, token=TOKENS[worker])))
        assert said.startswith(f"worker 2 ({cluster.addresses[2]}) {match}; set the same KDC_CLUSTER_TOKEN")
        named = r"no contact from worker 2 [^,]*127.0.0.1 claims to be worker 2, but .*with the same token"
        with pytest.raises(ClusterTimeoutError, match=named):
            waiting.result(60)
        with pytest.raises(ClusterTimeoutError, match="did not start within 5 s"):
            there.result(60)


def claims(cluster: ClusterStarts, connection: socket.socket, kind: str, index: int = 1) -> None:
    """A stranger who knows all addresses says that it is a worker."""
    connection.sendall(encode(hello(cluster, index, has_token=kind != "has none")))
    if kind == "has none":
        assert reply_on(connection).refusal == "token"
    if kind in {"guesses", "reflects", "is silent"}:
        proof = reply_on(connection).proof
        assert proof
    if kind == "guesses":
        connection.sendall(encode(Reply("0" * 64)))
    if kind == "reflects":
        connection.sendall(encode(Reply(proof)))


CLAIMS = ["has none", "guesses", "reflects", "is silent", "is gone"]


@pytest.mark.in_gate(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", CLAIMS)
def test_a_stranger_who_claims_to_be_a_worker_ends_no_start(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 2.0)
    with starting(2) as cluster:
        chief = cluster.begin(0, token=TOKENS["one"])
        stranger = cluster.call()
        claims(cluster, stranger, kind)
        if kind == "is gone":
            stranger.close()
        else:
            assert is_hung_up(stranger)
        worker = cluster.begin(1, token=TOKENS["one"])
        assert max(chief.result(90), worker.result(90)) < 60


@pytest.mark.chaos
@pytest.mark.slow
def test_strangers_who_say_they_are_workers_are_named_if_the_workers_stay_away() -> None:
    with starting(1 + len(CLAIMS)) as cluster:
        chief = cluster.begin(0, 5.0, token=TOKENS["one"])
        for index, kind in enumerate(CLAIMS, 1):
            claims(cluster, cluster.call(), kind, index)
        with pytest.raises(ClusterTimeoutError, match=r"no contact from worker 1 .*; start all workers") as caught:
            chief.result(60)
        assert caught.value.seconds < 20  # type: ignore[attr-defined]
        for index in range(1, 1 + len(CLAIMS)):
            claim = (
                f"127.0.0.1 claims to be worker {index}, but did not prove that it has the chief's KDC_CLUSTER_TOKEN"
            )
            assert claim in str(caught.value)
        assert "with the same token" in str(caught.value)


def test_what_a_stranger_has_overheard_is_of_no_use() -> None:
    with starting(3) as cluster:
        cluster.begin(0, 30.0, token=TOKENS["one"]).add_done_callback(lambda start: start.exception())
        said = hello(cluster)
        guest = cluster.call(said=encode(said))
        challenge = reply_on(guest)
        assert challenge.proof == prove(TOKENS["one"], "chief", said, challenge.nonce)
        answer = encode(Reply(prove(TOKENS["one"], "worker", said, challenge.nonce)))
        guest.sendall(answer)
        replaying = cluster.call(said=encode(said))
        read_line(replaying)
        replaying.sendall(answer)
        assert is_hung_up(replaying)
        worker = cluster.begin(2, token=TOKENS["one"])
        go = reply_on(guest)  # it is still the worker that has proven itself
        assert go == Reply(prove(TOKENS["one"], "go", said, challenge.nonce))
        assert worker.result(60) < 30
        guest.close()


def test_a_worker_with_a_token_proves_nothing_to_an_impostor() -> None:
    heard: list[bytes] = []

    def impostor(connection: socket.socket) -> None:
        heard.append(read_line(connection))
        connection.sendall(encode(Reply("0" * 64, NONCE)))
        heard.append(read_line(connection))
        connection.sendall(encode(Reply("0" * 64)))
        heard.append(read_all(connection))

    with starting(2) as cluster, serving(cluster.addresses[0], impostor):
        error = error_of(cluster.begin(1, token=TOKENS["one"]))
    assert "has another KDC_CLUSTER_TOKEN than the chief" in str(error)
    assert b"proof" not in b"".join(heard)
    assert ONE.encode() not in b"".join(heard)


@pytest.mark.slow
def test_a_worker_with_a_token_starts_for_no_one_without_it() -> None:
    """Such as who has cut in after the chief's proof."""

    def impostor(connection: socket.socket) -> None:
        said = decode(read_line(connection), Hello)
        proof = prove(TOKENS["one"], "chief", said, NONCE)
        connection.sendall(encode(Reply(proof, NONCE)))
        read_line(connection)
        connection.sendall(encode(Reply(proof)))
        read_all(connection)

    refused = pytest.raises(ClusterTimeoutError, match="its message is not one of a chief of this version")
    with starting(2) as cluster, serving(cluster.addresses[0], impostor), refused:
        cluster.begin(1, 2.0, token=TOKENS["one"]).result(60)


PROGRAM = """
import json, os, sys
import keras_dist_callbacks as kdc
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
mine = sys.argv[1:][worker]
assert os.environ["KDC_CLUSTER_TOKEN"] == "of the environment, for all"
os.environ["KDC_CLUSTER_TOKEN"] = mine
if not mine:
    del os.environ["KDC_CLUSTER_TOKEN"]
kdc.make_strategy(cluster_options=kdc.ClusterOptions(startup_timeout=float(os.environ.get("SECONDS", 60))))
print(kdc.advanced.Cluster.detect().gather(worker, "who is there"))
kdc.advanced.Cluster.detect().leave("end")
"""


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.parametrize("preload", [False, True])
def test_processes_with_one_token_join(tmp_path: Path, preload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDC_CLUSTER_TOKEN", "of the environment, for all")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with worker_processes([sys.executable, str(script), ONE, ONE], 2, tmp_path / "logs", preload=preload) as cluster:
        cluster.start()
        assert cluster.wait(150) == [0, 0], cluster.tails()
        assert "[0, 1]" in cluster.log(0)
        assert ONE not in cluster.tails()


@pytest.mark.chaos
@pytest.mark.cluster
def test_processes_whose_tokens_differ_end_with_the_reason(local_cluster: ClusterFactory, tmp_path: Path) -> None:
    tokens = (ONE, OTHER)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    cluster = local_cluster(
        [sys.executable, str(script), *tokens],
        preload=True,
        env={"KDC_CLUSTER_TOKEN": "of the environment, for all", "SECONDS": "15"},
        grace=60.0,
    )
    cluster.start()
    assert cluster.wait(150) == [1, 1], cluster.tails()
    assert "ClusterTimeoutError: chief 127.0.0.1" in cluster.log(0)
    assert "127.0.0.1 claims to be worker 1, but did not prove" in cluster.log(0)
    assert "ConfigError: worker 1 (127.0.0.1" in cluster.log(1)
    assert not any(token in cluster.tails() for token in tokens)
