"""SidecarEvaluator in this process: which checkpoints it evaluates, what it writes, and when it ends."""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.checkpoints import end_note, files
from keras_dist_callbacks.evaluation import sources
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.callback_helpers import ignore_keras_warnings, scalars
from tests.support.checkpoints import TEMPLATE, note_path, opened
from tests.support.cli_backups import flip
from tests.support.evaluator_runs import DATA, Count, evaluator, event_files, everything, logged, shared
from tests.support.tensorboard_readers import DataServer, PythonLoader

pytestmark = [pytest.mark.slow, ignore_keras_warnings]


@pytest.mark.parametrize("given", [False, True])
def test_what_a_finished_training_left_is_evaluated_and_logged_at_its_steps(run: Path, given: bool) -> None:
    before = everything(run / "ckpt")
    results = evaluator(run, tiny.model(clear=False) if given else None).start()
    assert [(one.name, one.step, one.epoch) for one in results] == [
        (f"{epoch}.keras", epoch * tiny.STEPS, epoch) for epoch in (1, 2, 3)
    ]
    for one in results:
        expected = keras.models.load_model(run / "ckpt" / one.name).evaluate(*DATA, verbose=0, return_dict=True)
        assert one.metrics == pytest.approx(expected)
    logs = scalars(run / "tb" / "evaluator")
    assert logs["evaluation_loss_vs_iterations"] == [(o.step, pytest.approx(o.metrics["loss"])) for o in results]
    assert logs["evaluation_accuracy_vs_iterations"] == [
        (o.step, pytest.approx(o.metrics["accuracy"])) for o in results
    ]
    assert everything(run / "ckpt") == before


def test_it_is_told_in_tensorboards_own_words(run: Path) -> None:
    """The same tag at the same step as Keras' own callback in `evaluate`."""
    evaluator(run, callbacks=[keras.callbacks.TensorBoard(run / "keras")]).start()
    theirs, ours = scalars(run / "keras" / "validation"), scalars(run / "tb" / "evaluator")
    assert sorted(theirs["evaluation_loss_vs_iterations"]) == sorted(ours["evaluation_loss_vs_iterations"])


def test_tensorboard_itself_reads_the_log(run: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    results = evaluator(run).start()
    found = accumulator.EventAccumulator(str(run / "tb" / "evaluator"))
    found.Reload()
    values = found.Tensors("evaluation_accuracy_vs_iterations")
    assert [(one.step, float(tf.make_ndarray(one.tensor_proto))) for one in values] == [
        (one.step, pytest.approx(one.metrics["accuracy"])) for one in results
    ]


@pytest.mark.parametrize("name", ["find", "fetch"])
def test_a_store_that_does_not_answer_is_asked_again(run: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    failure, original, calls = StorageError("the store is away"), getattr(files, name), iter(range(99))
    failure.unavailable = True

    def sometimes(*given: Any) -> Any:
        if next(calls) == 0:
            raise failure
        return original(*given)

    monkeypatch.setattr(files, name, sometimes)
    with pytest.warns(RuntimeWarning, match="and will try again: the store is away"):
        assert len(evaluator(run).start()) == 3
    failure.unavailable, calls = False, iter(range(99))
    shutil.rmtree(run / "tb")
    with pytest.raises(StorageError, match="the store is away"):
        evaluator(run).start()


@pytest.mark.parametrize("what", ["evaluations/", "events.out", "best.keras"])
def test_a_store_that_takes_no_result_is_asked_again_and_nothing_is_evaluated_twice(
    run: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    failure, calls = StorageError("the store is full of requests"), iter(range(99))
    failure.unavailable = True

    def sometimes(self: Storage, original: Any, name: str, *content: Any) -> None:
        if name.startswith(what) and next(calls) in failing:
            raise failure
        original(self, name, *content)

    failing: Any = {0, 1, 3}
    for method in ("replace", "extend"):
        monkeypatch.setattr(Storage, method, functools.partialmethod(sometimes, getattr(Storage, method)))
    count = Count()
    with pytest.warns(RuntimeWarning, match="cannot write a result, and will try again: the store is full"):
        results = evaluator(run, callbacks=[count], export_best=run / "best.keras").start()
    assert len(results) == len(count.steps) == 3
    assert logged(run) == [one.step for one in results]
    kept = json.loads((run / "tb" / "evaluator" / "evaluations" / f"{results[0].step:012d}.json").read_text())
    assert len(kept["checkpoints"]) == 1
    assert (run / "best.keras").exists()
    failing, calls = range(99), iter(range(99))
    shutil.rmtree(run / "tb")
    (run / "best.keras").unlink()
    with pytest.raises(StorageError, match="full of requests"), pytest.warns(RuntimeWarning, match="try again"):
        evaluator(run, export_best=run / "best.keras", timeout=0.1).start()


def test_a_second_evaluator_repeats_nothing(run: Path) -> None:
    results = evaluator(run).start()
    before = everything(run / "tb")
    count = Count()
    assert evaluator(run, callbacks=[count]).start() == results
    assert count.steps == []
    assert everything(run / "tb") == before


def test_events_that_are_missing_are_made_of_the_records(run: Path) -> None:
    evaluator(run).start()
    before = scalars(run / "tb/evaluator")
    (file,) = event_files(run)
    file.unlink()
    shutil.rmtree(run / "ckpt")
    evaluator(run, max_evaluations=3).start()
    assert scalars(run / "tb/evaluator") == before


def test_a_result_in_whose_event_a_process_was_killed_is_logged_by_the_next_one(run: Path) -> None:
    evaluator(run).start()
    (file,) = event_files(run)
    os.truncate(file, file.stat().st_size - 1)
    evaluator(run).start()
    assert len(event_files(run)) == 2
    for metric in ("loss", "accuracy"):
        assert PythonLoader(run / "tb").steps("evaluator", f"evaluation_{metric}_vs_iterations") == [5, 10, 15]


@pytest.mark.process
def test_each_process_has_one_event_file_which_readers_see_grow(run: Path) -> None:
    curve = "evaluator", "evaluation_loss_vs_iterations"
    before = PythonLoader(run / "tb")
    with DataServer(run / "tb", run) as server:
        evaluator(run, max_evaluations=1).start()
        assert server.steps_up_to(5, *curve) == before.steps(*curve) == [5]
        (first,) = event_files(run)
        evaluator(run).start()
        assert server.steps_up_to(15, *curve) == before.steps(*curve) == [5, 10, 15]
        assert event_files(run)[:1] == [first]
        assert len(event_files(run)) == 2


def test_a_log_that_is_deleted_meanwhile_is_written_again(run: Path) -> None:
    class Delete(keras.callbacks.Callback):
        def on_test_end(self, logs: Any = None) -> None:
            if len(event_files(run)) == 1:
                event_files(run)[0].unlink()

    evaluator(run, callbacks=[Delete()]).start()
    assert logged(run) == [5, 10, 15]


def test_a_damaged_record_costs_a_repeated_evaluation(run: Path) -> None:
    evaluator(run).start()
    record = sorted((run / "tb/evaluator/evaluations").iterdir())[1]
    record.write_bytes(record.read_bytes().replace(b"loss", b"lost"))
    count = Count()
    again = evaluator(run, callbacks=[count])
    with pytest.warns(RuntimeWarning, match="evaluated again"):
        assert len(again.start()) == 3
    assert count.steps == [2 * tiny.STEPS]
    assert logged(run) == [5, 10, 15]


def test_a_damaged_file_is_skipped_with_a_warning(run: Path) -> None:
    flip(run / "ckpt", "2.keras", 40)
    with pytest.warns(UserWarning, match=r"damaged checkpoint is skipped: .*2\.keras: its content differs"):
        results = evaluator(run).start()
    assert [one.epoch for one in results] == [1, 3]


def test_a_damaged_record_is_reported_once(run: Path) -> None:
    flip(run / "ckpt", "2.keras", -100)
    with pytest.warns(UserWarning, match=r"skipped: .*2\.keras does not match its seal") as caught:
        results = evaluator(run).start()
    assert [one.epoch for one in results] == [1, 3]
    assert sum("2.keras" in str(one.message) for one in caught) == 1


def test_a_file_without_a_record_next_to_others_is_reported_once_it_stays(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_SAVED_SECONDS", 0.05)
    note_path(run / "ckpt").unlink()
    (run / "ckpt" / "2.keras").write_bytes(b"incomplete")
    with pytest.warns(UserWarning, match=r"2\.keras has no record: it is incomplete") as caught:
        assert [one.epoch for one in evaluator(run, timeout=0.5).start()] == [1, 3]
    assert sum("has no record" in str(one.message) for one in caught) == 1


def test_a_checkpoint_that_is_deleted_meanwhile_is_skipped(run: Path) -> None:
    class Delete(keras.callbacks.Callback):
        def on_test_end(self, logs: Any = None) -> None:
            (run / "ckpt" / "2.keras").unlink(missing_ok=True)

    results = evaluator(run, None, callbacks=[Delete()]).start()
    assert [one.epoch for one in results] == [1, 3]


def test_a_file_that_is_replaced_while_it_is_evaluated_is_evaluated_again(run: Path) -> None:
    trained, data = tiny.model(), tiny.shuffled()
    saved: list[int] = []

    class Train(keras.callbacks.Callback):
        def on_test_end(self, logs: Any = None) -> None:
            if len(saved) < 3:
                saved.append(1)
                trained.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[one_name])

    one_name = kdc.ModelCheckpoint(run / "one" / "latest.weights.h5", save_weights_only=True)
    trained.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[one_name])
    results = evaluator(run, checkpoint_dir=run / "one", callbacks=[Train()]).start()
    assert [one.step for one in results] == [5, 10, 15, 20]
    assert {one.name for one in results} == {"latest.weights.h5"}
    for ours, theirs in zip(shared().weights, trained.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_same_model_saved_again_by_a_restarted_run_is_not_evaluated_again(run: Path) -> None:
    first = evaluator(run).start()
    tiny.fit(tiny.model(), None, [kdc.ModelCheckpoint(run / "ckpt" / "{epoch}.keras")])  # from the same seed
    count = Count()
    assert evaluator(run, callbacks=[count]).start() == first
    assert count.steps == []
    assert logged(run) == [5, 10, 15]


def test_another_model_at_the_same_step_takes_the_place_of_the_earlier_result(run: Path) -> None:
    first = evaluator(run).start()
    other = kdc.ModelCheckpoint(run / "ckpt" / "{epoch}.keras")
    tiny.fit(tiny.model(optimizer=keras.optimizers.SGD(0.5)), None, [other], epochs=2)
    results = evaluator(run).start()
    assert [one.step for one in results] == [5, 10, 15]
    assert [one == before for one, before in zip(results, first, strict=True)] == [False, False, True]
    values = [(one.step, pytest.approx(one.metrics["loss"])) for one in results]
    assert scalars(run / "tb/evaluator")["evaluation_loss_vs_iterations"] == values
    assert len(event_files(run)) == 1


def test_a_template_chooses_among_the_files_of_a_directory(run: Path) -> None:
    callbacks = [
        kdc.ModelCheckpoint(run / "two" / "a-{epoch}.keras"),
        kdc.ModelCheckpoint(run / "two" / "b-{batch}.weights.h5", save_weights_only=True, save_freq=3),
    ]
    tiny.fit(tiny.model(), None, callbacks, epochs=2)
    chosen = evaluator(run, checkpoint_dir=run / "two" / "b-{batch}.weights.h5", log_dir=run / "b").start()
    assert {one.name[0] for one in chosen} == {"b"}
    every = evaluator(run, checkpoint_dir=run / "two").start()
    assert [one.step for one in every] == sorted({5, 10, *(one.step for one in chosen)})


def test_it_ends_at_max_evaluations_and_continues_after_them(run: Path) -> None:
    assert [one.epoch for one in evaluator(run, max_evaluations=2).start()] == [1, 2]
    assert [one.epoch for one in evaluator(run).start()] == [1, 2, 3]


def test_it_ends_when_no_checkpoint_comes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note_path(run / "ckpt").unlink()
    results = evaluator(run, timeout=0.05, verbose=1).start()
    assert len(results) == 3
    assert "no new checkpoint within 0.05 s; evaluation ends" in capsys.readouterr().out


def test_it_waits_for_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    assert evaluator(tmp_path, timeout=0.05).start() == []


def test_the_end_of_the_run_before_does_not_end_it_when_a_new_run_has_begun(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end_note.write(opened(run / "ckpt"), TEMPLATE, 2, is_ended=False)
    evaluator(run, timeout=0.2, verbose=1).start()
    printed = capsys.readouterr().out
    assert "no new checkpoint within 0.2 s" in printed
    assert "training has ended" not in printed


def test_the_end_of_a_run_whose_checkpoints_were_all_deleted_is_ignored(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "ckpt")
    assert evaluator(run, timeout=0.2, verbose=1).start() == []
    assert "no new checkpoint within 0.2 s" in capsys.readouterr().out  # it has waited for a run that begins again


def test_files_of_other_programs_are_reported_once_they_stay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "other").mkdir()
    (run / "other" / "1.keras").write_bytes(b"theirs")
    assert evaluator(run, checkpoint_dir=run / "other", timeout=0.2).start() == []  # it may be incomplete
    monkeypatch.setattr(sources, "_SAVED_SECONDS", 0.05)
    with pytest.warns(
        UserWarning, match=r"other/1\.keras has no record: it is incomplete, or another program"
    ) as caught:
        evaluator(run, checkpoint_dir=run / "other", timeout=0.5).start()
    assert len(caught) == 1


def test_a_copied_directory_is_evaluated_like_the_original(run: Path) -> None:
    shutil.copytree(run / "ckpt", run / "copy")
    results = evaluator(run, checkpoint_dir=run / "copy", timeout=0.2, log_dir=run / "copied").start()
    assert results == evaluator(run).start()


def test_how_it_ends_is_printed_at_the_start_where_only_a_note_can_end_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "evaluation ends when it finds the note that training has ended"
    evaluator(run, verbose=1).start()
    assert text in capsys.readouterr().out
    evaluator(run, verbose=1, max_evaluations=3).start()
    assert text not in capsys.readouterr().out


def test_an_end_that_was_evaluated_already_is_waited_on_for_a_new_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluator(run).start()

    class Later(kdc.SidecarEvaluator):
        def _say(self, what: str) -> None:
            super()._say(what)
            if "waiting for a new run to start" in what:
                end_note.write(opened(run / "ckpt"), TEMPLATE, 2, is_ended=False)  # the new run begins

    Later(None, DATA, run / "ckpt", log_dir=run / "tb", poll_seconds=0.01, timeout=0.2, verbose=1).start()
    out = capsys.readouterr().out
    assert out.count("waiting for a new run to start") == 1
    assert "no new checkpoint within" in out
