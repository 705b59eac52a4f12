"""The dataset that Keras makes of arrays is made again with orders that depend on a number."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from keras_dist_callbacks._compat import array_order
from keras_dist_callbacks.base.errors import CompatError
from tests.support import KERAS

ROWS = 20
X = np.arange(ROWS, dtype="float32")[:, None]


@pytest.fixture(autouse=True)
def no_seed() -> Iterator[None]:
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(7)


def fit_on(x: Any, y: Any, shuffle: Any = True) -> Any:
    made = TFEpochIterator(
        x=x, y=y, batch_size=8, shuffle=shuffle, steps_per_epoch=None, steps_per_execution=1,
        distribute_strategy=tf.distribute.get_strategy(),
    )  # fmt: skip
    return SimpleNamespace(epoch_iterator=made, data=made._distributed_dataset)


def order_of(fit: Any) -> list[float]:
    return [float(row) for _, y in fit.epoch_iterator._distributed_dataset for row in tf.nest.flatten(y)[0][:, 0]]


@pytest.mark.parametrize("shuffle", [True, "batch"])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, X),
        ({"b": X, "a": [X.astype("int32"), X]}, {"y": X, "z": None} if KERAS >= (3, 12) else {"y": X}),
        (scipy.sparse.csr_matrix(np.eye(ROWS, dtype="float32")), X),
        (tf.constant(X), tf.constant(X)),
    ],
    ids=["arrays", "nested", "sparse", "tensors"],
)
def test_its_elements_stay_and_their_order_follows_from_the_number(x: Any, y: Any, shuffle: Any) -> None:
    fit = fit_on(x, y, shuffle)
    given = fit.epoch_iterator.data_adapter._inputs
    assert array_order.is_unseeded(fit)
    set_number = array_order.make_again(fit, seed=2**62)
    orders = []
    for number in (0, 1, 0):
        set_number(number)
        orders.append(order_of(fit))
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == X[:, 0].tolist()
    assert fit.epoch_iterator._distributed_dataset.element_spec == fit.data.element_spec
    assert fit.epoch_iterator.data_adapter._inputs is given


def test_rows_are_not_copied_again() -> None:
    fit = fit_on(X, X)
    inputs = fit.epoch_iterator.data_adapter._inputs
    held, *_ = array_order._as_held(fit.data, inputs)
    array_order.make_again(fit, 1)
    again, *_ = array_order._as_held(fit.epoch_iterator._distributed_dataset, inputs)
    assert tf.is_tensor(held)
    assert again is held


def test_another_way_to_shuffle_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fit_on(X, X)
    monkeypatch.setattr(fit.epoch_iterator.data_adapter, "get_tf_dataset", lambda: fit.data)
    shuffle = tf.random.shuffle
    with pytest.raises(CompatError, match="does not shuffle by"):
        array_order.make_again(fit, 1)
    assert tf.random.shuffle is shuffle
