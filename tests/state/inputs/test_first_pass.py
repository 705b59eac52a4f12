"""A dataset that shuffles again in each pass, and was read before fit() in one of the runs only, is another input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import inputs, tiny

pytestmark = pytest.mark.slow  # complete fits
Fit = dict[str, Any]


def batched() -> Fit:
    return {"x": inputs.shuffle(inputs.rows(), None).batch(tiny.BATCH)}


def seeded() -> Fit:
    return {"x": tiny.shuffled()}


def two_shuffles() -> Fit:
    rows = inputs.shuffle(inputs.rows(), None)
    return {"x": rows.batch(2).shuffle(20).unbatch().batch(tiny.BATCH)}


def endless() -> Fit:
    return {"x": inputs.shuffle(inputs.rows(), None).repeat().batch(tiny.BATCH), "steps_per_epoch": tiny.STEPS}


def validated() -> Fit:
    held_out = inputs.shuffle(inputs.rows(), None).take(24).batch(tiny.BATCH)
    return {"x": inputs.rows().batch(tiny.BATCH), "validation_data": held_out}


def prefetched() -> Fit:
    data = inputs.shuffle(inputs.rows(), None).map(lambda x, y: (x + 1.0, y), num_parallel_calls=2)
    return {"x": data.batch(tiny.BATCH).prefetch(tf.data.AUTOTUNE)}


def look(fit: Fit) -> None:
    list(fit["x"].take(1))


def one_batch(fit: Fit) -> None:
    next(iter(fit["x"]))


def whole(fit: Fit) -> None:
    list(fit["x"])


def twice(fit: Fit) -> None:
    whole(fit)
    whole(fit)


def before_batch(fit: Fit) -> None:
    list(fit["x"]._inputs()[0])


def evaluated(fit: Fit) -> None:
    other_model().evaluate(fit["x"], verbose=0)


def trained(fit: Fit) -> None:
    other_model().fit(fit["x"], shuffle=False, verbose=0)


def other_model() -> keras.Model:
    dense = keras.layers.Dense(1, kernel_initializer="zeros")
    other = keras.Sequential([keras.Input((6,)), dense])
    other.compile("sgd", "mse")
    return other


def look_at_validation(fit: Fit) -> None:
    list(fit["validation_data"].take(1))


FORMS: dict[str, tuple[Callable[[], Fit], Callable[[Fit], None]]] = {
    "a batch is taken": (batched, look),
    "an iterator": (batched, one_batch),
    "a complete pass": (batched, whole),
    "two passes": (batched, twice),
    "what is before batch()": (batched, before_batch),
    "evaluate()": (batched, evaluated),
    "fit() of another model": (batched, trained),
    "a shuffle with a seed": (seeded, look),
    "two shuffles": (two_shuffles, look),
    "steps_per_epoch": (endless, look),
    "validation data": (validated, look_at_validation),
    "prefetched": (prefetched, look),
}


def prepared(form: str, is_read: bool) -> tuple[keras.Model, Fit]:
    model = tiny.model()
    make, read = FORMS[form]
    fit = make()
    if is_read:
        read(fit)
    return model, fit


@pytest.mark.parametrize(
    ("where", "options"),
    [((0, 3), {}), ((2, 3), {}), ((2, 3), {"reread_input": True}), ((1, None), {"reread_input": True})],
    ids=["first", "third", "third, read", "end, read"],
)
@pytest.mark.parametrize("reads", [(True, False), (False, True), (True, True)], ids=["before", "now", "both"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.in_gate(2)
def test_reads_before_fit_are_exact_if_both_runs_make_them(
    tmp_path: Path, form: str, reads: tuple[bool, bool], where: tuple[int, int | None], options: Any
) -> None:
    if form == "validation data" and where[0] == 0:
        pytest.skip("no validation so far: the first one is another one, of which nothing is known")
    before, now = reads
    model, fit = prepared(form, before)
    epoch, batch = where
    crash = tiny.StopAt(epoch + 1, 0) if batch is None else tiny.StopAt(epoch, batch)
    with pytest.raises(tiny.Stop):
        tiny.fit(model, tmp_path, [crash], save_freq="epoch" if batch is None else 1, **fit)
    resumed, fit = prepared(form, now)
    callback = kdc.BackupAndRestore(tmp_path, **options)
    history = tiny.fit(resumed, None, [callback], **fit)
    assert callback.restored.verdict == ("exact" if before == now else "not exact")
    expected, fit = prepared(form, before)
    expected_history = tiny.fit(expected, None, **fit)
    if before == now:
        tiny.assert_same(resumed, expected)
        assert history.history == expected_history.history


@pytest.mark.in_gate(1)
@pytest.mark.finds("first-pass-hidden")
@pytest.mark.parametrize("form", ["a shuffle with a seed", "validation data", "distributed"])
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_under_a_strategy_equal_reads_are_a_condition(tmp_path: Path, form: str) -> None:
    make, read = FORMS.get(form, (seeded, lambda fit: None))
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")

    def prepare() -> tuple[keras.Model, Fit]:
        tiny.model()  # sets the seed, and names begin again
        fit = make()
        read(fit)
        if form == "distributed":
            fit["x"] = strategy.experimental_distribute_dataset(fit["x"])
        with strategy.scope():
            return other_model(), fit

    model, fit = prepare()
    with pytest.raises(tiny.Stop):
        tiny.fit(model, tmp_path, [tiny.StopAt(1, 2)], **fit)
    resumed, fit = prepare()
    callback = kdc.BackupAndRestore(tmp_path)
    tiny.fit(resumed, None, [callback], **fit)
    (condition,) = callback.restored.conditions
    kind = "validation data" if form == "validation data" else "training data"
    assert condition.startswith(f"the {kind} were read before fit() as often as in the interrupted run")
    expected, fit = prepare()
    tiny.fit(expected, None, **fit)
    tiny.assert_same(resumed, expected)


def test_a_dataset_that_does_not_shuffle_is_exact_under_a_strategy(tmp_path: Path) -> None:
    tiny.model()  # sets the seed
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model, resumed = other_model(), other_model()
    with pytest.raises(tiny.Stop):
        tiny.fit(model, tmp_path, [tiny.StopAt(1, 2)], x=inputs.rows().batch(tiny.BATCH))
    callback = kdc.BackupAndRestore(tmp_path)
    tiny.fit(resumed, None, [callback], x=inputs.rows().batch(tiny.BATCH))
    assert callback.restored.verdict == "exact"
