"""Messages between real processes, and errors that all of them see."""

from __future__ import annotations

import contextlib
import sys

import pytest

from keras_dist_callbacks.base.errors import ClusterError, ClusterTimeoutError, ConfigError, PeerLostError
from keras_dist_callbacks.cluster import messaging, peer_monitor
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.testing.plugin import ClusterFactory


def test_one_worker_talks_to_itself() -> None:
    cluster = Cluster()
    assert cluster.gather(1, "t") == [1]
    assert cluster.broadcast("x", "t") == "x"
    assert cluster.agree(lambda: 3, "t") == 3
    cluster.barrier("t")
    cluster.leave("t")
    with pytest.raises(ZeroDivisionError):
        cluster.agree(lambda: 1 // 0, "t")


_TALK = """
import sys, keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ClusterError
kdc.make_strategy(cluster_options=kdc.ClusterOptions(startup_timeout=60))
cluster = kdc.advanced.Cluster.detect()
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


def test_errors_are_of_builtin_kinds() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ClusterTimeoutError, TimeoutError)
    assert issubclass(ClusterTimeoutError, ClusterError)


@pytest.mark.parametrize("lost", [None, "worker 0 (a:1) has ended"])
def test_a_chief_that_goes_before_it_has_answered_is_no_loss(lost: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes once it has heard the last worker, whose request may still wait for its answer."""

    def closed(key: str, value: bytes, timeout: float) -> int:
        raise PeerLostError("the coordination service has ended (Socket closed)")

    monkeypatch.setattr(messaging, "publish", closed)
    monkeypatch.setattr(messaging, "lost", lambda: lost)
    monkeypatch.setattr(peer_monitor, "monitoring", lambda cluster: contextlib.nullcontext())
    worker = Cluster(worker_index=1, addresses=("a:1", "b:1"))
    with contextlib.nullcontext() if lost is None else pytest.raises(PeerLostError):
        worker.leave("end")
    with pytest.raises(PeerLostError):
        worker.gather(1, "something else")
