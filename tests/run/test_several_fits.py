"""Several fits of one process with one backup directory: each backup belongs to the fit that saved it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError
from keras_dist_callbacks.base.process_runs import fits_in
from tests.support import files, forget_runs, tiny

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:an earlier fit:RuntimeWarning"),
]

SKIPPED = "fit.. number 2 of the interrupted process saved this backup, and this is number 1"
Phases = Callable[[Path | None, tuple[int, int] | None], keras.Model]


def stops(at: tuple[int, int] | None) -> list[keras.callbacks.Callback]:
    return [tiny.StopAt(*at)] if at else []


def compiled_again(directory: Path | None, stop: tuple[int, int] | None) -> keras.Model:
    """A second fit of more epochs, after compile()."""
    model = tiny.model()
    tiny.fit(model, directory, epochs=2)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9, name="momentum"), "mse", metrics=["accuracy"])
    tiny.fit(model, directory, stops(stop), epochs=3)
    return model


def fine_tuned(directory: Path | None, stop: tuple[int, int] | None) -> keras.Model:
    """The transfer learning tutorials: some layers are frozen first."""
    model = tiny.model()
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    tiny.fit(model, directory, epochs=2)
    model.layers[0].trainable = True
    model.compile(keras.optimizers.RMSprop(0.001), "binary_crossentropy")
    tiny.fit(model, directory, stops(stop), initial_epoch=2, epochs=4)
    return model


@pytest.mark.parametrize(
    ("phases", "stop"),
    [(compiled_again, (0, 3)), (compiled_again, (1, 2)), (fine_tuned, (2, 1)), (fine_tuned, (3, 3))],
)
@pytest.mark.in_gate(1)
def test_a_later_fit_resumes_exactly_and_an_earlier_one_is_skipped(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    phases: Phases,
    stop: tuple[int, int],
) -> None:
    with pytest.warns(RuntimeWarning, match=SKIPPED):
        tiny.script_resumes(tmp_path, phases, stop)
    lines = re.findall("^kdc: ((?:Skipped this fit|Resumed from).*)", capsys.readouterr().out, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["Skipped", "Resumed"]
    assert lines[-1].endswith(": exact if nothing depends on the results of the earlier fit(), which was skipped")
    assert {name.partition("/")[0] for name in files(tmp_path)} == {"journals"}


def test_a_skipped_fit_restores_the_weights_and_leaves_the_backup(tmp_path: Path) -> None:
    tiny.stopped(compiled_again, tmp_path, (1, 2))
    forget_runs()
    weights = kdc.load_backup(tmp_path, tiny.model()).get_weights()
    before, model, steps = files(tmp_path), tiny.model(), tiny.CountSteps()
    backup = kdc.BackupAndRestore(tmp_path)
    with pytest.warns(RuntimeWarning, match=SKIPPED):
        history = tiny.fit(model, None, [steps, backup], epochs=2)
    assert (steps.trained, history.history) == ([], {})
    tiny.assert_same(model.get_weights(), weights)
    assert files(tmp_path) == before
    assert backup.restored is not None
    assert backup.restored.is_skipped


@pytest.mark.finds("skipped", "results-of-skipped")
def test_strict_refuses_to_skip_a_fit(tmp_path: Path) -> None:
    tiny.stopped(compiled_again, tmp_path, (1, 2))
    forget_runs()
    strict = [kdc.BackupAndRestore(tmp_path, strict=True)]
    model = tiny.model()
    with pytest.raises(BackupError, match=SKIPPED):
        tiny.fit(model, None, strict, epochs=2)


def test_a_script_that_computes_its_first_epoch_resumes_in_its_first_fit(tmp_path: Path) -> None:
    def loop(directory: Path | None, begin: int, stop: tuple[int, int] | None = None) -> keras.Model:
        model = tiny.model()
        for epoch in range(begin, 4):
            options = {"delete_checkpoint": False}
            tiny.fit(model, directory, stops(stop), initial_epoch=epoch, epochs=epoch + 1, options=options)
        return model

    tiny.stopped(loop, tmp_path, 0, (2, 3))
    forget_runs()
    tiny.assert_same(loop(tmp_path, 2), loop(None, 0))


def test_an_exception_that_the_script_catches_does_not_count_as_the_end_of_a_fit(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 2)
    tiny.interrupt(tmp_path, 2, 1)
    forget_runs()
    model, expected = tiny.model(), tiny.model()
    tiny.fit(model, tmp_path)
    tiny.fit(expected, None)
    tiny.assert_same(model, expected)


def test_a_fit_from_the_start_in_the_directory_of_an_earlier_one_is_warned_of(tmp_path: Path) -> None:
    tiny.fit(tiny.model(), tmp_path, epochs=1)
    model = tiny.model()
    with pytest.warns(RuntimeWarning, match="an earlier fit.. of this process had the backup_dir .* a directory of"):
        tiny.fit(model, tmp_path, epochs=1)
    assert fits_in(str(tmp_path)).last.number == 1


def test_a_finished_fit_leaves_the_random_states_to_what_follows(tmp_path: Path) -> None:
    class Draws(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            np.random.rand(), keras.random.uniform(())

    def follow() -> tuple[float, float]:
        tiny.fit(tiny.model(), tmp_path, [Draws()], options={"delete_checkpoint": False})
        return np.random.rand(), float(keras.random.uniform(()))

    first = follow()
    forget_runs()
    assert follow() == first


class Reordered(keras.utils.PyDataset):
    """Orders its rows again after each epoch, by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = tiny.data()
        self.random = np.random.default_rng(1)
        self.order = np.arange(tiny.ROWS)

    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.order[index * tiny.BATCH : (index + 1) * tiny.BATCH]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self) -> None:
        self.random.shuffle(self.order)


def kept(directory: Path, save_freq: int | str = 1) -> kdc.BackupAndRestore:
    return tiny.backed_up(directory, save_freq, delete_checkpoint=False)


def two_phases(
    directory: Path | None, stop: tuple[int, int] | None, *callbacks: Any, make: Callable[[], Any] = Reordered
) -> tiny.Ended:
    """Each has a directory of its own, as the README advises; both read one dataset."""
    model, data = tiny.model(), make()  # the model first, which sets the seeds
    first = [kept(directory / "first", "epoch")] if directory else []
    second = [kept(directory / "second")] if directory else []
    tiny.fit(model, None, [*callbacks, *first], x=data, epochs=2)
    model.compile(keras.optimizers.Adam(0.01, name="second"), "binary_crossentropy")
    history = tiny.fit(model, None, [*callbacks, *stops(stop), *second], x=data, epochs=2)
    return tiny.Ended(model, history, restored=second[0].restored if second else None)


def test_a_finished_fit_leaves_its_pydataset_as_it_did(tmp_path: Path) -> None:
    assert tiny.script_resumes(tmp_path, two_phases, (1, 2)).restored.verdict == "exact"


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("stop", [(0, 0), (0, 3), (1, 2)])
def test_a_dataset_of_a_finished_fit_has_the_order_that_it_had(tmp_path: Path, stop: tuple[int, int]) -> None:
    """As in TensorFlow's tutorial on transfer learning; killed before the first backup of the second fit, too."""
    restored = tiny.script_resumes(tmp_path, functools.partial(two_phases, make=tiny.shuffled), stop).restored
    assert (restored and restored.verdict) == (None if stop == (0, 0) else "exact")


def loop_and_phase(directory: Path | None, stop: tuple[int, int] | None) -> Any:
    """A loop of fits with one directory, then another fit with its own; all read one dataset."""
    model, data = tiny.model(), tiny.shuffled()
    for epoch in range(2):
        first = [kdc.BackupAndRestore(directory / "loop", delete_checkpoint=False)] if directory else []
        tiny.fit(model, None, first, x=data, initial_epoch=epoch, epochs=epoch + 1)
    second = [kdc.BackupAndRestore(directory / "second", delete_checkpoint=False)] if directory else []
    tiny.fit(model, None, [*stops(stop), *second], x=data, epochs=2)
    return model


def test_the_passes_of_a_finished_loop_are_counted_once(tmp_path: Path) -> None:
    tiny.script_resumes(tmp_path, loop_and_phase, (0, 0))  # before its first backup


@pytest.mark.chaos
def test_an_order_that_cannot_be_had_again_is_warned_of(tmp_path: Path) -> None:
    def cached() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(tiny.data())
        return rows.shuffle(tiny.ROWS, seed=3).cache().shuffle(tiny.ROWS, seed=4).batch(tiny.BATCH)

    with pytest.warns(RuntimeWarning, match="a finished fit.. had read the dataset that this one reads"):
        tiny.script_resumes(tmp_path, functools.partial(two_phases, make=cached), (0, 0), alike=False)


@pytest.mark.chaos
def test_what_a_finished_fit_could_not_save_is_a_condition_of_the_next_one(tmp_path: Path) -> None:
    def at_begin() -> keras.callbacks.Callback:
        numbers = (number for number in range(100))
        return keras.callbacks.LambdaCallback(on_train_begin=lambda logs: next(numbers))

    def phases(directory: Path | None, stop: Any, make: Any = at_begin) -> tiny.Ended:
        return two_phases(directory, stop, make())

    # it is only advanced before the first step
    assert tiny.script_resumes(tmp_path, phases, (1, 2), alike=False).restored.verdict == "exact"

    class Advances(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = (number for number in range(100))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self.model.optimizer.name != "second":
                next(self.numbers)

    advances = functools.partial(phases, make=Advances)
    (condition,) = tiny.script_resumes(tmp_path / "advances", advances, (1, 2), alike=False).restored.conditions
    assert condition.startswith("nothing depends on what the earlier fit(), which is finished, could not save (")
    assert "a Python generator was advanced" in condition


class EarlyRates(keras.callbacks.Callback):
    """Sets the rate of a late epoch by what it has noted in the first two."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch < 2:
            self.noted.append(epoch)
            self.model.tau = 0.01 * len(self.noted)
        else:
            self.model.optimizer.learning_rate = self.model.tau * len(self.noted)


def loop(directory: Path | None, stop: tuple[int, int] | None, make: Any = EarlyRates) -> keras.Model:
    """A fit for each epoch."""
    model, callback = tiny.model(), make()
    for epoch in range(5):
        own = [] if directory is None else [kept(directory, 2)]
        tiny.fit(model, None, [callback, *stops(stop), *own], initial_epoch=epoch, epochs=epoch + 1)
    return model


def test_state_that_an_earlier_fit_of_a_loop_has_changed_is_restored(tmp_path: Path) -> None:
    tiny.script_resumes(tmp_path, loop, (2, 3), (4, 3))


@pytest.mark.finds("callback-state")
def test_what_an_earlier_fit_of_a_loop_could_not_save_is_named(tmp_path: Path) -> None:
    class Advances(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.rates = (0.1 / number for number in range(1, 100))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch in (0, 4):
                self.model.optimizer.learning_rate = next(self.rates)

    with pytest.warns(RuntimeWarning, match="the state of the callback Advances is not restored: rates"):
        tiny.script_resumes(tmp_path, functools.partial(loop, make=Advances), (3, 3), alike=False)
