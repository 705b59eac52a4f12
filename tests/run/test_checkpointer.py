"""Checkpointer: custom training loops continue exactly where they were."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError, ConfigError
from keras_dist_callbacks.testing.local_cluster import run_until_done
from tests.support import SUPPORT, tiny
from tests.support.cli_backups import kdc_json
from tests.support.docstrings import assert_said
from tests.support.grouped import grouped
from tests.support.processes import worker_processes

SCRIPT = str(SUPPORT / "custom_loop.py")


def loop(
    backup: Path | str, stop: tuple[int, int] | None = None, *, epochs: int = 3, units: int = 7, **options: Any
) -> tuple[keras.Model, dict[str, Any], list[tuple[int, int]]]:
    model = tiny.model(units)
    optimizer, metric = keras.optimizers.Adam(0.01), keras.metrics.Mean()
    optimizer.build(model.trainable_variables)
    state: dict[str, Any] = {"history": [], "noise": np.zeros(2, "float32")}
    trained, dataset = [], tiny.shuffled()
    arguments = {"save_freq": 1, "when_busy": "wait", **options}
    with kdc.Checkpointer(
        backup, model=model, optimizer=optimizer, metrics=[metric], state=state, **grouped(**arguments)
    ) as checkpointer:
        checkpointer.restore()
        for epoch in checkpointer.epochs(epochs):
            for x, y in checkpointer.batches(dataset):
                if (epoch, checkpointer.batch) == stop:
                    raise tiny.Stop
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
                metric.update_state(loss)
                state["noise"] = state["noise"] + np.random.normal(size=2).astype("float32")
                trained.append((epoch, checkpointer.batch))
                checkpointer.step()
            state["history"].append(float(metric.result()))
            metric.reset_state()
    return model, state, trained


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loop(tmp_path_factory.mktemp("reference"))


@pytest.mark.slow
@pytest.mark.parametrize("save_freq", [1, 2, "epoch"])
@pytest.mark.parametrize("stop", [(0, 3), (1, 2), (2, 0)], ids=str)
@pytest.mark.in_gate(2)
def test_a_custom_loop_ends_as_if_never_interrupted(
    tmp_path: Path, reference: Any, stop: tuple[int, int], save_freq: Any
) -> None:
    tiny.stopped(loop, tmp_path / "backup", stop, save_freq=save_freq)
    model, state, trained = loop(tmp_path / "backup", save_freq=save_freq)
    tiny.assert_same([model, state], reference[:2])
    if save_freq == 1:
        assert trained[0] == stop
    assert list((tmp_path / "backup").iterdir()) == [tmp_path / "backup/journals"]


@pytest.mark.slow
def test_a_kept_backup_of_a_finished_loop_trains_nothing(tmp_path: Path) -> None:
    first, again = (loop(tmp_path, delete_checkpoint=False) for _ in range(2))
    assert again[2] == []
    tiny.assert_same(again[:2], first[:2])


def test_a_dataset_made_for_each_epoch_needs_the_argument_made_for_epoch(tmp_path: Path) -> None:
    checkpointer = kdc.Checkpointer(tmp_path, model=tiny.model())
    checkpointer.restore()
    first = [next(checkpointer.batches(tiny.shuffled(), made_for_epoch=True))[0].numpy() for _ in range(2)]
    np.testing.assert_array_equal(first[0], first[1])
    next(checkpointer.batches(tiny.shuffled()))
    with pytest.raises(ConfigError, match="another dataset than in the last epoch"):
        next(checkpointer.batches(tiny.shuffled()))


def test_save_commits_at_once_and_at_any_step(tmp_path: Path) -> None:
    model = tiny.model()
    checkpointer = kdc.Checkpointer(tmp_path, model=model, save_freq="epoch", state={"n": 1})
    checkpointer.restore()
    checkpointer.step()
    checkpointer.save()
    checkpointer.close()
    fresh: dict[str, Any] = {}
    again = kdc.Checkpointer(tmp_path, model=tiny.model(), state=fresh)
    assert not again.restore(), "close() deletes the backup"


@pytest.mark.parametrize(
    ("misuse", "error", "match"),
    [
        (lambda c: c.step(), BackupError, r"call restore\(\) before training"),
        (lambda c: (c.restore(), c.restore()), BackupError, "called already"),
        (lambda c: next(c.batches([])), BackupError, r"call restore\(\)"),
    ],
)
def test_misuse_is_refused(tmp_path: Path, misuse: Any, error: type[Exception], match: str) -> None:
    checkpointer = kdc.Checkpointer(tmp_path, model=tiny.model())
    with pytest.raises(error, match=match):
        misuse(checkpointer)


def test_an_optimizer_without_variables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimizer.build"):
        kdc.Checkpointer(tmp_path, model=tiny.model(), optimizer=keras.optimizers.Adam())


def test_a_model_that_counts_as_built_without_any_weight_is_refused(tmp_path: Path) -> None:
    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def build(self, shape: Any) -> None:
            pass

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model, optimizer = Late(), keras.optimizers.Adam()
    model.build((None, 3))
    optimizer.build(model.trainable_variables)
    with pytest.raises(ConfigError, match="call the model on a batch"):
        kdc.Checkpointer(tmp_path, model=model, optimizer=optimizer)


@pytest.mark.slow
def test_a_backup_of_another_model_is_refused(tmp_path: Path) -> None:
    tiny.stopped(loop, tmp_path, (1, 1))
    with pytest.raises(BackupMismatchError, match="this model does not match the backup"):
        loop(tmp_path, units=9)


@pytest.mark.in_gate(1)
@pytest.mark.kill
@pytest.mark.timeout(400)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_example_is_killed_twice_and_ends_bit_identical(tmp_path: Path, workers: int) -> None:
    def run(name: str, kills: list[str]) -> str:
        command = [sys.executable, SCRIPT, str(tmp_path / name), str(tmp_path / name)]
        with worker_processes(command, workers, tmp_path / f"logs-{name}", grace=3.0) as cluster:
            attempts = run_until_done(cluster, len(kills), 200.0, extra_args=[*([k] for k in kills), ["never"]])
            assert attempts[-1].succeeded, cluster.tails()
            assert len(attempts) == len(kills) + 1
            return "\n".join(line for line in cluster.log(0).splitlines() if line.startswith("epoch "))

    printed = run("reference", [])
    assert len(printed.splitlines()) == 3
    if workers == 1:
        assert_said("custom_training_loop", printed)
    run("killed", ["1:4", "1:7"])
    killed = workers - 1
    assert (tmp_path / f"killed-steps{killed}").read_text() == (tmp_path / f"reference-steps{killed}").read_text()
    for worker in range(workers):
        assert (tmp_path / f"killed-end{worker}").read_text() == (tmp_path / f"reference-end{worker}").read_text()


def trained_apart(
    checkpointer: kdc.Checkpointer, optimizer: Any, model: Any, rows: Any, *, epochs: int, step: bool = False
) -> None:
    for _ in checkpointer.epochs(epochs):
        for x, y in rows:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            if step:
                checkpointer.step()


@pytest.mark.finds("loop-uncounted")
@pytest.mark.parametrize("save_freq", ["epoch", 30])
def test_a_loop_that_counts_no_step_is_warned_once_and_never_called_exact(
    tmp_path: Path, save_freq: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = tiny.model(), keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    options = {"model": model, "optimizer": optimizer, "save_freq": save_freq, "delete_checkpoint": False}
    effect = "hold no position in the data" if save_freq == "epoch" else "no backup is written"
    with kdc.Checkpointer(tmp_path, **options) as checkpointer:
        checkpointer.restore()
        with pytest.warns(RuntimeWarning, match=rf"counted no step, so .*{effect}.*checkpointer.step\(\)") as told:
            trained_apart(checkpointer, optimizer, model, tiny.shuffled(), epochs=2)
    assert len(told) == 1
    second = kdc.Checkpointer(tmp_path, **options)
    assert second.restore()
    shown = capsys.readouterr().out
    assert "exact if your loop gives each step the same batch as before" in shown
    assert "your loop itself resumes at the right batch" in shown
    (row, *_) = kdc_json("ls", tmp_path)["commits"]
    assert row["verdict"] == "exact if"
    assert all(condition in shown for condition in row["conditions"])


@pytest.mark.finds("loop")
def test_a_loop_without_epochs_that_counts_no_step_is_warned_at_the_end(tmp_path: Path) -> None:
    model, optimizer = tiny.model(), keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    checkpointer = kdc.Checkpointer(tmp_path, model=model, optimizer=optimizer)
    checkpointer.restore()
    optimizer.apply([tf.ones_like(v) for v in model.trainable_variables], model.trainable_variables)
    with pytest.warns(RuntimeWarning, match="counted no step"):
        checkpointer.close()


def test_ls_says_of_a_loop_what_its_resume_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop(tmp_path, epochs=1, delete_checkpoint=False)
    (row, *_) = kdc_json("ls", tmp_path)["commits"]
    capsys.readouterr()
    loop(tmp_path, epochs=1, delete_checkpoint=False)
    assert row["verdict"] == "exact if"
    assert f"exact if {'; and if '.join(row['conditions'])}" in capsys.readouterr().out


def test_an_exception_in_a_loop_with_batches_of_its_own_saves_nothing(tmp_path: Path) -> None:
    """The Checkpointer does not know whether a step is in progress, and half a step must not become a backup."""
    model, optimizer = tiny.model(), keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)

    def rows() -> Any:
        yield from list(tiny.shuffled())[:2]
        raise tiny.Stop

    def train() -> None:
        with kdc.Checkpointer(tmp_path, model=model, optimizer=optimizer) as checkpointer:
            checkpointer.restore()
            trained_apart(checkpointer, optimizer, model, rows(), epochs=1, step=True)

    tiny.stopped(train)
    assert kdc_json("ls", tmp_path)["commits"] == []


def test_an_exception_in_a_loop_that_counts_no_step_promises_nothing(tmp_path: Path) -> None:
    model, optimizer = tiny.model(), keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)

    def train() -> None:
        with kdc.Checkpointer(tmp_path, model=model, optimizer=optimizer) as checkpointer:
            checkpointer.restore()
            optimizer.apply([tf.ones_like(v) for v in model.trainable_variables], model.trainable_variables)
            raise tiny.Stop

    with pytest.raises(tiny.Stop) as raised:
        train()
    assert raised.value.__notes__ == ["no backup was committed; a restart starts from the beginning"]


@pytest.mark.parametrize("verbose", [0, 1])
def test_what_was_restored_is_an_attribute_and_verbose_0_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: int
) -> None:
    tiny.stopped(loop, tmp_path, (1, 2), verbose=verbose)
    capsys.readouterr()
    model, optimizer, metric = tiny.model(), keras.optimizers.Adam(0.01), keras.metrics.Mean()
    optimizer.build(model.trainable_variables)
    state = {"history": [], "noise": np.zeros(2, "float32")}
    checkpointer = kdc.Checkpointer(
        tmp_path, model=model, optimizer=optimizer, metrics=[metric], state=state, verbose=verbose
    )
    assert checkpointer.restored is None
    assert checkpointer.restore()
    restored = checkpointer.restored
    assert restored is not None
    assert (restored.position.epoch, restored.position.batch, restored.position.step) == (1, 2, 7)
    assert (restored.verdict, restored.notes) == ("exact if", ())
    assert ("exact if" in capsys.readouterr().out) == bool(verbose)
    checkpointer.close()
