"""The logs of an epoch whose last step was trained before the interruption, in validation or a callback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits


class LogsOfEachMetric(keras.Model):  # type: ignore[misc]
    """As in examples of Keras: the result of the compiled metrics is a dict."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


class LogsOfOneStep(LogsOfEachMetric):
    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "scale": tf.constant([1.0, 2.0]), "parts": {"a": {"b": 1.5}}}


class StopInValidation(keras.callbacks.Callback):  # type: ignore[misc]
    def on_test_begin(self, logs: Any = None) -> None:
        raise tiny.Stop


kdc.advanced.register_callback_state(StopInValidation, None)


def build(cls: type[keras.Model], metric: Any) -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    inputs = keras.Input((6,))
    model = cls(inputs, keras.layers.Dense(1, "sigmoid")(keras.layers.Dropout(0.3)(inputs)))
    model.compile("adam", "binary_crossentropy", metrics=[metric])
    return model


def by_class() -> keras.metrics.Metric:
    return keras.metrics.F1Score(average=None, threshold=0.5)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    ("cls", "metric"),
    [
        (LogsOfEachMetric, lambda: "accuracy"),
        (LogsOfEachMetric, by_class),
        (LogsOfOneStep, lambda: "accuracy"),
        (keras.Model, by_class),
    ],
)
def test_all_of_them_are_in_the_history(tmp_path: Path, cls: type[keras.Model], metric: Callable[[], Any]) -> None:
    def train(directory: Path | None, *callbacks: Any) -> tuple[keras.Model, dict[str, list[Any]]]:
        model = build(cls, metric())
        data = {"validation_data": tiny.data(), "epochs": 2}
        return model, tiny.fit(model, directory, callbacks, **data).history

    expected, history = train(None)
    with pytest.raises(tiny.Stop):
        train(tmp_path, StopInValidation())
    resumed, found = train(tmp_path)
    tiny.assert_same(resumed, expected)
    assert found.keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
