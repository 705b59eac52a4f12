"""A copy of a callback is a new one with the same arguments, by whatever way and at whatever moment it is made."""

from __future__ import annotations

import copy
import datetime
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.run.engine.committer import EngineOptions
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.callback_helpers import ignore_keras_warnings
from tests.support.grouped import grouped

pytestmark = [pytest.mark.slow, ignore_keras_warnings]  # complete fits


def by_epoch(epoch: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data()).shuffle(tiny.ROWS, seed=epoch).batch(tiny.BATCH)


def backup(directory: Path) -> keras.callbacks.Callback:
    retry = kdc.RetryPolicy(total_seconds=5)
    more = {"retry": retry, "max_failed_saves": None, "notice": kdc.gce_notice("http://127.0.0.1:9"), "verbose": 0}
    often = datetime.timedelta(minutes=9)
    signals = ["SIGUSR1", 15]
    more |= {"save_before_preemption": False, "signals": signals, "storage_options": {"auto_mkdir": True}}
    return kdc.BackupAndRestore(
        directory / "backup",
        often,
        delete_checkpoint=False,
        **grouped(**more),
    )


def checkpoint(directory: Path) -> keras.callbacks.Callback:
    best = {"monitor": "accuracy", "mode": "max", "save_best_only": True, "initial_value_threshold": 0.1}
    return kdc.ModelCheckpoint(directory / "best-{epoch}.weights.h5", save_weights_only=True, max_to_keep=2, **best)


def board(directory: Path) -> keras.callbacks.Callback:
    return kdc.TensorBoard(directory / "tb", 0, False, update_freq=2, worker_log_dir=directory / "more")


TABLE: dict[str, Callable[[Path], keras.callbacks.Callback]] = {
    "BackupAndRestore": backup,
    "ChiefOnly": lambda directory: kdc.ChiefOnly(keras.callbacks.TerminateOnNaN()),
    "EpochDataset": lambda directory: kdc.EpochDataset(by_epoch),
    "ModelCheckpoint": checkpoint,
    "PrintLR": lambda directory: kdc.PrintLR(2, log_to_tensorboard=True),
    "TensorBoard": board,
}


def by_cloudpickle(given: Any) -> Any:
    cloudpickle = pytest.importorskip("cloudpickle")
    return cloudpickle.loads(cloudpickle.dumps(given))


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda given: pickle.loads(pickle.dumps(given)),  # noqa: S301 - our own
    "cloudpickle": by_cloudpickle,
}


OPTIONS = (Storage, EngineOptions, kdc.WriteOptions, kdc.ShutdownOptions)


class CopyWithin(keras.callbacks.Callback):
    """Copies another callback in the middle of an epoch."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.make = make
        self.made: dict[str, Any] = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.made = self.make()


kdc.advanced.register_callback_state(CopyWithin, None)  # what it makes are callbacks, which no backup holds


def looks(callback: Any) -> dict[str, Any]:
    """All that can be compared of what a callback is."""
    plain = (str, int, float, bool, type(None), tuple, list, dict, datetime.timedelta, *OPTIONS)
    found = {name: value for name, value in vars(callback).items() if isinstance(value, plain)}
    return {"type": type(callback), "model": callback.model, **found}


def test_the_table_has_every_public_callback() -> None:
    public = {name for name in kdc.__all__ if isinstance(getattr(kdc, name), type)}
    assert {name for name in public if issubclass(getattr(kdc, name), keras.callbacks.Callback)} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.in_gate(3)
def test_a_copy_is_new_and_has_the_arguments_of_the_original(tmp_path: Path, name: str) -> None:
    original = TABLE[name](tmp_path)
    expected = looks(TABLE[name](tmp_path))
    made = {f"fresh, by {way}": do(original) for way, do in WAYS.items()}
    within = CopyWithin(lambda: {f"in a fit, by {way}": do(original) for way, do in WAYS.items()})
    more = [kdc.TensorBoard(tmp_path / "board")] if name == "PrintLR" else []
    tiny.fit(tiny.model(), None, [*more, original, within], epochs=1, x=by_epoch(0))
    made |= within.made | {f"after a fit, by {way}": do(original) for way, do in WAYS.items()}
    for how, callback in made.items():
        assert callback is not original, how
        assert looks(callback) == expected, how
    tiny.fit(tiny.model(), None, [*more, made["in a fit, by pickle"]], epochs=2, x=by_epoch(0))


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_the_copy_of_a_used_callback_continues_from_its_backup(tmp_path: Path, way: str) -> None:
    reference = tiny.model()
    expected = tiny.fit(reference, None)
    options = {"save_freq": 2, "when_busy": "wait", "save_on_exception": False, "delete_checkpoint": False}
    used = [kdc.PrintLR(3), kdc.BackupAndRestore(tmp_path, **grouped(**options))]
    tiny.stopped(tiny.fit, tiny.model(), None, [*used, tiny.StopAt(1, 3)])
    copies = WAYS[way](used)
    model = tiny.model()
    history = tiny.fit(model, None, copies)
    assert copies[1].restored.verdict == "exact"
    assert used[1].restored is None
    assert history.history == expected.history
    tiny.assert_same(model, reference)


@pytest.mark.parametrize("way", ["copy", "deepcopy", "cloudpickle"])
def test_a_function_without_a_name_is_copied_by_all_who_can(tmp_path: Path, way: str) -> None:
    calls: list[int] = []
    callback = kdc.BackupAndRestore(tmp_path, shutdown_options=kdc.ShutdownOptions(notice=lambda: bool(calls)))
    assert WAYS[way](callback)._shutdown.notice() is False
    assert WAYS[way](kdc.EpochDataset(lambda epoch: epoch + 1)).fn(1) == 2


@pytest.mark.parametrize("name", ["BackupAndRestore", "EpochDataset", "ModelCheckpoint"])
def test_pickle_itself_says_that_it_takes_no_function_without_a_name(tmp_path: Path, name: str) -> None:
    made = {
        "BackupAndRestore": lambda: kdc.BackupAndRestore(
            tmp_path, shutdown_options=kdc.ShutdownOptions(notice=lambda: False)
        ),
        "EpochDataset": lambda: kdc.EpochDataset(lambda epoch: by_epoch(epoch)),
        "ModelCheckpoint": lambda: kdc.ModelCheckpoint("memory://m/m.keras", storage_options={"ask": lambda: "me"}),
    }[name]()
    assert type(copy.deepcopy(made)) is type(made)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(made)


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle"])
def test_a_checkpointer_says_why_it_cannot_be_copied(tmp_path: Path, way: str) -> None:
    model = tiny.model()
    checkpointer = kdc.Checkpointer(tmp_path, model=model, shutdown_options=kdc.ShutdownOptions(notice=lambda: False))
    with pytest.raises(
        TypeError, match=r"a Checkpointer can be neither copied nor pickled: .*in the process that trains"
    ):
        WAYS[way](checkpointer)


@pytest.mark.parametrize("notice", [kdc.gce_notice, kdc.aws_notice])
def test_the_notices_of_clouds_can_be_pickled(notice: Callable[[str], Any]) -> None:
    given = notice("http://127.0.0.1:9")
    made = WAYS["pickle"](given)
    assert (made.base, made.__name__) == (given.base, given.__name__)
    with pytest.raises(OSError, match="refused"):
        made()


class Named(kdc.ModelCheckpoint):
    """A user's own, with a constructor of its own."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        super().__init__(directory / "named-{epoch}.keras", max_to_keep=keep)
        self.directory = directory


@pytest.mark.parametrize("way", WAYS)
def test_a_class_of_the_users_is_made_by_its_own_constructor(tmp_path: Path, way: str) -> None:
    made = WAYS[way](Named(tmp_path, keep=4))
    assert (type(made), made.directory, made.max_to_keep) == (Named, tmp_path, 4)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_given_counts_as_it_was_then(tmp_path: Path, way: str) -> None:
    options, signals = {"auto_mkdir": True}, ["SIGUSR1"]
    callback = kdc.BackupAndRestore(
        tmp_path, storage_options=options, shutdown_options=kdc.ShutdownOptions(signals=signals)
    )
    options["no such option"] = True
    signals.append("no such signal")
    assert WAYS[way](callback)._shutdown.signals == ("SIGUSR1",)


def test_two_copies_in_one_deep_copy_stay_one(tmp_path: Path) -> None:
    callback = checkpoint(tmp_path)
    first, second = copy.deepcopy([callback, callback])
    assert first is second
    assert first is not callback


@pytest.mark.parametrize("name", TABLE)
def test_help_shows_the_arguments_still(name: str) -> None:
    signature = inspect.signature(getattr(kdc, name))
    assert signature == inspect.signature(getattr(kdc, name).__init__).replace(
        parameters=[p for p in inspect.signature(getattr(kdc, name).__init__).parameters.values() if p.name != "self"],
        return_annotation=signature.return_annotation,
    )
