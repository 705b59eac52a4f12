"""A fit() under a plan: shortened as training would be, saved often, killed at one place, and recorded."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.cli.rehearsal.comparison import first_difference, missing_positions
from keras_dist_callbacks.run.engine import writer
from tests.support import files, tiny
from tests.support.rehearsals import Killed, backups, events, rehearsing

pytestmark = [
    pytest.mark.slow,  # whole fits
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]


def validation() -> Any:
    return tf.data.Dataset.from_tensor_slices(tiny.data()).shuffle(tiny.ROWS, seed=5).batch(tiny.BATCH)


def fit(place: Path, x: Any = None, **arguments: Any) -> tuple[tiny.CountSteps, keras.callbacks.History]:
    counter = tiny.CountSteps()
    every = [counter, *arguments.pop("callbacks", ()), kdc.BackupAndRestore(place / "real", save_freq=50)]
    history = tiny.model().fit(
        tiny.shuffled() if x is None else x, epochs=arguments.pop("epochs", 5), verbose=0, callbacks=every, **arguments
    )
    return counter, history


def test_epochs_end_after_the_plans_batches_and_fit_after_its_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with rehearsing(monkeypatch, tmp_path, steps=4) as found:
        counter, history = fit(tmp_path, validation_data=validation())
    assert counter.trained == [(epoch, batch) for epoch in range(2) for batch in range(4)]
    assert history.epoch == [0, 1]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kdc: REHEARSAL")]
    assert len(lines) == 1
    assert "2 of 5 epochs, of 4 batches at most" in lines[0]
    (fact,) = events(found, "fit")
    assert (fact["batches"], fact["save_freq"], fact["validates"], fact["continues"]) == (4, 2, True, False)
    assert not (tmp_path / "real").exists()


def test_every_backup_is_kept_however_late_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "lower_priority", lambda: time.sleep(0.2))  # the first thing that its thread does
    with rehearsing(monkeypatch, tmp_path, steps=4) as found:
        fit(tmp_path)
    steps = [(position.kind, position.step) for position in backups(found).positions]
    assert steps == [("within", 2), ("within", 4), ("within", 6), ("within", 8), ("end", 8)]


def test_a_fit_that_is_shorter_than_the_plan_is_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rehearsing(monkeypatch, tmp_path, steps=20, epochs=9) as found:
        counter, _ = fit(tmp_path, epochs=2)
    assert counter.trained == [(epoch, batch) for epoch in range(2) for batch in range(tiny.STEPS)]
    assert backups(found).positions[-1].epoch == 2


@pytest.mark.parametrize(("steps", "trained"), [(4, 4), (3, 2), (1, 2)])
def test_an_epoch_ends_with_a_complete_execution_of_several_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, trained: int
) -> None:
    model = tiny.model()
    model.compile("sgd", "mse", steps_per_execution=2)
    with rehearsing(monkeypatch, tmp_path, steps=steps) as found:
        model.fit(tiny.shuffled(), epochs=3, verbose=0, shuffle=False, callbacks=[kdc.BackupAndRestore(tmp_path)])
    assert backups(found).positions[-1].step == 2 * trained


def test_a_stop_of_the_plan_is_no_part_of_the_state_and_one_of_the_scripts_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(stop.model, "stop_training", True))
    for name, callbacks, expected in (("plan", [], False), ("script", [stop], True)):
        with rehearsing(monkeypatch, tmp_path / name) as found:
            fit(tmp_path, callbacks=callbacks)
        assert backups(found).manifests[-1].workers[0].state["progress/stop_training"] is expected


class Ordered(keras.utils.PyDataset):
    """Shuffles by itself after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.order = list(range(tiny.STEPS))
        self.ends = 0

    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = tiny.data()
        at = self.order[index] * tiny.BATCH
        return x[at : at + tiny.BATCH], y[at : at + tiny.BATCH]

    def on_epoch_end(self) -> None:
        self.ends += 1
        random.shuffle(self.order)


def generated() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    x, y = tiny.data()
    for at in range(0, tiny.ROWS, tiny.BATCH):
        yield x[at : at + tiny.BATCH], y[at : at + tiny.BATCH]


def of_unknown_length() -> tf.data.Dataset:
    signature = (tf.TensorSpec((None, 6), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    return tf.data.Dataset.from_generator(generated, output_signature=signature)


INPUTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "shuffled": (tiny.shuffled, {}),
    "endless": (lambda: tiny.shuffled().repeat(), {"steps_per_epoch": 7}),
    "short passes": (tiny.shuffled, {"steps_per_epoch": 5}),
    "cached order": (lambda: tiny.shuffled().cache(), {}),
    "unknown length": (of_unknown_length, {}),
    "unknown and longer": (lambda: tiny.shuffled().filter(lambda x, y: True), {}),
    "py-dataset": (Ordered, {}),
}
KILLS = ["backup", "steps", "validation", "end"]


def interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, kills: list[Any], steps: int
) -> list[list[dict[str, Any]]]:
    make, arguments = INPUTS[name]
    attempts = []
    for kill in [*kills, None]:
        keras.utils.set_random_seed(7)  # a new process
        with rehearsing(monkeypatch, tmp_path, steps=steps, kill=kill) as found:
            ends = contextlib.nullcontext() if kill is None else pytest.raises(Killed)
            with ends:
                fit(tmp_path.parent, make(), validation_data=validation(), **arguments)
        attempts.append(found)
    return attempts


@pytest.mark.parametrize("steps", [4, 20])
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.in_gate(1)
def test_a_run_that_is_killed_at_all_places_equals_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, steps: int
) -> None:
    (whole,) = interrupted(monkeypatch, tmp_path / "whole", name, [], steps)
    attempts = interrupted(monkeypatch, tmp_path / "killed", name, KILLS, steps)
    assert [events(found, "kill")[0]["place"] for found in attempts[:-1]] == KILLS
    assert all(events(found, "restored") for found in attempts[1:])
    one, other = backups(whole), backups(attempts[-1])
    assert len({manifest.id.generation for manifest in other.manifests}) > 1
    assert missing_positions(one, other) == []
    assert first_difference(one, other) is None


def test_a_py_dataset_is_told_of_the_end_of_each_shortened_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Ordered()
    with rehearsing(monkeypatch, tmp_path, steps=3):
        fit(tmp_path, source, shuffle=False)
    shortened = source.ends
    source = Ordered()
    tiny.model().fit(source, epochs=2, verbose=0, shuffle=False)
    assert shortened == source.ends


def test_later_fits_have_backups_of_their_own_and_are_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rehearsing(monkeypatch, tmp_path) as found:
        fit(tmp_path)
    with rehearsing(monkeypatch, tmp_path / "two") as found, pytest.MonkeyPatch.context():
        backup = kdc.BackupAndRestore(tmp_path / "real", write_options=kdc.WriteOptions(when_busy="wait"))
        for _ in range(2):
            tiny.model().fit(tiny.shuffled(), epochs=3, verbose=0, callbacks=[backup])
    places = [record["place"] for record in events(found, "fit")]
    assert len(set(places)) == 2
    assert [len(backups(found, fit).manifests) for fit in (1, 2)] == [5, 5]


def test_only_the_first_fit_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rehearsing(monkeypatch, tmp_path, kill="steps") as found, pytest.raises(Killed):
        fit(tmp_path)
    with rehearsing(monkeypatch, tmp_path) as found:
        fit(tmp_path)
        fit(tmp_path)
    assert [record["fit"] for record in events(found, "end")] == [1, 2]


def test_fits_that_continue_each_other_do_so_in_a_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without it: the second fit() with more epochs resumes at the end of the first one."""
    with rehearsing(monkeypatch, tmp_path, epochs=1) as found:
        model, backup = tiny.model(), kdc.BackupAndRestore(tmp_path / "real", delete_checkpoint=False)
        for epochs in (1, 2):
            history = model.fit(tiny.shuffled(), epochs=epochs, verbose=0, callbacks=[backup])
    assert history.epoch[-1] == 1
    assert len({record["place"] for record in events(found, "fit")}) == 1


def test_checkpoints_and_logs_go_to_scratch_and_the_real_directories_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    tiny.model().fit(tiny.shuffled(), epochs=1, verbose=0, callbacks=_writers(real))
    before = files(real)
    assert before
    for _ in range(2):
        with rehearsing(monkeypatch, tmp_path / "run"):
            restored = kdc.make_or_restore_model(tiny.model, real / "checkpoints")
            restored.fit(tiny.shuffled(), epochs=3, verbose=0, callbacks=_writers(real))
            found = kdc.latest_checkpoint(real / "checkpoints")
        assert found is not None
        assert found.startswith(str(tmp_path / "run" / "scratch"))
    assert files(real) == before


def _writers(real: Path) -> list[Any]:
    return [
        kdc.ModelCheckpoint(real / "checkpoints" / "{epoch:02d}.keras"),
        kdc.TensorBoard(real / "logs"),
        kdc.BackupAndRestore(real / "backup", delete_checkpoint=False),
    ]
