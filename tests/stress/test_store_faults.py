"""Stores that fail while a fit() is saving: training continues, saves are good again, and nothing torn is taken."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupError
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage import retry
from keras_dist_callbacks.storage import storage as storage_module
from keras_dist_callbacks.storage.retry import RetryPolicy
from tests.support import tiny
from tests.support.stores.fixtures import REMOTE, Place, Stores
from tests.support.stores.proxy import FaultProxy, anything, uploads

Run = tuple[keras.Model, dict[str, list[float]]]
PATIENT = RetryPolicy(total_seconds=20, initial_wait=0.05, max_wait=0.3, request_seconds=1.5)

pytestmark = [pytest.mark.process, pytest.mark.slow]
FAULTS: dict[str, Callable[[FaultProxy], Any]] = {
    "server error": lambda proxy: proxy.arm("status", uploads, status=503, times=3, after=1),
    "internal error of every kind of request": lambda proxy: proxy.arm("status", anything, status=500, times=5),
    "throttling": lambda proxy: proxy.arm("status", anything, status=429, times=3, after=2),
    "reset in the middle of an upload": lambda proxy: proxy.arm("reset", uploads, times=2),
    "reset of the manifest": lambda proxy: proxy.arm("reset", uploads, times=2, after=1),
    "lost answer of a blob": lambda proxy: proxy.arm("lose", uploads),
    "lost answer of the manifest": lambda proxy: proxy.arm("lose", uploads, after=1),
    "lost answer of a deletion": lambda proxy: proxy.arm("lose", lambda r: r.method == "DELETE"),
    "hang of an upload": lambda proxy: proxy.arm("hang", uploads, after=1),
    "hang of a listing": lambda proxy: proxy.arm("hang", lambda r: r.method == "GET"),
    "away for two seconds": lambda proxy: proxy.arm("down", anything, seconds=2.0),
    "slow link": lambda proxy: setattr(proxy, "bytes_per_second", 100_000),
}
DEFAULT = {
    ("gs", "reset in the middle of an upload"),
    ("gs", "hang of an upload"),
    ("gs", "lost answer of the manifest"),
    ("s3", "away for two seconds"),
    ("s3", "lost answer of a blob"),
    ("s3", "server error"),
    ("az", "throttling"),
    ("az", "hang of a listing"),
    ("az", "slow link"),
}
CELLS = [
    pytest.param(kind, fault, marks=() if (kind, fault) in DEFAULT else pytest.mark.chaos)
    for kind in REMOTE
    for fault in FAULTS
]


class ActionAt(keras.callbacks.Callback):
    """Does something before a batch is trained, once what came before it is saved."""

    def __init__(self, epoch: int, batch: int, action: Callable[[], Any]) -> None:
        super().__init__()
        self.where, self.action, self.epoch = (epoch, batch), action, -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.where:
            shared_writer().wait()
            self.action()


kdc.advanced.register_callback_state(ActionAt, None)


def impatient_once_down(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> RetryPolicy:
    """Gives up soon on a store that is away, and waits for one that is slow because the machine is busy."""
    monkeypatch.setattr(retry, "request_time", lambda policy, size: 1.5 if proxy.is_down else 30.0)
    return RetryPolicy(total_seconds=0.4, initial_wait=0.05, max_wait=0.1)


def interrupt(place: Place, epoch: int, batch: int, callbacks: list[Any], options: dict[str, Any]) -> None:
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), place.url, [*callbacks, tiny.StopAt(epoch, batch)], options=options)


def every_commit_is_whole(place: Place) -> int:
    store = BackupStore(place.open())
    commits = store.commits()
    for commit in commits:
        store.verify(store.manifest(commit))
    return len(commits)


@pytest.fixture
def away(stores: Stores, tmp_path: Any, request: pytest.FixtureRequest) -> Any:
    """A store and the network before it."""
    place = stores.place(request.param, tmp_path)
    assert place.server is not None
    proxy = FaultProxy(place.server.port)
    yield place, proxy
    proxy.close()


@pytest.mark.parametrize(("away", "fault"), CELLS, indirect=["away"])
@pytest.mark.in_gate(1)
def test_a_fault_that_passes_costs_nothing_but_time(
    away: tuple[Place, FaultProxy], fault: str, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, proxy = away
    monkeypatch.setattr(storage_module, "DEFAULT_RETRY", PATIENT)
    options = {"storage_options": place.through(proxy).options, "retry": PATIENT}
    armed: list[Any] = []
    began = time.monotonic()
    strike = ActionAt(1, 1, lambda: armed.append(FAULTS[fault](proxy)))
    interrupt(place, 2, 1, [strike], options)
    assert shared_writer().wait(30)
    assert time.monotonic() - began < 60
    assert len(armed) == 1
    assert all(f is None or f.struck for f in armed)
    proxy.heal()
    assert every_commit_is_whole(place) >= 1
    resumed, steps = tiny.model(), tiny.CountSteps()
    tiny.fit(resumed, place.url, [steps], options={"storage_options": place.options, "retry": PATIENT})
    assert steps.trained[0] == (2, 1)  # the last save before the interruption, long after the fault, was good
    tiny.assert_same(resumed, uninterrupted[0])


@pytest.mark.chaos
@pytest.mark.parametrize("away", REMOTE, indirect=True)
def test_a_store_that_is_long_away_costs_backups_and_no_training(
    away: tuple[Place, FaultProxy], uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, proxy = away
    options = {"storage_options": place.through(proxy).options, "retry": impatient_once_down(proxy, monkeypatch)}
    breaks = [ActionAt(1, 1, proxy.take_down), ActionAt(1, 3, proxy.heal)]
    began = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"backup at .* failed and training continues: cannot list"):
        interrupt(place, 2, 2, breaks, options)
    shared_writer().wait()
    assert time.monotonic() - began < 40
    monkeypatch.setattr(storage_module, "DEFAULT_RETRY", PATIENT)
    assert every_commit_is_whole(place) >= 1
    resumed, steps = tiny.model(), tiny.CountSteps()
    tiny.fit(resumed, place.url, [steps], options={"storage_options": place.options, "retry": PATIENT})
    assert steps.trained[0] == (2, 2)
    tiny.assert_same(resumed, uninterrupted[0])


@pytest.mark.chaos
@pytest.mark.parametrize("away", REMOTE, indirect=True)
def test_too_many_failed_saves_end_training_with_their_reason(
    away: tuple[Place, FaultProxy], uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, proxy = away
    options = {"storage_options": place.through(proxy).options, "max_failed_saves": 2}
    options["retry"] = impatient_once_down(proxy, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the first failure
        with pytest.raises(BackupError, match=r"2 backups failed in a row.*cannot list .*check the network"):
            tiny.fit(tiny.model(), place.url, [ActionAt(1, 1, proxy.take_down)], options=options)
        shared_writer().finish_earlier()  # a save that was handed over before the second failure was known
    monkeypatch.setattr(storage_module, "DEFAULT_RETRY", PATIENT)
    resumed, steps = tiny.model(), tiny.CountSteps()
    tiny.fit(resumed, place.url, [steps], options={"storage_options": place.options, "retry": PATIENT})
    assert steps.trained[0] == (1, 1)
    tiny.assert_same(resumed, uninterrupted[0])
