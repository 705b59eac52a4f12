"""The architecture that a backup holds: what Keras says of the model, and no code."""

from __future__ import annotations

import json
from typing import Any

import keras
import pytest

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.state.architecture import Architecture

HERE = Position("between", 1, 0, 1)


def saved(layer: Any, *, is_chief: bool = True) -> list[str]:
    model = keras.Sequential([keras.Input((2,)), layer])
    tensors = Architecture(model, is_chief=is_chief).capture(HERE).tensors
    return [bytes(held.array()).decode() for held in tensors.values()]


@pytest.mark.parametrize("name", ["plain", "__lambda__"])
def test_the_chief_saves_what_keras_says_whatever_a_layer_is_called(name: str) -> None:
    (text,) = saved(keras.layers.Dense(1, name=name))
    assert json.loads(text)["config"]["layers"][1]["config"]["name"] == name
    assert saved(keras.layers.Dense(1, name=name), is_chief=False) == []


def test_a_model_with_a_lambdas_bytecode_is_not_saved() -> None:
    assert saved(keras.layers.Lambda(lambda x: x * 2, output_shape=(2,))) == []
