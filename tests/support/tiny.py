"""A tiny model with everything that makes resuming hard, and a fit() that can be interrupted."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.snapshot import strip_counters
from tests.support import forget_runs
from tests.support.grouped import grouped

ROWS, BATCH = 40, 8
STEPS = ROWS // BATCH


class Stop(Exception):  # noqa: N818 - stands for any exception of a user
    pass


class StopAt(keras.callbacks.Callback):
    """Ends training with an exception before a batch is trained, as a crash would."""

    def __init__(self, epoch: int, batch: int, error: BaseException | None = None) -> None:
        super().__init__()
        self.where, self.error = (epoch, batch), error or Stop("stopped here")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.where:
            raise self.error


class CountSteps(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.trained: list[tuple[int, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.trained.append((self.epoch, batch))


for stateless in (StopAt, CountSteps):  # what they note is about one run
    kdc.advanced.register_callback_state(stateless, None)


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data()).shuffle(ROWS, seed=3, reshuffle_each_iteration=True).batch(BATCH)


def model(units: int = 7, optimizer: Any = None, *, clear: bool = True) -> keras.Model:
    """Quick to trace, for tests of what is around a model: its weights depend on every batch, their order and masks."""
    first = _first_layers(units, clear=clear)
    built = keras.Sequential([*first, keras.layers.Dense(1, activation="sigmoid")])
    momentum = keras.optimizers.SGD(0.1, momentum=0.9, name="momentum")  # not one that a test gives its own
    built.compile(optimizer or momentum, "binary_crossentropy", metrics=["accuracy"])
    return _built(built)


def rich_model(units: int = 7) -> keras.Model:
    """With every kind of variable: slots of Adam, moving statistics, seeds, metrics that are not means."""
    first = _first_layers(units, clear=True)
    last = [keras.layers.BatchNormalization(), keras.layers.Dense(1, activation="sigmoid")]
    built = keras.Sequential([*first, *last])
    built.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy", "AUC"])
    return _built(built)


def _built(model: keras.Model) -> keras.Model:
    """With the variables of the optimizer and the metrics: where a step makes them, TensorFlow traces it twice."""
    model._symbolic_build(data_batch=tuple(array[:BATCH] for array in data()))
    return model


def compiled(make: Callable[[], Any], optimizer: Any = "sgd", loss: Any = "mse", **options: Any) -> Any:
    """A model of the test's own, as in a new process: names and random numbers begin again; also of its optimizer."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    built = make()
    built.compile(optimizer() if callable(optimizer) else optimizer, loss, **options)
    return built


def sequential(*layers: Any) -> keras.Model:
    return keras.Sequential([keras.Input((6,)), *layers])


def _first_layers(units: int, *, clear: bool) -> list[Any]:
    if clear:
        keras.utils.clear_session(free_memory=False)  # a collection takes as long as a short fit
    keras.utils.set_random_seed(7)
    return [keras.Input((6,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(0.3)]


def backed_up(directory: Path | str, save_freq: str | int = 1, **options: Any) -> kdc.BackupAndRestore:
    """For runs in which an exception stands for a crash, which saves nothing."""
    crashes = {"save_on_exception": False, "when_busy": "wait", **options}
    return kdc.BackupAndRestore(directory, save_freq=save_freq, **grouped(**crashes))


def fit(
    built: keras.Model,
    backup: Path | str | None,
    callbacks: Sequence[Any] = (),
    *,
    epochs: int = 3,
    save_freq: str | int = 1,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> keras.callbacks.History:
    """fit() on the shuffled dataset; without a shuffle warning of Keras, backed up if a directory is given."""
    every = [*callbacks, *([] if backup is None else [backed_up(backup, save_freq, **(options or {}))])]
    x = arguments.pop("x", None)
    return built.fit(
        shuffled() if x is None else x,
        epochs=epochs,
        verbose=0,
        callbacks=every,
        shuffle=arguments.pop("shuffle", False),
        **arguments,
    )


def state(built: keras.Model) -> dict[str, np.ndarray]:
    """Every variable of training."""
    from keras_dist_callbacks._compat.variables import named_variables

    return {name: variable.numpy() for name, variable in named_variables(built).items()}


def values(built: Any) -> list[np.ndarray]:
    """Of the weights and the optimizer, by their order: Keras may have given them other names."""
    return [np.array(v.numpy()) for v in (*built.weights, *built.optimizer.variables)]


def interrupt(
    backup: Path | str,
    epoch: int,
    batch: int,
    save_freq: str | int = 1,
    *,
    built: Any = None,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> None:
    """A run that ends with an exception before a batch is trained."""
    stop = [*callbacks, StopAt(epoch, batch)]
    stopped(fit, built or model(), backup, stop, save_freq=save_freq, **options)


def stopped(run: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """A run that ends with an exception."""
    try:
        run(*arguments, **options)
    except Stop:
        return  # not `pytest.raises`: jobs import this module, and not pytest, which takes as long as their training
    raise AssertionError("training did not come to where it was to stop")


@dataclass(frozen=True)
class Ended:
    """What a run has ended with, and what its callback says if it was resumed."""

    model: Any
    history: Any = None
    callbacks: Sequence[Any] = ()
    restored: Any = None
    expected: Any = None

    @property
    def said(self) -> str:
        return "; ".join((*self.restored.notes, *self.restored.conditions))


def resumes(
    directory: Path | str,
    make: Callable[[], keras.Model] = model,
    *,
    at: Any = (1, 2),
    again: Callable[[], keras.Model] | None = None,
    then: dict[str, Any] | None = None,
    callbacks: Callable[[], Sequence[Any]] = tuple,
    run: Callable[..., Any] | None = None,
    expects: str | None = "exact",
    saying: str = "",
    alike: bool | None = None,
    save_freq: str | int = 1,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Ended:
    """Interrupts a fit, resumes it as in another process, and compares its end with that of an uninterrupted one.

    Args:
        directory: Of the backups.
        make: The model.
        at: Before which batch it is interrupted, as (epoch, batch), perhaps with a `save_freq` of its own, or the
            callback that does it; or a tuple of these, one after the other.
        again: The model of the run that resumes, if that is another one.
        then: Its arguments of `fit` that are other ones.
        callbacks: Makes those of a run, after its model.
        run: Makes and fits the model by itself, with the callbacks that it is given; what it returns is compared.
        expects: The verdict; None if it does not matter here.
        saying: What the notes and conditions contain, as a regular expression.
        alike: Whether to compare every variable and the logs with those of an uninterrupted run; as a rule if that is
            exact, or no verdict is expected.
        options: Of `BackupAndRestore`.
        arguments: Of `fit`; a function is called for the value.
    """

    def train(make: Callable[[], keras.Model], arguments: dict[str, Any], *extra: Any) -> Ended:
        if run is not None:
            return Ended(run(*extra))
        built, own = make(), list(callbacks())
        given = {name: value() if callable(value) else value for name, value in arguments.items()}
        return Ended(built, fit(built, None, [*own, *extra], **given), own)

    options = options or {}
    for place in at if isinstance(at, tuple) and not isinstance(at[0], int) else (at,):
        stop, *freq = (StopAt(*place[:2]), *place[2:]) if isinstance(place, tuple) else (place,)
        stopped(train, make, arguments, stop, backed_up(directory, *(freq or [save_freq]), **options))
        forget_runs()
    last = backed_up(directory, save_freq, **options)
    with _warned("the resume is not exact" if expects == "not exact" else None):
        found = train(again or make, arguments | (then or {}), last)
    assert last.restored is not None, "no backup was found"
    assert expects in (None, last.restored.verdict), last.restored
    found = replace(found, restored=last.restored)
    assert re.search(saying, found.said), last.restored
    if alike or (alike is None and expects in ("exact", None)):
        expected = _once((run or make, callbacks, *arguments.items()), lambda: train(make, arguments))
        assert_same(found, expected)
        found = replace(found, expected=expected)
    return found


def script_resumes(directory: Path, script: Callable[..., Any], *stops: Any, alike: bool = True) -> Any:
    """The same of a script that has backups of its own: it is given a directory or None, and where to stop or None."""
    for stop in stops:
        stopped(script, directory, stop)
        forget_runs()
    found = script(directory, None)
    if alike:
        assert_same(found, _once((script,), lambda: script(None, None)))
    return found


def _warned(match: str | None) -> Any:
    import pytest

    return pytest.warns(RuntimeWarning, match=match) if match else contextlib.nullcontext()


_ENDS: dict[Any, Any] = {}


def _once(of: tuple[Any, ...], run: Callable[[], Any]) -> Any:
    """An uninterrupted run, once for all tests that give the same functions of their module, and numbers."""
    parts = [part for item in of for part in (item if isinstance(item, tuple) else [item])]
    if any("<locals>" in getattr(p, "__qualname__", "" if isinstance(p, int | str) else "<locals>") for p in parts):
        return run()
    if of not in _ENDS:
        _ENDS[of] = run()
    return _ENDS[of]


def assert_same(first: Any, second: Any) -> None:
    """Bit by bit: models with every variable, ends of runs, and lists and dicts of these and of other values."""
    if isinstance(first, keras.Model):
        ours, theirs = state(first), state(second)
        assert len(ours) == len(theirs)
        for (name, value), (other, expected) in zip(ours.items(), theirs.items(), strict=True):
            # Keras numbers models by the process, and names a wrapped optimizer's slots after where they were built
            one, two = strip_counters(name), strip_counters(other)
            assert one.endswith(two) or two.endswith(one), f"{name} against {other}"
            np.testing.assert_array_equal(value, expected, err_msg=name)
    elif isinstance(first, Ended):
        assert_same([first.model, first.history], [second.model, second.history])
    elif isinstance(first, keras.callbacks.History):
        assert_same([first.epoch, first.history], [second.epoch, second.history])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for ours, theirs in zip(first, second, strict=True):
            assert_same(ours, theirs)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_same(first[name], second[name])
    else:
        np.testing.assert_array_equal(first, second)
