import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_dist_callbacks import BackupAndRestore, ModelCheckpoint, TensorBoard
from keras_dist_callbacks.base.errors import ConfigError, StorageError
from keras_dist_callbacks.callbacks import event_files
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support import forget_runs, tiny
from tests.support.callback_helpers import (
    X,
    Y,
    be_worker_1,
    fit,
    ignore_keras_warnings,
    memory_url,
    scalars,
    tiny_model,
)
from tests.support.leftovers import leftovers
from tests.support.tensorboard_readers import DataServer, PythonLoader

pytestmark = ignore_keras_warnings


def backup_and_restore(place: str) -> Any:
    return BackupAndRestore(place)


def model_checkpoint(place: str) -> Any:
    return ModelCheckpoint(f"{place}/{{epoch}}.keras")


def tensorboard(place: str) -> Any:
    return TensorBoard(place)


MADE_OF_A_PLACE = [backup_and_restore, model_checkpoint, tensorboard]


def mirror(url: str, target: Path) -> Path:
    """A local copy of what a store holds under the runs' directories."""
    storage = Storage.open(url)
    for run in ("train", "validation"):
        (target / run).mkdir(parents=True, exist_ok=True)
        for file in storage.files(run):
            storage.download(f"{run}/{file.name}", target / run / file.name)
    return target


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


def test_without_the_package_tensorboard_the_constructor_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r'pip install "keras-dist-callbacks\[tensorboard\]"'):
        TensorBoard(tmp_path)


@pytest.mark.parametrize("make", MADE_OF_A_PLACE, ids=lambda make: make.__name__)
def test_a_missing_package_of_a_store_is_an_error_of_the_constructor(
    make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "s3fs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r'pip install "keras-dist-callbacks\[s3\]"'):
        make("s3://bucket/run")


@pytest.mark.slow
def test_the_chief_writes_what_keras_writes_where_keras_does(tmp_path: Path) -> None:
    history = fit(tiny_model(), TensorBoard(tmp_path), epochs=2, validation_data=(X, Y))
    train, validation = scalars(tmp_path / "train"), scalars(tmp_path / "validation")
    assert [v for _, v in train["epoch_loss"]] == pytest.approx(history.history["loss"])
    assert [v for _, v in validation["epoch_loss"]] == pytest.approx(history.history["val_loss"])
    assert "epoch_learning_rate" in train


def test_another_worker_writes_to_a_temporary_directory_that_is_gone_afterwards(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_worker_1(monkeypatch)
    seen: list[list[Path]] = []
    spy = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: seen.append(list(temporary.rglob("events*"))))
    fit(tiny_model(), TensorBoard(tmp_path / "logs"), spy)
    assert seen[0] != []
    assert leftovers(temporary) == []
    assert not (tmp_path / "logs").exists()


def test_another_worker_writes_below_the_worker_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_worker_1(monkeypatch)
    fit(tiny_model(), TensorBoard(tmp_path / "logs", worker_log_dir=tmp_path / "workers"))
    assert "epoch_loss" in scalars(tmp_path / "workers" / "worker-1" / "train")
    assert not (tmp_path / "logs").exists()


@pytest.mark.slow
def test_batch_steps_continue_after_a_restart(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path / "a", update_freq=1)
    fit(tiny_model(), first, validation_data=(X, Y))
    state = json.loads(json.dumps(first.get_state()))
    second = TensorBoard(tmp_path / "b", update_freq=1)

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            second.set_state(state)

    fit(tiny_model(), second, Restore(), initial_epoch=1, epochs=2, validation_data=(X, Y))
    uninterrupted = TensorBoard(tmp_path / "c", update_freq=1)
    fit(tiny_model(), uninterrupted, epochs=2, validation_data=(X, Y))

    def steps(run: str, tag: str) -> list[int]:
        return [step for step, _ in scalars(tmp_path / run / "train")[tag]]

    assert steps("a", "batch_loss") + steps("b", "batch_loss") == steps("c", "batch_loss") == [1, 2, 3, 4, 5, 6]
    assert steps("a", "epoch_loss") + steps("b", "epoch_loss") == steps("c", "epoch_loss")
    assert second.get_state()["counters"] == uninterrupted.get_state()["counters"]


@pytest.mark.slow
def test_what_backups_and_restarts_cost_is_logged(tmp_path: Path) -> None:
    tiny.fit(tiny.model(), tmp_path / "backup", [TensorBoard(tmp_path / "logs")], save_freq=2)
    found = scalars(tmp_path / "logs/train")
    assert {"goodput/goodput", "badput/training_prep"} <= found.keys()
    assert {"backup/seconds", "backup/bytes", "backup/blocking_ms"} <= found.keys()
    assert [step for step, _ in found["goodput/goodput"]] == [0, 1, 2]
    assert all(0 < share < 1 for _, share in found["goodput/goodput"])
    assert found["backup/bytes"][-1][1] > 1000


@pytest.mark.slow
@pytest.mark.process
def test_no_step_is_shown_twice_after_restarts(tmp_path: Path) -> None:
    """By neither loader of TensorBoard; the Python one, if it was open before, keeps what it has read."""
    logs = tmp_path / "logs"
    every = list(range(1, 3 * tiny.STEPS + 1))

    def run(*stop: Any) -> None:
        second = int(time.time())
        while int(time.time()) == second:  # readers sort files by their names, which begin with the second
            time.sleep(0.01)
        board = TensorBoard(logs, update_freq=1)
        tiny.fit(tiny.model(), tmp_path / "backup", [board, *stop], save_freq=4, validation_data=tiny.data())

    before = PythonLoader(logs)
    with DataServer(logs, tmp_path) as server:
        for epoch, batch in ((1, 2), (2, 1), (2, 3)):  # the first after a validation that follows the backup
            tiny.stopped(run, tiny.StopAt(epoch, batch))
            forget_runs()
            last = epoch * tiny.STEPS + batch
            assert server.steps_up_to(last, "train", "batch_loss") == every[:last]
            assert {*before.steps("train", "batch_loss")} == {*every[:last]}
        run()
        after = PythonLoader(logs)
        for part, tag, expected in (
            ("train", "batch_loss", every),
            ("train", "epoch_loss", [0, 1, 2]),
            ("validation", "epoch_loss", [0, 1, 2]),
            ("validation", "evaluation_loss_vs_iterations", [5, 10, 15]),
        ):
            assert server.steps_up_to(expected[-1], part, tag) == after.steps(part, tag) == expected
    assert sorted({*before.steps("train", "batch_loss")}) == every
    assert len(before.steps("train", "batch_loss")) > len(every)


def test_only_event_files_that_are_no_links_are_shortened_and_no_other_file(tmp_path: Path) -> None:
    names = {
        "train/events.out.tfevents.1.h.2.0.v2": 40,
        "train/events.out.tfevents.2.h.2.0.v2": 200,
        "train/other": 100,
        "../outside/events.out.tfevents.1.h.2.0.v2": 100,
        "linked/events.out.tfevents.1.h.2.0.v2": 100,
        "train/events.out.tfevents.9.h.2.0.v2": 100,
    }
    (tmp_path / "logs/train").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "logs/linked").symlink_to(tmp_path / "outside")
    for name in [*names][:4]:
        (tmp_path / "logs" / name).write_bytes(b"x" * 100)
    (tmp_path / "target").write_bytes(b"x" * 100)
    (tmp_path / "logs" / [*names][-1]).symlink_to(tmp_path / "target")
    event_files.shorten(tmp_path / "logs", dict.fromkeys(names, 40) | {[*names][1]: 200})
    assert [(tmp_path / "logs" / name).stat().st_size for name in names] == [40, 100, 100, 100, 100, 100]


def test_what_a_backup_covers_is_in_the_event_file(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, update_freq=1)
    written: list[int] = []

    class Backup(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            board.get_state()
            written.append(len(scalars(tmp_path / "train")["batch_loss"]))

    fit(tiny_model(), board, Backup())
    assert written == [1, 2, 3]


@pytest.mark.slow
def test_a_store_that_tensorflow_cannot_write_gets_complete_copies(tmp_path: Path, temporary: Path) -> None:
    url = memory_url()
    history = fit(tiny_model(), TensorBoard(url), epochs=2, validation_data=(X, Y))
    copy = mirror(url, tmp_path / "copy")
    assert [v for _, v in scalars(copy / "train")["epoch_loss"]] == pytest.approx(history.history["loss"])
    assert len(scalars(copy / "validation")["epoch_loss"]) == 2
    assert leftovers(temporary) == []


@pytest.mark.slow
def test_copies_grow_while_training_continues(tmp_path: Path) -> None:
    url = memory_url()
    board = TensorBoard(url, sync_seconds=1e-9)
    seen: list[int] = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            shared_writer().wait()
            seen.append(len(scalars(mirror(url, tmp_path / str(epoch)) / "train")["epoch_loss"]))

    fit(tiny_model(), board, Look(), epochs=3)
    assert seen == [1, 2, 3]


@pytest.mark.slow
def test_copying_is_throttled_and_skips_what_did_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[str] = []
    original = Storage.replace
    monkeypatch.setattr(
        Storage, "replace", lambda self, name, source: puts.append(name) or original(self, name, source)
    )
    board = TensorBoard(memory_url(), sync_seconds=3600)
    fit(tiny_model(), board, epochs=5)
    assert len(puts) == 1  # the end


def test_a_worker_directory_in_a_store_is_copied_to_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_worker_1(monkeypatch)
    url = memory_url()
    fit(tiny_model(), TensorBoard(tmp_path / "logs", worker_log_dir=url))
    assert "epoch_loss" in scalars(mirror(f"{url}/worker-1", tmp_path / "copy") / "train")


def test_a_store_that_fails_costs_a_warning_and_the_files_stay(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Storage, name: str, source: Path) -> None:
        raise StorageError("the store is down")

    monkeypatch.setattr(Storage, "replace", fail)
    with pytest.warns(UserWarning, match=r"stay in .*the store is down"):
        fit(tiny_model(), TensorBoard(memory_url()))
    assert list(temporary.rglob("events.out.*")) != []


def test_an_unusable_directory_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    model = tiny_model()
    with pytest.raises(StorageError, match="file exists where a directory is needed"):
        fit(model, TensorBoard(tmp_path / "file" / "logs"))
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log_dir": "gss://bucket/logs"}, "unknown protocol 'gss'"),
        ({"worker_log_dir": "gss://bucket/logs"}, "unknown protocol 'gss'"),
        ({"sync_seconds": 0}, "sync_seconds"),
    ],
)
def test_wrong_arguments_are_clear_errors_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TensorBoard(**arguments)


def test_two_fits_with_one_callback_write_two_complete_runs(tmp_path: Path) -> None:
    url = memory_url()
    board = TensorBoard(url)
    model = tiny_model()
    for _ in range(2):
        fit(model, board, epochs=2)
    files = Storage.open(url).files("train")
    assert len(files) == 2
    assert len(scalars(mirror(url, tmp_path / "copy") / "train")["epoch_loss"]) == 4


def test_evaluate_alone_is_logged_and_copied(tmp_path: Path) -> None:
    url = memory_url()
    model = tiny_model()
    model.evaluate(X, Y, verbose=0, callbacks=[TensorBoard(url)])
    shared_writer().wait()
    assert "evaluation_loss_vs_iterations" in scalars(mirror(url, tmp_path / "copy") / "validation")


def test_an_evaluator_needs_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = Cluster("evaluator", 0, -1, ("localhost:1", "localhost:2"))
    monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: evaluator))
    tiny_model().evaluate(X, Y, verbose=0, callbacks=[TensorBoard(tmp_path, worker_log_dir=tmp_path / "w")])
    assert (tmp_path / "w" / "evaluator" / "validation").is_dir()


def test_an_evaluator_writes_to_its_log_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = Cluster("evaluator", 0, -1, ("localhost:1", "localhost:2"))
    monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: evaluator))
    url = memory_url()
    for log_dir in (str(tmp_path / "logs"), url):
        tiny_model().evaluate(X, Y, verbose=0, callbacks=[TensorBoard(log_dir)])
    for found in (tmp_path / "logs", mirror(url, tmp_path / "copy")):
        assert "evaluation_loss_vs_iterations" in scalars(found / "validation")


def test_an_evaluators_unusable_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = Cluster("evaluator", 0, -1, ("localhost:1", "localhost:2"))
    monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: evaluator))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file exists where a directory is needed"):
        tiny_model().evaluate(X, Y, verbose=0, callbacks=[TensorBoard(tmp_path / "file" / "logs")])


def test_it_is_a_keras_tensorboard_that_shows_the_users_directory(tmp_path: Path) -> None:
    board = TensorBoard("memory://user:secret@host/logs", 1, False, update_freq="batch")
    assert isinstance(board, keras.callbacks.TensorBoard)
    assert board.log_dir == "memory://host/logs"
    assert (board.histogram_freq, board.write_graph, board.update_freq) == (1, False, 1)


def test_histograms_and_embeddings_are_copied_too(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(5, 2), keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    url = memory_url()
    board = TensorBoard(url, histogram_freq=1, embeddings_freq=1)
    model.fit(abs(X).astype("int32"), Y, verbose=0, callbacks=[board])
    names = [f.name for f in [*Storage.open(url).files(), *Storage.open(url).files("train")]]
    assert "projector_config.pbtxt" in names
    assert "keras_embedding.ckpt-0.weights.h5" in names


@pytest.mark.parametrize("place", ["below", "elsewhere"])
def test_a_log_dir_that_was_set_on_a_copy_is_where_it_writes(tmp_path: Path, place: str) -> None:
    """As keras-tuner does for each trial, with what it finds there."""
    original = TensorBoard(tmp_path / "logs")
    trial = copy.deepcopy(original)
    trial.log_dir = f"{original.log_dir}/7/execution0" if place == "below" else str(tmp_path / "other")
    fit(tiny_model(), trial)
    assert list((Path(trial.log_dir) / "train").glob("events.out.*"))
    assert not (tmp_path / "logs" / "train").exists()


def test_what_tuners_add_to_a_log_dir_with_a_password_is_added_to_what_was_given() -> None:
    board = TensorBoard("http://me:swordfish@127.0.0.1/logs")
    assert "swordfish" not in board.log_dir
    board.log_dir = f"{board.log_dir}/7"
    board._follow_log_dir()
    assert board._chief_dir == "http://me:swordfish@127.0.0.1/logs/7"
