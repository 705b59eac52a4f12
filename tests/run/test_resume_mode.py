"""Several fits over one directory: a loop of fits, a run that is finished, one that asks for less than there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupMismatchError
from tests.support import files, forget_runs, tiny

pytestmark = pytest.mark.slow  # complete fits

KEEP = {"delete_checkpoint": False}
EPOCHS = 3


def datasets(*, anew: bool) -> Iterator[Any]:
    one = tiny.shuffled()
    while True:
        yield tiny.shuffled() if anew else one


def loop(directory: Path | None, *, anew: bool, stop: tuple[int, int] | None = None, **options: Any) -> Any:
    """A fit() for each epoch, as in a loop that looks at the model in between."""
    model, steps = tiny.model(), tiny.CountSteps()
    for epoch, dataset in zip(range(EPOCHS), datasets(anew=anew), strict=False):
        stops = [tiny.StopAt(*stop)] if stop else []
        tiny.fit(
            model, directory, [steps, *stops], x=dataset, initial_epoch=epoch, epochs=epoch + 1, options=options or None
        )
    return model, steps.trained


@pytest.mark.parametrize("options", [{}, KEEP], ids=["deleted", "kept"])
@pytest.mark.parametrize("anew", [False, True], ids=["one dataset", "a dataset for each fit"])
@pytest.mark.in_gate(1)
def test_a_loop_of_fits_ends_as_without_a_backup(tmp_path: Path, anew: bool, options: dict[str, Any]) -> None:
    tiny.assert_same(loop(tmp_path / "backup", anew=anew, **options), loop(None, anew=anew))


@pytest.mark.parametrize("stop", [(1, 2), (2, 1)])
@pytest.mark.parametrize("anew", [False, True], ids=["one dataset", "a dataset for each fit"])
@pytest.mark.in_gate(1)
def test_a_loop_of_fits_that_was_killed_continues_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], anew: bool, stop: tuple[int, int]
) -> None:
    tiny.stopped(loop, tmp_path, anew=anew, stop=stop, **KEEP)
    forget_runs()
    capsys.readouterr()
    model, trained = loop(tmp_path, anew=anew, **KEEP)
    reference, expected = loop(None, anew=anew)
    tiny.assert_same([model, trained], [reference, [step for step in expected if step >= stop]])
    assert capsys.readouterr().out.count("No step is run") == stop[0]


@pytest.mark.parametrize("stop", [(1, 0), (2, 1), (3, 0), None])
@pytest.mark.parametrize("options", [{}, KEEP], ids=["deleted", "kept"])
@pytest.mark.parametrize("span", [1, 2])
@pytest.mark.in_gate(1)
def test_each_fit_of_a_loop_that_was_killed_returns_its_history(
    tmp_path: Path, span: int, options: dict[str, Any], stop: tuple[int, int] | None
) -> None:
    def histories(directory: Path | None, stop: tuple[int, int] | None = None, end: int = 4) -> list[Any]:
        model, found, dataset = tiny.model(), [], tf.data.Dataset.from_tensor_slices(tiny.data()).batch(tiny.BATCH)
        for epoch in range(0, end, span):
            stops = [tiny.StopAt(*stop)] if stop else []
            asked = {"initial_epoch": epoch, "epochs": epoch + span, "options": options or None}
            done = tiny.fit(model, directory, stops, x=dataset, validation_data=dataset, **asked)
            found.append((done.epoch, done.history))
        return found

    if stop is None:
        histories(tmp_path, end=2)  # killed between two fits
    else:
        tiny.stopped(histories, tmp_path, stop)
    forget_runs()
    expected = histories(None)
    if stop is None and not options:
        return  # there is no backup between two fits: all is trained again
    assert histories(tmp_path) == expected


@pytest.mark.parametrize(
    ("anew", "trained"),
    [
        pytest.param(False, 1, marks=pytest.mark.finds("same-dataset")),
        *(pytest.param(*case, marks=pytest.mark.chaos) for case in ((False, 2), (True, 1), (True, 2))),
    ],
)
def test_a_loop_killed_between_two_fits_has_no_condition_about_a_dataset_that_is_known(
    tmp_path: Path, anew: bool, trained: int
) -> None:
    def loop_to(end: int, directory: Path | None) -> tuple[keras.Model, list[kdc.BackupAndRestore]]:
        model, callbacks = tiny.model(), []
        for epoch, dataset in zip(range(end), datasets(anew=anew), strict=False):
            ours = [kdc.BackupAndRestore(directory, **KEEP)] if directory else []
            tiny.fit(model, None, ours, x=dataset, initial_epoch=epoch, epochs=epoch + 1)
            callbacks += ours
        return model, callbacks

    loop_to(trained, tmp_path)
    forget_runs()
    model, callbacks = loop_to(EPOCHS, tmp_path)
    restored = callbacks[trained].restored
    assert restored is not None
    assert restored.verdict == "exact if"
    if trained == 1:  # of one fit alone, no one knows what the loop gives the next one
        assert "dataset object of the fit() before it" in restored.conditions[0]
    else:  # nothing of its dataset, but what the loop does after the fit that was skipped is unknown
        place = "the end of epoch 2 (step 10)"
        assert restored.conditions == (
            f"no code after a fit() that ran no step depends on the model, which is at {place} already",
        )
    if trained > 1 or not anew:
        tiny.assert_same(model, loop_to(EPOCHS, None)[0])


@pytest.mark.finds("model-is-later")
def test_a_loop_that_sets_the_learning_rate_between_its_fits_resumes_exactly_if_it_looks_at_nothing_else(
    tmp_path: Path,
) -> None:
    """The fits before the interrupted one run no step, and leave the model where the backup is."""

    found: list[list[Any]] = []

    def by_hand(directory: Path | None, stop: tuple[int, int] | None) -> keras.Model:
        model, best = tiny.model(), 1e9
        found.append([])
        for epoch in range(EPOCHS):
            backup = [tiny.backed_up(directory, **KEEP)] if directory else []
            stops = [tiny.StopAt(*stop)] if stop else []
            history = tiny.fit(model, None, [*stops, *backup], initial_epoch=epoch, epochs=epoch + 1)
            found[-1].extend(b.restored for b in backup if b.restored is not None)
            loss = history.history["loss"][0]
            if loss > 0.95 * best:
                model.optimizer.learning_rate = 0.5 * float(model.optimizer.learning_rate)
            best = min(best, loss)
        return model

    tiny.script_resumes(tmp_path, by_hand, (2, 2))
    condition = (
        "no code after a fit() that ran no step depends on the model, which is at epoch 3, batch 2 (step 12) already"
    )
    assert [restored.conditions for restored in found[1]] == [(condition,)] * EPOCHS
    assert {restored.verdict for restored in found[1]} == {"exact if"}


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("stop", [(2, 3), None])
@pytest.mark.parametrize("options", [{}, KEEP], ids=["to be deleted", "kept"])
def test_a_fit_of_fewer_epochs_restores_and_leaves_everything_as_it_is(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stop: tuple[int, int] | None,
    options: dict[str, Any],
) -> None:
    first = tiny.model()
    try:
        tiny.fit(first, tmp_path, [tiny.StopAt(*stop)] if stop else [], options=KEEP)
    except tiny.Stop:
        assert stop
    forget_runs()
    before, steps, model = files(tmp_path), tiny.CountSteps(), tiny.model()
    tiny.fit(model, tmp_path, [steps], epochs=2, options=options)
    assert steps.trained == []
    assert files(tmp_path) == before
    tiny.assert_same(model, first)
    where = "epoch 3, batch 3 (step 13)" if stop else "the end of epoch 3 (step 15)"
    assert f"No step is run: asked for 2, and the backup is at {where}" in capsys.readouterr().out


def test_a_finished_job_that_runs_again_says_so_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.fit(tiny.model(), tmp_path, options=KEEP)
    forget_runs()
    before = files(tmp_path)
    tiny.fit(tiny.model(), tmp_path, options=KEEP)
    assert files(tmp_path) == before
    assert "No step is run: the run is finished" in capsys.readouterr().out


def test_a_rerun_deletes_the_backup_that_a_kill_at_the_end_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = tiny.model()
    tiny.fit(trained, tmp_path, options=KEEP)  # as if killed before the deletion
    forget_runs()
    again = tiny.model()
    tiny.fit(again, tmp_path)
    tiny.assert_same(again, trained)
    assert {name.partition("/")[0] for name in files(tmp_path)} == {"journals"}
    assert "the run is finished, and the backup is at the end of epoch 3 (step 15); it is deleted" in (
        capsys.readouterr().out
    )


@pytest.mark.finds("of-another-training")
def test_a_finished_backup_of_another_training_is_not_deleted(tmp_path: Path) -> None:
    tiny.fit(tiny.model(), tmp_path, options=KEEP)
    forget_runs()
    before, model = files(tmp_path), tiny.model()
    model.compile(model.optimizer, "mae")
    with pytest.warns(RuntimeWarning, match="(?s)belongs to another training; .*- loss changed"):
        tiny.fit(model, tmp_path)
    assert files(tmp_path) == before


@pytest.mark.finds("ran-no-step")
def test_a_second_fit_of_the_same_model_in_a_finished_runs_directory_is_warned(tmp_path: Path) -> None:
    model = tiny.model()
    tiny.fit(model, tmp_path, options=KEEP)
    with pytest.warns(RuntimeWarning, match="an earlier fit.. of this process.*a directory of its own"):
        tiny.fit(model, tmp_path, options=KEEP)


def test_a_second_fit_of_another_model_in_a_finished_runs_directory_is_refused(tmp_path: Path) -> None:
    tiny.fit(tiny.model(), tmp_path, options=KEEP)
    before = files(tmp_path)
    model = tiny.model()
    with pytest.raises(BackupMismatchError, match=r"another fit.*an earlier fit.. of this process.*had another model"):
        tiny.fit(model, tmp_path, options=KEEP)
    assert files(tmp_path) == before


def test_a_model_that_was_compiled_in_another_way_is_warned_of_a_finished_run(tmp_path: Path) -> None:
    tiny.fit(tiny.model(), tmp_path, options=KEEP)
    forget_runs()
    model = tiny.model()
    rate = float(model.optimizer.learning_rate.numpy())
    model.optimizer.learning_rate = rate / 10  # the second phase of a fine-tuning
    with pytest.warns(RuntimeWarning, match="(?s)belongs to another training; .*- learning rate changed from"):
        tiny.fit(model, tmp_path, options=KEEP)


def test_a_run_that_stopped_early_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    kdc.advanced.register_callback_state(Enough, None)
    tiny.fit(tiny.model(), tmp_path, [Enough()], options=KEEP)
    forget_runs()
    steps = tiny.CountSteps()
    tiny.fit(tiny.model(), tmp_path, [Enough(), steps], options=KEEP)
    assert steps.trained == []
    assert "No step is run: the run had stopped early" in capsys.readouterr().out


def test_a_run_continues_in_its_process_with_what_was_changed_in_between(tmp_path: Path) -> None:
    model, plain = tiny.model(), tiny.model()
    for one, directory in ((model, tmp_path), (plain, None)):
        dataset = tiny.shuffled()
        tiny.fit(one, directory, x=dataset, epochs=2, options=KEEP if directory else None)
        one.layers[-1].kernel.assign(one.layers[-1].kernel * 0.5)
        tiny.fit(one, directory, x=dataset, initial_epoch=2, epochs=4, options=KEEP if directory else None)
    tiny.assert_same(model, plain)


def two_phases(directory: Path, *, stop: tuple[int, int] | None = None, **options: Any) -> keras.Model:
    """The same dataset object is fitted with one directory after the other; its order takes two shuffles."""
    model = tiny.model()
    rows = tf.data.Dataset.from_tensor_slices(tiny.data())
    dataset = rows.shuffle(tiny.ROWS, seed=3).shuffle(tiny.ROWS, seed=4).batch(tiny.BATCH)
    tiny.fit(tiny.model(), directory / "first", x=dataset, options=options)
    tiny.fit(model, directory / "second", [tiny.StopAt(*stop)] if stop else [], x=dataset)
    return model


@pytest.mark.chaos
def test_a_dataset_that_was_read_as_often_before_is_not_a_reason_for_an_alarm(tmp_path: Path) -> None:
    tiny.stopped(two_phases, tmp_path / "killed", stop=(1, 2))
    forget_runs()
    tiny.assert_same(two_phases(tmp_path / "killed"), two_phases(tmp_path / "uninterrupted"))


@pytest.mark.chaos
def test_a_dataset_of_two_shuffles_that_was_read_less_often_before_is_labelled(tmp_path: Path) -> None:
    tiny.stopped(two_phases, tmp_path, stop=(1, 2), **KEEP)
    forget_runs()
    with pytest.warns(RuntimeWarning, match="had been read 3 times before the interrupted run, but 0 times before"):
        two_phases(tmp_path, **KEEP)


def test_nothing_is_said_of_exactness_where_nothing_is_restored(tmp_path: Path) -> None:
    model, dataset = tiny.model(), tiny.shuffled()
    for epoch in range(EPOCHS):  # which ends with the best weights, as Keras' own loop does
        best = keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True)
        backup = kdc.BackupAndRestore(tmp_path, delete_checkpoint=False, strict="certain")
        tiny.fit(model, None, [best, backup], x=dataset, initial_epoch=epoch, epochs=epoch + 1)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
