import json
import math
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks import ModelCheckpoint, PrintLR, WriteOptions, latest_checkpoint, make_or_restore_model
from keras_dist_callbacks.base.errors import ConfigError, FencedError, StorageError
from keras_dist_callbacks.checkpoints import end_note, ownership
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support.callback_helpers import (
    SetLoss,
    X,
    Y,
    be_worker_1,
    fit,
    ignore_keras_warnings,
    memory_url,
    tiny_model,
)
from tests.support.checkpoints import another_process, listed, note_path, opened
from tests.support.leftovers import leftovers

pytestmark = [ignore_keras_warnings, pytest.mark.slow]  # complete fits

INF, NAN = math.inf, math.nan


def best_only(path: Any, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(path, monitor="loss", save_best_only=True, **options)


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir() if not p.name.endswith(".json"))


def test_saves_the_complete_model_each_epoch_where_the_template_says(tmp_path: Path) -> None:
    model = tiny_model()
    fit(model, ModelCheckpoint(tmp_path / "deep" / "ckpt-{epoch:02d}-{loss:.1f}.keras"), epochs=2)
    found = names(tmp_path / "deep")
    assert [n[:8] for n in found] == ["ckpt-01-", "ckpt-02-"]
    loaded = keras.models.load_model(tmp_path / "deep" / found[-1])
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_saves_weights_only_to_a_weights_file(tmp_path: Path) -> None:
    model = tiny_model()
    fit(model, ModelCheckpoint(str(tmp_path / "w.weights.h5"), save_weights_only=True))
    other = tiny_model()
    other.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])


def test_saves_to_a_url_that_neither_keras_nor_tensorflow_can_write(tmp_path: Path) -> None:
    url = memory_url()
    fit(tiny_model(), ModelCheckpoint(f"{url}/ckpt-{{epoch}}.keras"), epochs=2)
    assert [one.name for one in listed(url).checkpoints] == ["ckpt-2.keras", "ckpt-1.keras"]
    assert latest_checkpoint(url) == f"{url}/ckpt-2.keras"


def test_the_record_has_the_position_in_training(tmp_path: Path) -> None:
    url = memory_url()
    checkpoint = ModelCheckpoint(f"{url}/ckpt-{{epoch}}-{{batch}}.keras", monitor="loss", save_freq=2)
    history = fit(tiny_model(), checkpoint, epochs=2)
    last, *_, first = listed(url).checkpoints
    newest, oldest = last.record, first.record
    assert (first.name, oldest.epoch, oldest.step) == ("ckpt-1-2.keras", 0, 2)
    assert (last.name, newest.epoch, newest.step) == ("ckpt-2-3.keras", 1, 6)
    assert newest.value == pytest.approx(history.history["loss"][1])
    assert newest.monitor == "loss"


def test_epochs_in_the_record_are_the_finished_ones(tmp_path: Path) -> None:
    fit(tiny_model(), ModelCheckpoint(tmp_path / "ckpt.keras"), epochs=2)
    (found,) = listed(tmp_path).checkpoints
    assert (found.record.epoch, found.record.step, found.kind) == (2, 6, "model")


class Report(keras.callbacks.Callback):
    """Replaces the logs of each epoch by given ones."""

    def __init__(self, *logs: dict[str, Any]) -> None:
        super().__init__()
        self.logs = logs

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        logs.clear()
        logs.update(self.logs[epoch])


@pytest.mark.parametrize(
    ("given", "saved", "best", "said"),
    [
        ([{"loss": NAN}, {"loss": NAN}, {"loss": 3.0}, {"loss": NAN}, {"loss": 2.0}], [3, 5], 2.0, "loss is nan"),
        ([{"acc": 1.0, "mae": 2.0}, {"loss": 3.0}, {}], [2], 3.0, r"loss is not in the logs \(acc, mae\)"),
        ([{"loss": 3.0}, {}], [1], 3.0, r"epoch 2, because loss is not in the logs \(which are empty\)"),
        ([{"loss": 3.0}, {"loss": np.ones(2)}], [1], 3.0, r"an array of the shape \(2,\)"),
        ([{}, {}], [], None, "epoch 1, because loss is not in the logs"),
    ],
)
def test_without_a_value_to_compare_save_best_only_saves_and_replaces_nothing_and_warns_once(
    tmp_path: Path, given: list[dict[str, Any]], saved: list[int], best: float | None, said: str
) -> None:
    checkpoint = best_only(tmp_path / "{epoch}.keras")
    with pytest.warns(UserWarning, match=said) as caught:
        fit(tiny_model(), Report(*given), checkpoint, epochs=len(given))
    (warning,) = [one for one in caught if "ModelCheckpoint" in str(one.message)]
    assert Path(warning.filename).name == "callback_helpers.py", "it is the user's line that is named"
    assert names(tmp_path) == [f"{epoch}.keras" for epoch in saved]
    assert checkpoint.best == best


@pytest.mark.parametrize(
    ("options", "given", "saved", "best"),
    [
        ({}, [3.0, 5.0, 2.0, 2.0], [1, 3], 2.0),
        ({"initial_value_threshold": 2.5}, [3.0, 2.0], [2], 2.0),
        ({"mode": "min"}, [INF, 2.0, INF], [1, 2], 2.0),
        ({"mode": "min"}, [3.0, -INF, 1.0, -INF], [1, 2], -INF),
        ({"mode": "max"}, [2.0, INF, 3.0, NAN], [1, 2], INF),
    ],
)
def test_save_best_only_writes_improvements_on_the_best_or_the_threshold_alone(
    tmp_path: Path, options: dict[str, Any], given: list[float], saved: list[int], best: float
) -> None:
    checkpoint = best_only(tmp_path / "{epoch}.keras", **options)
    fit(tiny_model(), SetLoss(*given), checkpoint, epochs=len(given))
    assert names(tmp_path) == [f"{epoch}.keras" for epoch in saved]
    assert checkpoint.best == best


@pytest.mark.parametrize("threshold", [None, -INF, 2.5])
@pytest.mark.parametrize("best", [None, INF, -INF, 1.5])
def test_any_best_value_comes_back_from_a_state(tmp_path: Path, best: float | None, threshold: float | None) -> None:
    first = ModelCheckpoint(tmp_path / "1.keras", save_best_only=True, initial_value_threshold=threshold)
    if best is not None:
        first.best = best
    state = json.loads(json.dumps(first.get_state()))
    second = ModelCheckpoint(tmp_path / "1.keras", save_best_only=True, initial_value_threshold=threshold)
    second.best = 0.25  # of a fit in this process that went on after the backup
    second.set_state(state)
    assert second.best == first.best == (threshold if best is None else best)


def test_a_name_with_the_value_in_it_needs_it_only_where_a_file_is_saved(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}-{val_loss:.0f}.keras", save_best_only=True)
    with pytest.warns(UserWarning, match="val_loss is not in the logs"):
        fit(tiny_model(), checkpoint, epochs=3, validation_data=(X, Y), validation_freq=2)
    assert [name.partition("-")[0] for name in names(tmp_path)] == ["2"]


def test_save_best_only_works_on_batches_too(tmp_path: Path) -> None:
    fit(tiny_model(), best_only(tmp_path / "{batch}.keras", save_freq=1))
    assert "1.keras" in names(tmp_path)


def test_max_to_keep_deletes_the_oldest_and_leaves_nothing_else(tmp_path: Path) -> None:
    fit(tiny_model(), ModelCheckpoint(tmp_path / "d" / "{epoch}.keras", max_to_keep=2), epochs=4)
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["3.keras", "4.keras"]
    note = note_path(tmp_path / "d", "{epoch}.keras").name
    hidden = [note.replace("training-end", "checkpoint-owner"), note]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*hidden, "d"]


def test_max_to_keep_counts_what_earlier_runs_left_and_leaves_other_series_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.keras").write_bytes(b"not ours")
    fit(tiny_model(), ModelCheckpoint(tmp_path / "best-{epoch}.keras"), epochs=3)
    fit(tiny_model(), ModelCheckpoint(tmp_path / "a-{epoch}.keras"), epochs=3)
    fit(tiny_model(), ModelCheckpoint(tmp_path / "a-{epoch}.keras", max_to_keep=2), epochs=1)
    assert names(tmp_path) == ["a-1.keras", "a-3.keras", "best-1.keras", "best-2.keras", "best-3.keras", "mine.keras"]


def test_generation_counts_runs_and_sequence_counts_within_one_across_callbacks(tmp_path: Path) -> None:
    for _ in range(2):
        fit(
            tiny_model(),
            ModelCheckpoint(tmp_path / "a-{epoch}.keras"),
            ModelCheckpoint(tmp_path / "b.weights.h5", save_weights_only=True),
            epochs=2,
        )
    found = listed(tmp_path).checkpoints
    assert [(one.name, one.record.generation) for one in found] == [
        ("b.weights.h5", 2),
        ("a-2.keras", 2),
        ("a-1.keras", 2),
    ]
    assert found[0].record.sequence > found[1].record.sequence > found[2].record.sequence


def test_all_workers_but_the_chief_write_nothing_and_decide_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(directory: Path) -> dict[str, Any]:
        checkpoint = best_only(directory / "{epoch}.keras", verbose=1)
        fit(tiny_model(), SetLoss(3.0, 5.0, 2.0), checkpoint, epochs=3)
        return checkpoint.get_state()

    chief = run(tmp_path / "chief")
    assert "did not improve" in capsys.readouterr().out
    be_worker_1(monkeypatch)
    worker = run(tmp_path / "worker")
    assert (worker["best"], worker["counters"]) == (chief["best"], chief["counters"])
    assert not (tmp_path / "worker").exists()
    assert capsys.readouterr().out == ""


def test_best_and_counters_come_back_from_a_state_of_json(tmp_path: Path) -> None:
    first = best_only(tmp_path / "{epoch}-{batch}.keras", save_freq=4)
    fit(tiny_model(), first)
    first.best = 1.5
    state = json.loads(json.dumps(first.get_state()))
    second = best_only(tmp_path / "{epoch}-{batch}.keras", save_freq=4)

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            second.set_state(state)

    fit(tiny_model(), second, Restore())
    assert names(tmp_path) == []
    assert second.best == 1.5
    assert second.get_state()["counters"][0] == 2  # 3 + 3 batches, a save was due after 4


def test_a_better_file_published_after_the_backup_is_not_replaced_by_a_worse_one(tmp_path: Path) -> None:
    first = best_only(tmp_path / "best.keras")
    states = []

    class Backup(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            states.append(first.get_state())

    fit(tiny_model(), SetLoss(3.0, 1.0), first, Backup(), epochs=2)
    second = best_only(tmp_path / "best.keras")

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            second.set_state(states[0])

    fit(tiny_model(), SetLoss(0.0, 2.0), second, Restore(), initial_epoch=1, epochs=2)
    assert second.best == 1.0
    (found,) = listed(tmp_path).checkpoints
    assert found.record.value == 1.0


def test_a_run_without_backup_but_from_a_checkpoint_continues_with_its_best(tmp_path: Path) -> None:
    fit(tiny_model(), SetLoss(1.0), best_only(tmp_path / "best.keras"))
    model = make_or_restore_model(tiny_model, tmp_path / "best.keras")
    checkpoint = best_only(tmp_path / "best.keras")
    fit(model, SetLoss(2.0), checkpoint)
    assert checkpoint.best == 1.0


def test_a_fresh_run_in_an_old_directory_starts_with_no_best(tmp_path: Path) -> None:
    for loss in (1.0, 2.0):
        checkpoint = best_only(tmp_path / "best.keras")
        fit(tiny_model(), SetLoss(loss), checkpoint)
    assert checkpoint.best == 2.0


def test_a_damaged_best_file_is_no_ones_best(tmp_path: Path) -> None:
    fit(tiny_model(), SetLoss(1.0), best_only(tmp_path / "best.keras"))
    (tmp_path / "best.keras").write_bytes(b"damaged")
    fit(tiny_model(), ModelCheckpoint(tmp_path / "other.keras"))
    model = make_or_restore_model(tiny_model, tmp_path / "other.keras")
    checkpoint = best_only(tmp_path / "best.keras")
    fit(model, SetLoss(2.0), checkpoint)
    assert checkpoint.best == 2.0
    assert latest_checkpoint(tmp_path) is not None


def test_the_previous_file_stays_intact_while_the_next_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tiny_model(), ModelCheckpoint(tmp_path / "ckpt.keras"))
    before = (tmp_path / "ckpt.keras").read_bytes()

    def fail(model: keras.Model, target: Any, *arguments: Any, **options: Any) -> None:
        Path(target).write_bytes(b"half a fi")
        raise OSError("disk full")

    monkeypatch.setattr(keras.Model, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        fit(tiny_model(), ModelCheckpoint(tmp_path / "ckpt.keras"))
    assert (tmp_path / "ckpt.keras").read_bytes() == before
    assert latest_checkpoint(tmp_path) == str(tmp_path / "ckpt.keras")


def test_a_file_that_cannot_be_written_is_a_warning_and_leaves_no_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (tmp_path / "out" / "1.keras").mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match=r"1\.keras failed and training continues"):
        fit(tiny_model(), Written(), ModelCheckpoint(tmp_path / "out" / "{epoch}.keras"), epochs=3)
    assert names(tmp_path / "out") == ["1.keras", "2.keras", "3.keras"]
    assert leftovers(temporary) == []


class Written(keras.callbacks.Callback):
    """What an epoch handed over is written, or has failed, when the next one ends; what a backup would keep then."""

    def __init__(self, checkpoint: ModelCheckpoint | None = None) -> None:
        super().__init__()
        self.checkpoint, self.states = checkpoint, []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        shared_writer().wait()
        if self.checkpoint is not None:
            self.states.append(self.checkpoint.get_state())


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of the files that the store does not take."""
    original, calls, numbers = Storage.replace, iter(range(99)), set()

    def sometimes(self: Storage, name: str, source: Path) -> None:
        if name.endswith(".keras") and next(calls) in numbers:
            raise StorageError("the store is away")
        original(self, name, source)

    monkeypatch.setattr(Storage, "replace", sometimes)
    return numbers


def test_the_best_file_is_tried_again_though_no_better_one_follows(tmp_path: Path, failing: set[int]) -> None:
    failing |= {1, 2}
    checkpoint = best_only(tmp_path / "best.keras")
    written = Written(checkpoint)
    with pytest.warns(RuntimeWarning, match=r"best\.keras failed and training continues.*tried again.*store is away"):
        fit(tiny_model(), SetLoss(3.0, 2.0, 2.5, 2.6, 2.7), written, checkpoint, epochs=5)
    assert [state["best"] for state in written.states] == [None, None, 3.0, 3.0, 3.0], "known when the next epoch ends"
    assert listed(tmp_path).checkpoints[0].record.value == 2.0
    assert checkpoint.get_state()["best"] == 2.0


def test_a_try_that_lasts_longer_than_an_epoch_is_not_begun_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, tries, go_on = Storage.replace, [], threading.Event()

    def slow(self: Storage, name: str, source: Path) -> None:
        if name == "best.keras":
            tries.append(name)
            if len(tries) == 1:
                raise StorageError("the store is away")
            go_on.wait(30)
        original(self, name, source)

    class Hold(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                shared_writer().wait()  # the first try has failed
            if epoch == 4:
                go_on.set()

    monkeypatch.setattr(Storage, "replace", slow)
    checkpoint = best_only(memory_url() + "/best.keras")
    with pytest.warns(RuntimeWarning, match="store is away"):
        fit(tiny_model(), SetLoss(1.0, 2.0, 2.0, 2.0, 2.0), Hold(), checkpoint, epochs=5)
    assert tries == ["best.keras"] * 2
    assert checkpoint.best == 1.0


@pytest.mark.parametrize(
    ("most", "saved", "reason"), [(2, 0, "2 files in a row were not saved"), (9, 1, "store is away")]
)
def test_training_ends_where_too_many_files_fail_or_the_last_one_does(
    tmp_path: Path, failing: set[int], most: int, saved: int, reason: str
) -> None:
    failing |= set(range(saved, 99))
    options = WriteOptions(max_failed_saves=most)
    checkpoint = ModelCheckpoint(tmp_path / "d" / "{epoch}.keras", write_options=options)
    with pytest.raises(StorageError, match=reason), pytest.warns(RuntimeWarning, match="store is away"):
        fit(tiny_model(), Written(), checkpoint, epochs=3)
    assert len(names(tmp_path / "d")) == saved
    assert end_note.read_all(opened(tmp_path / "d"), ["{epoch}.keras"]) == ([], [])


def test_old_files_that_cannot_be_deleted_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Storage, name: str) -> None:
        raise StorageError("must not be deleted")

    monkeypatch.setattr(Storage, "delete", refuse)
    with pytest.warns(RuntimeWarning, match=r"old files cannot be deleted.*must not"):
        fit(tiny_model(), ModelCheckpoint(tmp_path / "{epoch}.keras", max_to_keep=1), epochs=2)
    assert names(tmp_path) == ["1.keras", "2.keras"]


def test_at_most_one_file_waits_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    waiting: list[int] = []
    original = Storage.replace

    def replace(self: Storage, name: str, source: Path) -> None:
        waiting.append(len(list(temporary.glob("kdc-*/checkpoint-*"))))
        threading.Event().wait(0.02)
        original(self, name, source)

    monkeypatch.setattr(Storage, "replace", replace)
    fit(tiny_model(), ModelCheckpoint(tmp_path / "out" / "{batch}.keras", save_freq=1), epochs=2)
    assert max(waiting) == 1


def test_a_zombie_learns_that_a_newer_run_writes_here(tmp_path: Path) -> None:
    zombie = ModelCheckpoint(tmp_path / "best.keras")

    class NewerRun(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            fit(tiny_model(), ModelCheckpoint(tmp_path / "best.keras"))
            fit(tiny_model(), ModelCheckpoint(tmp_path / "best.keras"))

    with pytest.raises(FencedError, match="newer run"):
        fit(tiny_model(), zombie, NewerRun())


class AnotherJob(keras.callbacks.Callback):
    """Another process begins to write the same checkpoints, at the begin of the second epoch or as training ends."""

    def __init__(self, directory: Path, when: str) -> None:
        super().__init__()
        self.directory, self.when = directory, when

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if (epoch, self.when) == (1, "an epoch"):
            self.begin()

    def on_train_end(self, logs: Any = None) -> None:
        if self.when == "the end":
            self.begin()

    def begin(self) -> None:
        shared_writer().wait()
        with another_process():
            ownership.claim(opened(self.directory), "{epoch}.keras")


@pytest.mark.parametrize(("when", "saved"), [("an epoch", ["1.keras"]), ("the end", ["1.keras", "2.keras", "3.keras"])])
def test_another_job_that_begins_in_the_directory_ends_this_one(tmp_path: Path, when: str, saved: list[str]) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "d" / "{epoch}.keras")
    with pytest.raises(
        FencedError, match=r"a newer run writes .*/d/.*must stop.*newer run: ModelCheckpoint, .*process"
    ):
        fit(tiny_model(), AnotherJob(tmp_path / "d", when), checkpoint, epochs=3)
    shared_writer().wait()
    assert names(tmp_path / "d") == saved
    assert end_note.read_all(opened(tmp_path / "d"), ["{epoch}.keras"]) == ([], [])


def test_callbacks_and_fits_of_one_job_share_a_directory_and_a_file(tmp_path: Path) -> None:
    for _ in range(2):
        train, best = (ModelCheckpoint(tmp_path / "m.keras", "loss", 0, is_best) for is_best in (False, True))
        fit(tiny_model(), train, best, ModelCheckpoint(tmp_path / "{epoch}.keras"), epochs=2)
    assert names(tmp_path) == ["1.keras", "2.keras", "m.keras"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filepath": "dir/"}, "names a directory"),
        ({"filepath": ""}, "names a directory"),
        ({"filepath": "model.h5"}, "must end in .keras"),
        ({"filepath": "model.weights.h5"}, "save_weights_only=True"),
        ({"filepath": "model.keras", "save_weights_only": True}, "must end in .weights.h5"),
        ({"filepath": "{epoch}/model.keras"}, "in its directory"),
        ({"filepath": "model-{}.keras"}, "need names"),
        ({"filepath": "model-{epoch.keras"}, "not a valid template"),
        ({"filepath": "m.keras", "save_freq": 0}, "save_freq"),
        ({"filepath": "m.keras", "save_freq": -1}, "save_freq"),
        ({"filepath": "m.keras", "save_freq": True}, "save_freq"),
        ({"filepath": "m.keras", "save_freq": 2.0}, "save_freq"),
        ({"filepath": "m.keras", "save_freq": "batch"}, "save_freq"),
        ({"filepath": "m.keras", "max_to_keep": 0}, "max_to_keep"),
        ({"filepath": "m.keras", "max_to_keep": True}, "max_to_keep"),
        ({"filepath": "gss://bucket/m.keras"}, "unknown protocol 'gss'"),
    ],
)
def test_wrong_arguments_are_clear_errors_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelCheckpoint(**arguments)


def test_an_unusable_directory_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    model = tiny_model()
    with pytest.raises(StorageError, match="file exists where a directory is needed"):
        fit(model, ModelCheckpoint(tmp_path / "file" / "ckpt.keras"))
    assert int(model.optimizer.iterations) == 0


def test_credentials_in_a_url_are_not_kept_in_the_open(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint("memory://user:secret@host/ckpt.keras")
    assert "secret" not in checkpoint.filepath
    assert "secret" not in repr(vars(checkpoint))


def test_it_is_a_keras_model_checkpoint_with_keras_attributes(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "m.keras", "acc", 1, True, False, "max", 5, 0.5)
    assert isinstance(checkpoint, keras.callbacks.ModelCheckpoint)
    assert (checkpoint.monitor, checkpoint.verbose, checkpoint.best) == ("acc", 1, 0.5)
    assert checkpoint.save_freq == 5


def test_a_directory_given_with_braces_is_taken_literally(tmp_path: Path) -> None:
    fit(tiny_model(), ModelCheckpoint(str(tmp_path / "{{x}}" / "m.keras")))
    assert names(tmp_path / "{x}") == ["m.keras"]


def test_relative_paths_lie_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_model()
    model.fit(X, Y, verbose=0, callbacks=[ModelCheckpoint("m.keras")])
    assert names(tmp_path) == ["m.keras"]
    assert latest_checkpoint(".") == "m.keras"


def test_it_works_under_a_mirrored_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = tiny_model(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.8, 1, 0.5)))
    fit(model, ModelCheckpoint(tmp_path / "{epoch}.keras"), PrintLR())
    assert listed(tmp_path).checkpoints[0].record.step == 3
    assert "learning rate 0.8 to 0.2" in capsys.readouterr().out
