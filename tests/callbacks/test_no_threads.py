"""No thread can be started, or what a thread writes fails after its fit() was left: whose business that is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, StorageError
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.callback_helpers import SetLoss, fit, ignore_keras_warnings, memory_url, tiny_model
from tests.support.checkpoints import listed
from tests.support.leftovers import leftovers
from tests.support.no_threads import refused

pytestmark = [ignore_keras_warnings, pytest.mark.slow]  # complete fits

NO_THREAD = r"failed and training continues.*: no thread can be started to write it \(can't start new thread\): raise"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


@pytest.mark.parametrize("without", [{2}, {2, 3}])
def test_a_file_for_which_there_is_no_thread_is_a_warning_and_is_tried_again(
    tmp_path: Path, temporary: Path, without: set[int]
) -> None:
    checkpoint = kdc.ModelCheckpoint(tmp_path / "out" / "{epoch}.keras", "loss", save_best_only=True)
    with pytest.warns(RuntimeWarning, match=f"saving .*2.keras {NO_THREAD}"), refused(lambda number: number in without):
        fit(tiny_model(), SetLoss(3.0, 1.0, 2.0), checkpoint, epochs=3)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.keras")) == ["1.keras", "2.keras"]
    assert checkpoint.best == 1.0
    assert leftovers(temporary) == []


def test_a_backup_for_which_there_is_no_thread_fails_and_training_continues(tmp_path: Path, uninterrupted: Any) -> None:
    model = tiny.model()
    with pytest.warns(RuntimeWarning, match=f"the backup at .* {NO_THREAD}"), refused(lambda number: 3 < number < 7):
        tiny.fit(model, tmp_path)
    tiny.assert_same(model, uninterrupted[0])


def test_backups_for_which_there_is_never_a_thread_end_training_with_the_reason(tmp_path: Path) -> None:
    last = "2 backups failed in a row, the last one: no thread can be started"
    only_for_signals = refused(lambda number: number > 1)
    with pytest.warns(RuntimeWarning, match=NO_THREAD), only_for_signals, pytest.raises(BackupError, match=last):
        tiny.fit(tiny.model(), tmp_path, options={"max_failed_saves": 2})


@pytest.mark.in_gate(4)
@pytest.mark.parametrize("nth", range(1, 24))
@pytest.mark.filterwarnings("ignore:.*can't start new thread")
@pytest.mark.filterwarnings("ignore:the final backup failed")
@pytest.mark.filterwarnings("ignore:an earlier fit.. of this process had the backup_dir")
def test_whichever_thread_cannot_be_started_nothing_hangs_and_the_next_fit_is_whole(tmp_path: Path, nth: int) -> None:
    url = memory_url()
    callbacks = [
        kdc.ModelCheckpoint(f"{url}/files/{{epoch}}.keras"),
        kdc.TensorBoard(f"{url}/logs", sync_seconds=1e-9),
        kdc.BackupAndRestore(
            f"{url}/backup", save_freq=2, verbose=0, shutdown_options=kdc.ShutdownOptions(notice=tmp_path / "notice")
        ),
    ]
    with refused(lambda number: number == nth), contextlib.suppress(RuntimeError):  # before the first step
        fit(tiny_model(), *callbacks, epochs=2)
    model = tiny_model()
    fit(model, *callbacks, epochs=2)
    assert [one.name for one in listed(f"{url}/files").checkpoints] == ["2.keras", "1.keras"]
    assert int(model.optimizer.iterations) == 6


class Held(contextlib.ExitStack):
    """Lets writes to one directory wait until they are let go, and fail then."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.go_on, replace = threading.Event(), Storage.replace
        self.callback(self.go_on.set)

        def fail(storage: Storage, name: str, source: Path) -> None:
            if Path(storage.root) != directory:
                return replace(storage, name, source)
            self.go_on.wait(30)
            raise StorageError(f"cannot write {name}: the store is down")

        monkeypatch.setattr(Storage, "replace", fail)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    with Held(tmp_path / "one", monkeypatch) as made:
        yield made


class Raise(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise KeyError("the user's own")


def test_a_write_that_fails_after_its_fit_was_left_is_a_warning_and_ends_no_other(tmp_path: Path, held: Held) -> None:
    first, second = (kdc.ModelCheckpoint(tmp_path / place / "{epoch}.keras") for place in ("one", "two"))
    with pytest.raises(KeyError, match="the user's own"):
        fit(tiny_model(), first, Raise())
    held.go_on.set()
    with pytest.warns(RuntimeWarning, match=r"a write of an earlier fit\(\) failed: cannot write 1.keras"):
        shared_writer().wait()
    fit(tiny_model(), second, epochs=2)
    assert len(list((tmp_path / "two").glob("*.keras"))) == 2


def test_a_write_that_failed_just_before_its_fit_was_left_is_reported_by_the_next(tmp_path: Path, held: Held) -> None:
    class RaiseThen(Raise):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            held.go_on.set()
            shared_writer().wait()
            super().on_epoch_end(epoch, logs)

    with pytest.raises(KeyError, match="the user's own"):
        fit(tiny_model(), kdc.ModelCheckpoint(tmp_path / "one" / "{epoch}.keras"), RaiseThen())
    with pytest.warns(RuntimeWarning, match=r"a write of an earlier fit\(\) failed: cannot write 1.keras"):
        fit(tiny_model(), kdc.ModelCheckpoint(tmp_path / "two" / "{epoch}.keras"))


@pytest.mark.parametrize("backs_up", [False, True])
def test_a_write_that_fails_is_a_warning_in_its_own_fit_and_not_in_one_within_it(
    tmp_path: Path, held: Held, backs_up: bool
) -> None:
    inner: list[Any] = []

    class Fit(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch:
                return
            held.go_on.set()
            place = tmp_path / "two"
            more = [kdc.BackupAndRestore(place / "backup", verbose=0)] if backs_up else []
            inner.append(fit(tiny_model(), kdc.ModelCheckpoint(place / "{epoch}.keras"), *more, epochs=2))

    with (
        pytest.warns(RuntimeWarning, match=r"\d\.keras failed and training continues"),
        pytest.raises(StorageError, match=r"cannot write 3\.keras: the store is down"),
    ):
        fit(tiny_model(), kdc.ModelCheckpoint(tmp_path / "one" / "{epoch}.keras"), Fit(), epochs=3)
    assert [history.epoch for history in inner] == [[0, 1]]
