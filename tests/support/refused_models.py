"""Models that an interrupted run does not continue with, and one that changes while it is trained."""

from __future__ import annotations

from typing import Any

import keras

CHANGES: list[tuple[dict[str, bool], dict[str, bool], str]] = [
    ({}, {"trainable": False}, "trainable of the layer 'first' changed from True to False"),
    ({"trainable": False}, {}, "trainable of the layer 'first' changed from False to True"),
    (
        {},
        {"scheduled": True},
        r"optimizer/learning_rate changed from a number to ExponentialDecay\(.*",
    ),
    (
        {"scheduled": True},
        {},
        r"optimizer/learning_rate changed from ExponentialDecay\(.* to a number",
    ),
]
"""What the first run's model was made with, what the second's, and what the refusal says."""

FIXES = "build and compile the model as before to resume, or use another directory to start again"


def compiled(*, trainable: bool = True, scheduled: bool = False) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(7, name="first"), keras.layers.Dense(1)])
    model.layers[0].trainable = trainable
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(keras.optimizers.Adam(schedule if scheduled else 0.1), "mse", jit_compile=False)
    return model


class Unfreeze(keras.callbacks.Callback):
    """Fine-tuning in one fit: from an epoch on, all layers are trained, with another rate."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch, self.done = epoch, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch >= self.epoch and not self.done:
            self.done = True
            self.model.layers[0].trainable = True
            with self.model.distribute_strategy.scope():
                self.model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
            self.model.make_train_function()
