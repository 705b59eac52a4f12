"""Fits that are not the usual one: resumed exactly, or refused or labelled, never silently wrong."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, ConfigError
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support import files, tiny
from tests.support.early_exits import ActionAt, fail

pytestmark = pytest.mark.slow  # complete fits


def rows(batch: int = 4) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data()).batch(batch)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("epochs", [0, 1])
def test_fewer_epochs_than_the_backup_has_are_warned_of_in_its_process_and_nothing_is_deleted(
    tmp_path: Path, epochs: int
) -> None:
    tiny.interrupt(tmp_path, 1, 3)
    before, steps = files(tmp_path), tiny.CountSteps()
    with pytest.warns(RuntimeWarning, match=r"runs no step: an earlier fit\(\) .* has left .* at epoch 2, batch 3"):
        tiny.fit(tiny.model(), tmp_path, [steps], epochs=epochs)
    assert steps.trained == []
    assert before == files(tmp_path)


def test_another_initial_epoch_than_the_backups_is_refused(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 0, 3)
    with pytest.raises(ConfigError, match=r"the backup is from epoch 0, but fit\(\) begins at epoch 2"):
        tiny.fit(tiny.model(), tmp_path, initial_epoch=2)


def several_steps(steps: int) -> keras.Model:
    model = tiny.model()
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", steps_per_execution=steps)
    return model


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("known", [True, False], ids=["known length", "unknown length"])
@pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
def test_a_last_execution_with_fewer_batches_resumes_exactly(tmp_path: Path, known: bool) -> None:
    def data() -> tf.data.Dataset:  # 10 batches, 4 at a time
        return rows() if known else rows().filter(lambda x, y: True)

    stop = ActionAt("on_epoch_end", (1, 0), fail)
    tiny.resumes(tmp_path, lambda: several_steps(4), at=stop, x=data, expects=None)


@pytest.mark.finds("steps_per_execution")
def test_another_steps_per_execution_is_labelled(tmp_path: Path) -> None:
    first, again = (lambda steps=steps: several_steps(steps) for steps in (2, 1))
    said = "steps_per_execution changed from 2 to 1"
    tiny.resumes(tmp_path, first, again=again, at=(1, 4), x=rows, expects="not exact", saying=said)


class Noisy(keras.Model):
    """Draws unseeded Keras noise in its step: the global seed generator is made there, not before."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 6))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.dense(x + 0.1 * keras.random.normal(tf.shape(x)))


def test_a_seed_that_is_made_within_the_first_step_resumes_exactly(tmp_path: Path) -> None:
    tiny.resumes(tmp_path, lambda: tiny.compiled(Noisy, "adam"), expects=None)


class SlowPublishing(keras.callbacks.Callback):
    """Another job is in the writer's queue while a backup is due, and everything is written before the next step."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.go_on = threading.Event()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == tiny.STEPS - 1:
            shared_writer().submit(functools.partial(self.go_on.wait, 60), "a slow upload of a checkpoint")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.go_on.set()
        assert shared_writer().wait(60)


def test_checkpoints_at_the_same_steps_do_not_starve_backups(tmp_path: Path) -> None:
    checkpoint = kdc.ModelCheckpoint(tmp_path / "c-{epoch}-{batch}.keras", save_freq=5)
    backup = kdc.BackupAndRestore(tmp_path / "backup", save_freq=5)
    tiny.stopped(tiny.fit, tiny.model(), None, [SlowPublishing(), checkpoint, backup, tiny.StopAt(2, 0)])
    restored = kdc.BackupAndRestore(tmp_path / "backup", save_freq=5)
    tiny.fit(tiny.model(), None, [checkpoint, restored])
    assert restored.restored is not None
    assert restored.restored.position.step == 10


def test_a_callback_list_of_the_users_own_resumes_exactly(tmp_path: Path) -> None:
    def run(*extra: Any) -> Any:
        model, stopping = tiny.model(), keras.callbacks.EarlyStopping("loss", min_delta=10, patience=2)
        callbacks: Any = [*extra, stopping]
        if extra:
            callbacks = keras.callbacks.CallbackList(
                callbacks, add_history=True, model=model, epochs=5, steps=tiny.STEPS
            )
        return model, model.fit(tiny.shuffled(), epochs=5, verbose=0, callbacks=callbacks, shuffle=False)

    tiny.resumes(tmp_path, run=run, at=(2, 1), expects=None)


class WithPlainVariable(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.plain = tf.Variable(0.0, trainable=False, name="plain")

    def call(self, x: Any) -> Any:
        self.plain.assign_add(1.0)
        return x


def with_plain_variable(layer: Any = WithPlainVariable, *, eager: bool = True) -> keras.Model:
    return tiny.compiled(lambda: tiny.sequential(layer(), keras.layers.Dense(1)), run_eagerly=eager)


@pytest.mark.parametrize("eager", [False, True])
def test_variables_that_keras_does_not_know_are_found_in_the_train_step(tmp_path: Path, eager: bool) -> None:
    ended = tiny.resumes(tmp_path, lambda: with_plain_variable(eager=eager))
    assert ended.model.layers[0].plain.numpy() == 3 * tiny.STEPS


class MadeByTheFirstStep(WithPlainVariable):
    """Keras does not know the variable, and a run that starts again has not made it yet."""

    def __init__(self) -> None:
        keras.layers.Layer.__init__(self)

    def call(self, x: Any) -> Any:
        if not tf.executing_eagerly():  # while the model is built
            return x
        if not hasattr(self, "plain"):
            self.plain = tf.Variable(0.0, trainable=False, name="plain")
        return super().call(x)


@pytest.mark.finds("step-variables")
def test_variables_that_do_not_exist_at_an_eager_resume_are_named(tmp_path: Path) -> None:
    said = r"variables .* \(\S*plain:0\) are not restored: number 1 was "
    make = lambda: with_plain_variable(MadeByTheFirstStep)  # noqa: E731
    tiny.resumes(tmp_path, make, expects="not exact", saying=said)


class OwnStep(keras.Model):
    """Takes a dict that the model itself does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 6))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(batch["rows"]) - batch["labels"]))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_a_train_step_with_inputs_of_its_own_resumes(tmp_path: Path) -> None:
    def data() -> tf.data.Dataset:
        x, y = tiny.data()
        return tf.data.Dataset.from_tensor_slices({"rows": x, "labels": y}).batch(tiny.BATCH)

    tiny.resumes(tmp_path, lambda: tiny.compiled(OwnStep, "adam"), x=data, expects=None)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9),
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=2.0, dynamic_growth_steps=3
        ),
        lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
        lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
    ],
    ids=["schedule", "loss scaling", "averages", "gradient accumulation"],
)
def test_optimizers_with_a_state_of_their_own_resume_exactly(tmp_path: Path, make: Any) -> None:
    def layers() -> keras.Model:
        dense = keras.layers.Dense
        return tiny.sequential(dense(7, activation="relu"), keras.layers.Dropout(0.3), dense(1, activation="sigmoid"))

    tiny.resumes(
        tmp_path, lambda: tiny.compiled(layers, make, "binary_crossentropy", metrics=["accuracy"]), expects=None
    )


@pytest.mark.finds("finished-averages")
def test_more_epochs_after_a_run_that_finalized_its_weights_are_labelled(tmp_path: Path) -> None:
    def model() -> keras.Model:
        return tiny.model(optimizer=keras.optimizers.SGD(0.01, use_ema=True))

    keep = {"delete_checkpoint": False}
    tiny.fit(model(), tmp_path, epochs=2, options=keep)
    with pytest.warns(RuntimeWarning, match="the finished run may have replaced its weights at the end"):
        tiny.fit(model(), tmp_path, epochs=3, options=keep)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_a_callback_that_raises_between_steps_leaves_nothing_to_a_later_fit(tmp_path: Path, hook: str) -> None:
    tiny.interrupt(tmp_path, 2, 0)
    model, raises = tiny.model(), keras.callbacks.LambdaCallback(**{hook: lambda epoch, logs: fail()})
    tiny.stopped(tiny.fit, model, tmp_path, [raises], epochs=4)
    steps = tiny.CountSteps()
    tiny.fit(model, None, [steps], epochs=1)
    assert steps.trained[0] == (0, 0)


def test_a_write_of_an_earlier_fit_that_failed_does_not_end_the_next(tmp_path: Path) -> None:
    def fail() -> None:
        raise BackupError("an old upload")

    shared_writer().submit(fail, "an old upload")
    with pytest.warns(RuntimeWarning, match=r"a write of an earlier fit\(\) failed: an old upload"):
        tiny.fit(tiny.model(), tmp_path, epochs=1)


def test_a_final_backup_that_fails_keeps_the_last_good_one(tmp_path: Path) -> None:
    backup = tmp_path / "backup"

    class BreakTheStore(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            shared_writer().wait()
            (backup / "commits").rename(tmp_path / "aside")
            (backup / "commits").write_text("in the way")

    with pytest.warns(RuntimeWarning) as caught:
        tiny.fit(tiny.model(), backup, [BreakTheStore()])
    assert any("is kept instead of being deleted" in str(w.message) for w in caught)
    assert list((tmp_path / "aside").glob("*.json"))
