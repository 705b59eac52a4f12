"""Who is lost is found out from what the coordination service says, here in its place; and who is only slow is not."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator

import pytest

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks.base.errors import ConfigError, PeerLostError
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.cluster import messaging, peer_monitor
from keras_dist_callbacks.cluster.cluster import Cluster
from tests.support.no_threads import refused

ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2")
CHIEF, WORKER = (Cluster("worker", index, index, ADDRESSES) for index in range(2))


class Service:
    """A key-value store that may be slow."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.lost: list[tuple[str, int]] = []
        self.frozen = False

    def get_value(self, key: str, timeout_ms: int) -> str | None:
        deadline = time.monotonic() + timeout_ms / 1000
        while key not in self.values and time.monotonic() < deadline:
            time.sleep(0.01)
        return None if self.frozen else self.values.get(key)

    def set_value(self, key: str, value: str) -> None:
        while self.frozen:
            time.sleep(0.01)
        self.values[key] = value

    def set_once(self, key: str, value: str) -> bool:
        self.set_value(key, self.values.get(key, value))
        return True

    def lost_tasks(self, jobs: object) -> list[tuple[str, int]]:
        return self.lost

    def report_error(self, text: str) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service()
    for name in ("get_value", "set_value", "set_once", "lost_tasks", "report_error"):
        monkeypatch.setattr(coordination, name, getattr(made, name))
    monkeypatch.setattr(shared(messaging.Peers), "lost", None)
    monkeypatch.setattr(shared(messaging.Peers), "heartbeat_timeout", 1.0)
    monkeypatch.setattr(peer_monitor, "_POLL_SECONDS", 0.1)
    monkeypatch.setattr(peer_monitor, "_port_error", lambda address: None)
    yield made
    made.frozen = False
    thread = next(iter(shared(peer_monitor.PeerMonitor).threads), None)
    if thread is not None:
        thread.join(10)
    assert shared(peer_monitor.PeerMonitor).count == 0
    assert shared(peer_monitor.PeerMonitor).threads == []


def until(what: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_worker_that_the_service_has_given_up_ends_a_wait_of_the_chief(service: Service) -> None:
    service.lost = [("worker", 1)]
    with pytest.raises(PeerLostError, match=r"worker 1 \(127.0.0.1:2\) sends no heartbeats"):
        CHIEF.gather(None, "something", 60.0)
    assert "lost: worker 1" in service.values[peer_monitor.KEY]  # the others hear of it


@pytest.mark.slow
def test_a_chief_that_is_frozen_ends_a_wait_of_a_worker(service: Service) -> None:
    service.frozen = True
    with pytest.raises(PeerLostError, match=r"the chief \(127.0.0.1:1\) does not answer: it is frozen or disconnected"):
        WORKER.gather(None, "something", 60.0)


def test_what_one_worker_has_said_ends_the_waits_of_the_others_and_not_its_own(service: Service) -> None:
    peer_monitor.announce_exit(WORKER, ValueError("a bug"))
    with peer_monitor.monitoring(WORKER):
        assert until(lambda: not shared(peer_monitor.PeerMonitor).threads)
    assert messaging.lost() is None
    with pytest.raises(PeerLostError, match=r"worker 1 .* reported that it ended with ValueError: a bug"):
        CHIEF.gather(None, "something", 60.0)


@pytest.mark.chaos
@pytest.mark.slow
def test_a_process_that_stood_still_takes_no_one_for_lost(service: Service) -> None:
    """Its requests look as if they had no answer, because it did not look for one."""
    heard: list[int] = []
    peer_monitor.begin(WORKER, lambda: heard.append(1))
    try:
        for _ in range(4):
            ctypes.PyDLL(None).usleep(2_500_000)  # with the GIL held, for longer than heartbeats may stay away
            time.sleep(0.3)
    finally:
        peer_monitor.end(shared(peer_monitor.PeerMonitor).listeners[0])
    assert heard == []
    assert messaging.lost() is None


def test_no_one_watches_when_nothing_waits_or_trains(service: Service) -> None:
    heard: list[int] = []
    listener = lambda: heard.append(1)  # noqa: E731 - the same object is taken away
    peer_monitor.begin(CHIEF, listener)
    thread = shared(peer_monitor.PeerMonitor).threads[0]
    peer_monitor.end(listener)
    service.lost = [("worker", 1)]  # it has ended, as it should
    thread.join(10)
    assert not thread.is_alive()
    assert (heard, messaging.lost(), service.values) == ([], None, {})


def test_workers_that_make_different_collective_calls_get_an_error(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    messaging.publish("said", b'{"tag": "another thing", "value": null}', 10.0)
    monkeypatch.setattr(coordination, "get_value", lambda key, timeout_ms: service.values.get(f"said{key[-2:]}"))
    with pytest.raises(ConfigError, match="'one thing' on worker 0, 'another thing' on worker 1"):
        CHIEF.gather(None, "one thing", 10.0)


def test_a_run_for_which_no_thread_can_be_started_leaves_the_next_one_watched(service: Service) -> None:
    with refused(), pytest.raises(RuntimeError, match="can't start new thread"), peer_monitor.monitoring(CHIEF):
        pass
    with peer_monitor.monitoring(CHIEF):
        assert shared(peer_monitor.PeerMonitor).threads[0].is_alive()


def test_a_request_for_which_no_thread_can_be_started_is_made_all_the_same() -> None:
    with refused():
        assert messaging.call_with_timeout(lambda: 7, 1.0, "asking") == 7
        with pytest.raises(ValueError, match="refused"):
            messaging.call_with_timeout(lambda: int("refused"), 1.0, "asking")
