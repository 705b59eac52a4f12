"""A loop of the user's that does something before an epoch's first batch: it draws an order, or resets what it sums."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support import tiny
from tests.support.callback_helpers import memory_url
from tests.support.cli_backups import kdc_json
from tests.support.early_exits import FOREVER

EPOCHS, STEPS, ROWS = 3, 4, 12
WAIT = kdc.WriteOptions(when_busy="wait")


class Loop:
    """Three epochs of four steps; what is trained depends on the order of its rows.

    Attributes:
        draw: Gives the order of an epoch's rows, before its first batch.
        once: Is called between `restore()` and the first epoch; what it returns moves each step.
        begin: Is called before an epoch's first batch.
    """

    def __init__(
        self,
        draw: Callable[[Loop], Any] = lambda loop: range(ROWS),
        once: Callable[[Loop], Any] = lambda loop: 0.0,
        begin: Callable[[Loop], Any] = lambda loop: None,
    ) -> None:
        keras.utils.clear_session(free_memory=False)  # before Keras 3.13, a seed does not set its global generator back
        keras.utils.set_random_seed(7)
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))
        self.draw, self.once, self.begin = draw, once, begin
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.5)
        self.optimizer.build(self.model.trainable_variables)
        self.metric = keras.metrics.Mean()
        self.seeds = keras.random.SeedGenerator(3)
        self.generator = tf.random.Generator.from_seed(4)
        self.history: list[float] = []
        self.state: dict[str, Any] = {"history": self.history, "running": 0.0, "counts": np.zeros(2)}

    def step(self, rows: Any) -> None:
        """Sums that do not depend on the order alone would tell nothing."""
        rate = float(self.optimizer.learning_rate)
        drawn = np.random.random() + random.random()  # noqa: S311
        value = np.float32(np.dot(np.asarray(rows, "float32"), [1.0, 0.7, 0.3]) + drawn)
        self.model.weights[0].assign(self.model.weights[0] * 0.9 + rate * value + float(keras.random.normal(())))
        self.metric.update_state(value)
        self.state["running"] += float(value)
        self.state["counts"] += 1

    def run(self, directory: Path | None, stop: tuple[int, int] | None = None) -> dict[str, Any]:
        with kdc.Checkpointer(
            directory or memory_url(),
            model=self.model,
            optimizer=self.optimizer,
            metrics=[self.metric],
            variables=[self.seeds.state, self.generator.state],
            state=self.state,
            save_freq=1,
            write_options=WAIT,
            verbose=0,
        ) as checkpointer:
            checkpointer.restore()
            shift = self.once(self)
            for epoch in checkpointer.epochs(EPOCHS):
                self.begin(self)
                order = np.asarray(self.draw(self)).reshape(STEPS, -1)
                for rows in checkpointer.batches(order):
                    if (epoch, checkpointer.batch) == stop:
                        raise tiny.Stop
                    self.step(rows + shift)
                    checkpointer.step()
                if (epoch, STEPS) == stop:
                    raise tiny.Stop
                self.history.append(float(self.metric.result()) + np.random.random())
        return {"weight": self.model.get_weights()[0], "history": self.history, **self.state}


def _shuffled(rows: list[int]) -> list[int]:
    random.shuffle(rows)
    return rows


def _in_file_order(dataset: tf.data.Dataset) -> list[int]:
    return [int(row) for row in dataset]


DRAWS = {
    "numpy": lambda loop: np.random.permutation(ROWS),
    "python": lambda loop: _shuffled(list(range(ROWS))),
    "TensorFlow": lambda loop: tf.random.shuffle(tf.range(ROWS)),
    "a dataset without a seed": lambda loop: _in_file_order(tf.data.Dataset.range(ROWS).shuffle(ROWS)),
    "a drawn seed": lambda loop: np.random.default_rng(np.random.randint(10**6)).permutation(ROWS),
    "keras.random": lambda loop: keras.random.shuffle(np.arange(ROWS)),
    "a SeedGenerator": lambda loop: keras.random.shuffle(np.arange(ROWS), seed=loop.seeds),
    "a tf.random.Generator": lambda loop: np.argsort(loop.generator.normal([ROWS])),
    "TensorFlow's global generator": lambda loop: np.argsort(tf.random.get_global_generator().normal([ROWS])),
}
ONCE = {
    "numpy, once": lambda loop: np.random.random(),
    "python, once": lambda loop: random.random(),  # noqa: S311
    "TensorFlow, once": lambda loop: float(tf.random.normal([])),
    "keras.random, once": lambda loop: float(keras.random.normal(())),
}
BEGINS = {
    "a sum that is reset": lambda loop: loop.state.update(running=0.0),
    "a metric that is reset": lambda loop: loop.metric.reset_state(),
    "a rate that decays": lambda loop: loop.optimizer.learning_rate.assign(loop.optimizer.learning_rate * 0.5),
    "weights that are scaled": lambda loop: loop.model.weights[0].assign(loop.model.weights[0] * 2),
    "a list that grows": lambda loop: loop.history.append(1.0),
    "an array that is written to": lambda loop: loop.state["counts"].fill(0),
    "an array that is replaced": lambda loop: loop.state.update(counts=np.ones(2)),
}
LOOPS = {
    **{name: {"draw": draw} for name, draw in DRAWS.items()},
    **{name: {"once": once} for name, once in ONCE.items()},
    **{name: {"begin": begin} for name, begin in BEGINS.items()},
}


@pytest.mark.slow
@pytest.mark.in_gate(8)
@pytest.mark.parametrize("stop", [(0, 2), (1, 1), (2, STEPS)], ids=str)
@pytest.mark.parametrize("name", LOOPS)
def test_what_a_loop_does_before_its_first_batch_is_as_in_a_run_without_a_restart(
    tmp_path: Path, name: str, stop: tuple[int, int]
) -> None:
    tiny.script_resumes(tmp_path, lambda directory, stop: Loop(**LOOPS[name]).run(directory, stop), stop)


def test_it_holds_for_a_second_restart_in_the_same_epoch(tmp_path: Path) -> None:
    both = {**LOOPS["numpy"], **LOOPS["a metric that is reset"]}
    tiny.script_resumes(tmp_path, lambda directory, stop: Loop(**both).run(directory, stop), (1, 1), (1, 3))


def test_an_exception_before_the_first_batch_of_a_resumed_epoch_saves_what_was_restored(tmp_path: Path) -> None:
    def fails(loop: Loop) -> None:
        loop.metric.reset_state()
        np.random.random()
        if loop.state["running"]:
            raise tiny.Stop

    def script(directory: Path | None, stop: Any) -> dict[str, Any]:
        begins = {"begin": fails} if stop == "at its begin" else {}
        return Loop(**LOOPS["numpy"], **begins).run(directory, stop)

    tiny.script_resumes(tmp_path, script, (1, 2), "at its begin")


def test_what_is_set_between_restore_and_the_first_epoch_stays(tmp_path: Path) -> None:
    def with_rate(loop: Loop) -> float:
        loop.optimizer.learning_rate.assign(0.125)
        return 0.0

    tiny.stopped(Loop().run, tmp_path, (1, 2))
    edited = Loop(once=with_rate)
    edited.run(tmp_path)
    assert float(edited.optimizer.learning_rate) == 0.125


class Steps:
    """A loop without a dataset: `steps` of them in each epoch, where it takes them from `take`."""

    def __init__(self, steps: int = 3) -> None:
        keras.utils.set_random_seed(7)
        self.steps = steps
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.count = tf.Variable(0)
        self.trained: list[tuple[int, int]] = []

    def run(
        self,
        directory: Path | None,
        take: Callable[..., Any],
        stop: int | None = None,
        *,
        epochs: int = 4,
        **options: Any,
    ) -> Steps:
        with kdc.Checkpointer(
            directory or memory_url(),
            **{"model": self.model, "variables": [self.count], "save_freq": 1, "write_options": WAIT, **options},
        ) as checkpointer:
            checkpointer.restore()
            for epoch in checkpointer.epochs(epochs):
                for number in take(checkpointer, self.steps):
                    if len(self.trained) == stop:
                        raise tiny.Stop
                    self.count.assign(self.count * 3 % 1009 + 1)
                    self.trained.append((epoch, number))
                    checkpointer.step()
        return self

    @property
    def value(self) -> int:
        return int(self.count)


def _alone(checkpointer: kdc.Checkpointer, steps: int) -> Any:
    return range(steps)


def _from_batch(checkpointer: kdc.Checkpointer, steps: int) -> Any:
    return range(checkpointer.batch, steps)


def _from_batches(checkpointer: kdc.Checkpointer, steps: int) -> Any:
    return checkpointer.batches(range(steps))


@pytest.mark.parametrize(
    ("take", "steps", "stop", "repeated"),
    [(_alone, 1, 2, 0), (_alone, 3, 4, 1), (_alone, 3, 8, 2), (_from_batch, 3, 7, 0), (_from_batches, 3, 2, 0)],
    ids=["one step", "several", "several, at the last", "from checkpointer.batch", "from batches(range)"],
)
def test_a_loop_without_a_dataset_trains_each_step_once(
    tmp_path: Path, take: Callable[..., Any], steps: int, stop: int, repeated: int
) -> None:
    """One that does not say where it is is saved at the ends of its epochs: the unsaved steps are trained again."""
    ran = []

    def script(directory: Path | None, stop: int | None) -> int:
        ran.append(Steps(steps))
        return ran[-1].run(directory, take, stop).value

    tiny.script_resumes(tmp_path, script, stop)
    assert len(ran[1].trained) == 4 * steps - stop + repeated


@pytest.mark.finds("loop-begins")
def test_of_a_first_epoch_whose_steps_are_unknown_a_resume_names_the_condition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.stopped(Steps().run, tmp_path, _alone, 2)
    capsys.readouterr()
    Steps().run(tmp_path, _alone)
    assert "and if your loop begins the interrupted epoch at checkpointer.batch" in capsys.readouterr().out


def test_that_backups_wait_for_the_end_of_an_epoch_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Steps().run(tmp_path / "alone", _alone)
    assert capsys.readouterr().out.count("Backups are made at the ends of epochs") == 1
    for take, steps in ((_alone, 1), (_from_batch, 3), (_from_batches, 3)):
        Steps(steps).run(tmp_path / "others", take)
    assert "Backups are made at the ends of epochs" not in capsys.readouterr().out


def test_a_request_to_end_is_obeyed_where_a_resume_can_go_on(tmp_path: Path) -> None:
    def then_asked(checkpointer: kdc.Checkpointer, steps: int) -> Any:
        for number in range(steps):
            if (checkpointer.epoch, number) == (1, 1):
                os.kill(os.getpid(), signal.SIGTERM)
            yield number

    expected = Steps().run(tmp_path / "reference", _alone).value
    ends = kdc.ShutdownOptions(grace_period=FOREVER)
    with pytest.raises(kdc.Preempted, match="the end of epoch 2"):
        Steps().run(tmp_path / "backup", then_asked, save_freq=100, shutdown_options=ends)
    assert Steps().run(tmp_path / "backup", _alone).value == expected


def test_an_epoch_of_two_passes_is_saved_in_its_first_one_and_at_its_end(tmp_path: Path) -> None:
    def two(checkpointer: kdc.Checkpointer, steps: int) -> Any:
        yield from checkpointer.batches(range(steps))
        yield from checkpointer.batches(range(10, 10 + steps))

    for stop in (7, 10):
        tiny.script_resumes(tmp_path / f"{stop}", lambda place, stop: Steps().run(place, two, stop).value, stop)


def test_two_iterators_in_turn_are_saved_at_the_ends_of_epochs(tmp_path: Path) -> None:
    def in_turn(checkpointer: kdc.Checkpointer, steps: int) -> Any:
        one, other = (checkpointer.iterator(range(steps * by), made_for_epoch=True) for by in (1, 1))
        yield from (first * 10 + second for first, second in zip(one, other, strict=True))

    ran = []

    def script(directory: Path | None, stop: int | None) -> int:
        ran.append(Steps())
        return ran[-1].run(directory, in_turn, stop).value

    tiny.script_resumes(tmp_path, script, 5)
    _, found, expected = ran
    assert found.trained == expected.trained[3:]


@pytest.mark.finds("loop-twice")
def test_a_save_within_a_second_pass_is_called_not_exact(tmp_path: Path) -> None:
    checkpointer = kdc.Checkpointer(tmp_path, model=Steps().model)
    checkpointer.restore()
    for _ in checkpointer.epochs(1):
        for _ in range(2):
            next(checkpointer.batches(range(3)))
            checkpointer.step()
        checkpointer.save()
        shared_writer().wait()
        (row, *_) = kdc_json("ls", tmp_path)["commits"]
        assert row["verdict"] == "not exact"
        assert "more than once in the interrupted epoch" in row["inexact_reasons"][0]
        break


def test_batches_again_without_an_end_of_an_epoch_is_an_error(tmp_path: Path) -> None:
    checkpointer = kdc.Checkpointer(tmp_path, model=Steps().model)
    checkpointer.restore()
    for _ in checkpointer.batches(range(2)):
        checkpointer.step()
    with pytest.raises(ConfigError, match=r"take the epochs from Checkpointer.epochs\(\)"):
        next(checkpointer.batches(range(2)))
