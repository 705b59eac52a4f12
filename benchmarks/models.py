"""Models whose state has a given size; training them needs few operations, but Adam updates every byte each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_LAYERS = 4
_ADAM_COPIES = 3  # the weights, the momentum and the velocity
_FLOAT = 4
_LEARNING_RATE = 1e-5
_SMALL_SIDE = 64
_SMALL_PER_LAYER = 10


@dataclass(frozen=True)
class Workload:
    """A compiled and built model, and an endless input for it."""

    model: Any
    data: Any

    @property
    def state_bytes(self) -> int:
        """Bytes of the weights and of the optimizer's variables."""
        every = [*self.model.variables, *self.model.optimizer.variables]
        return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in every)


def large(megabytes: float, batch: int = 8) -> Workload:
    """A few large layers; `megabytes` of weights and Adam slots."""
    width = _width(megabytes * 1e6 / (_ADAM_COPIES * _FLOAT))
    model = keras.Sequential([keras.Input((width,)), *(keras.layers.Dense(width) for _ in range(_LAYERS))])
    return _ready(model, keras.optimizers.Adam(_LEARNING_RATE), width, batch)


def small(variables: int, batch: int = 8) -> Workload:
    """`variables` small ones, two thirds of them Adam's slots.

    A step assigns each of them once, as Adam would; the trace of Adam itself takes a minute at this number.
    """
    count = variables // (_ADAM_COPIES * _SMALL_PER_LAYER)
    model = _Assigning([keras.Input((_SMALL_SIDE,)), *(_Group(name=f"group{i}") for i in range(count))], name="small")
    return _ready(model, keras.optimizers.Adam(_LEARNING_RATE), _SMALL_SIDE, batch)


def frozen(megabytes: float, share: float, *, adam: bool) -> Workload:
    """`megabytes` of weights; `share` of them are in a backbone that is not trained."""
    backbone = [keras.layers.Dense(_width(megabytes * 1e6 / _FLOAT * share), trainable=False) for _ in range(_LAYERS)]
    width = backbone[0].units
    head = round((1 - share) / share * _LAYERS * width)
    layers = [*backbone, keras.layers.Dense(head, use_bias=False), _Fold(width)]
    optimizer = keras.optimizers.Adam(_LEARNING_RATE) if adam else keras.optimizers.SGD(_LEARNING_RATE)
    return _ready(keras.Sequential([keras.Input((width,)), *layers]), optimizer, width, 8)


def _width(weights: float) -> int:
    return max(8, round((weights / _LAYERS) ** 0.5))


def _ready(model: Any, optimizer: Any, width: int, batch: int) -> Workload:
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).normal(size=(batch, width)).astype("float32")
    return Workload(model, tf.data.Dataset.from_tensors((x, x)).repeat())


class _Group(keras.layers.Layer):
    """Many small weights in one layer."""

    def build(self, shape: Any) -> None:
        side = int(shape[-1])
        self.all = [self.add_weight(shape=(side, side), name=f"w{i}") for i in range(_SMALL_PER_LAYER)]
        self.built = True

    def call(self, x: Any) -> Any:
        return x + tf.add_n([tf.convert_to_tensor(w)[:1] for w in self.all])


class _Assigning(keras.Sequential):
    """Changes every variable in each step, with one operation for each."""

    def train_step(self, data: Any) -> dict[str, Any]:
        every = [*self.trainable_variables, *self.optimizer.variables]
        for variable in every:
            raw = variable.value
            if raw.dtype.is_floating and raw.shape.rank:
                amount = tf.fill(raw.shape, _LEARNING_RATE)
                tf.raw_ops.AssignAddVariableOp(resource=raw.handle, value=amount)
        self.optimizer.iterations.assign_add(1)
        return {"loss": self.compute_loss(*data, self(data[0]))}


class _Fold(keras.layers.Layer):
    """Brings the head's output to the target's width, without weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def call(self, x: Any) -> Any:
        return tf.reduce_mean(x, axis=-1, keepdims=True) * tf.ones([1, self.width])
