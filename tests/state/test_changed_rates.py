"""A learning rate that is another one in the run that resumes: which is in force, from when, and who sets it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from tests.support import tiny
from tests.support.cli_backups import kdc_json

pytestmark = pytest.mark.slow

OLD, NEW = 0.125, 0.25  # float32 has them exactly
FROM_TO = "the learning rate that the script sets before training changed from 0.125 to 0.25, and that of the backup, "


class SetAtBegin(keras.callbacks.Callback):
    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = NEW


class NoteRates(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate))


kdc.advanced.register_callback_state(NoteRates, None)
kdc.advanced.register_callback_state(SetAtBegin, None)


def compiled(rate: float) -> keras.Model:
    return tiny.model(optimizer=keras.optimizers.SGD(rate))


def scheduler(rate: float = NEW) -> Any:
    return keras.callbacks.LearningRateScheduler(lambda epoch: rate)


def resumed(directory: Path, built: keras.Model, callbacks: list[Any]) -> tuple[str, list[float]]:
    """Returns what is said of rates, and the rates that the steps were trained with."""
    noted = NoteRates()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tiny.fit(built, directory, [*callbacks, noted])
    parts = [part for warning in told for part in str(warning.message).split("; ") if "rate" in part.lower()]
    return "; ".join(parts), noted.rates


@pytest.mark.in_gate(3)
@pytest.mark.parametrize(
    ("stop", "save_freq", "make", "said", "rates"),
    [
        ((1, 2), 1, lambda: (NEW, []), "0.125, stays in force; to set the new one, add keras", [OLD] * 8),
        pytest.param(
            (1, 2),
            1,
            lambda: (NEW, [keras.callbacks.ReduceLROnPlateau("loss", patience=9)]),
            "0.25), which sets it in each epoch, in the place of a ReduceLROnPlateau",
            [OLD] * 8,
            marks=pytest.mark.finds("rate-kept"),
        ),
        pytest.param(
            (1, 2),
            1,
            lambda: (NEW, [scheduler()]),
            "0.125, is in force until LearningRateScheduler sets one, from epoch 3 on",
            [OLD] * 3 + [NEW] * 5,
            marks=pytest.mark.finds("rate-scheduled"),
        ),
        pytest.param(
            (1, 2),
            "epoch",
            lambda: (NEW, [scheduler()]),
            "0.125, is in force until LearningRateScheduler sets one, from epoch 2 on",
            [NEW] * 10,
            marks=pytest.mark.finds("rate-scheduled"),
        ),
        ((1, 2), 1, lambda: (OLD, [SetAtBegin()]), "0.125, stays in force; to set the new one, add", [OLD] * 8),
    ],
    ids=["no scheduler", "plateau", "scheduler, within", "scheduler, between", "on_train_begin"],
)
def test_the_rate_in_force_is_named_with_the_time_that_it_is(
    tmp_path: Path, stop: tuple[int, int], save_freq: Any, make: Any, said: str, rates: list[float]
) -> None:
    tiny.interrupt(tmp_path, *stop, save_freq=save_freq, built=compiled(OLD))
    rate, callbacks = make()
    told, trained = resumed(tmp_path, compiled(rate), callbacks)
    assert FROM_TO in told
    assert said in told
    assert trained == rates
    assert ("add keras.callbacks.LearningRateScheduler" in told) == (said.find("Scheduler sets") < 0)


@pytest.mark.finds("rate-kept")
def test_what_on_train_begin_sets_is_named_for_a_model_of_a_checkpoint_too(tmp_path: Path) -> None:
    files = tmp_path / "checkpoints"
    tiny.fit(compiled(OLD), None, [kdc.ModelCheckpoint(files / "{epoch}.keras")], epochs=1)
    restored = kdc.make_or_restore_model(lambda: compiled(OLD), files)
    tiny.interrupt(tmp_path / "backup", 1, 2, built=restored)
    again = kdc.make_or_restore_model(lambda: compiled(OLD), files)
    told, trained = resumed(tmp_path / "backup", again, [SetAtBegin()])
    assert FROM_TO in told
    assert set(trained) == {OLD}


def test_a_rate_that_is_the_same_in_both_runs_is_not_mentioned(tmp_path: Path) -> None:
    halves = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    tiny.interrupt(tmp_path, 1, 2, built=compiled(OLD), callbacks=[SetAtBegin(), halves])
    told, trained = resumed(tmp_path, compiled(OLD), [SetAtBegin(), halves])
    assert "learning rate" not in told
    assert trained == [NEW / 4] * 3 + [NEW / 8] * 5


def _loop(directory: Path, rate: float, stop: int | None = None, *, after: float | None = None) -> list[float]:
    model, optimizer = tiny.model(), keras.optimizers.SGD(rate)
    optimizer.build(model.trainable_variables)
    rates = []
    with kdc.Checkpointer(
        directory,
        model=model,
        optimizer=optimizer,
        save_freq=1,
        delete_checkpoint=False,
        write_options=kdc.WriteOptions(when_busy="wait"),
    ) as checkpointer:
        checkpointer.restore()
        if after is not None:
            optimizer.learning_rate = after
        for _ in checkpointer.epochs(2):
            for _ in checkpointer.batches(range(3)):
                if len(rates) == stop:
                    raise tiny.Stop
                rates.append(float(optimizer.learning_rate))
                checkpointer.step()
    return rates


@pytest.mark.finds("rate-kept-in-loop")
def test_a_loop_names_the_rate_in_force_and_how_to_set_the_new_one(tmp_path: Path) -> None:
    tiny.stopped(_loop, tmp_path, OLD, 1)
    with pytest.raises(tiny.Stop), pytest.warns(RuntimeWarning) as told:
        _loop(tmp_path, NEW, 1)
    assert f"{FROM_TO}0.125, stays in force; to set the new one, assign optimizer.learning_rate = 0.25 after" in str(
        told[0].message
    )
    assert _loop(tmp_path, OLD, after=NEW) == [NEW] * 4
    assert kdc_json("ls", tmp_path)["commits"]


def test_a_loop_of_the_same_rate_says_nothing_of_it(tmp_path: Path) -> None:
    tiny.stopped(_loop, tmp_path, OLD, 1)
    assert _loop(tmp_path, OLD) == [OLD] * 5
