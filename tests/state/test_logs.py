"""The logs of an epoch whose last step was trained before the interruption, in validation or a callback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.support import tiny
from tests.support.resume_helpers import StopInValidation

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


def build(cls: type[keras.Model], metric: Any) -> keras.Model:
    def make() -> keras.Model:
        inputs = keras.Input((6,))
        return cls(inputs, keras.layers.Dense(1, "sigmoid")(keras.layers.Dropout(0.3)(inputs)))

    return tiny.compiled(make, "adam", "binary_crossentropy", metrics=[metric])


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
    given: dict[str, Any] = {"validation_data": tiny.data(), "epochs": 2, "expects": None}
    tiny.resumes(tmp_path, lambda: build(cls, metric()), at=StopInValidation(0), **given)
