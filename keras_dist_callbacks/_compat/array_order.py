"""The order in which `fit()` reads arrays that it shuffles, where no seed makes it repeatable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from keras_dist_callbacks._compat import pipeline, rng
from keras_dist_callbacks._compat.incompatible import incompatible
from keras_dist_callbacks._compat.running_fit import RunningFit


def is_unseeded(fit: RunningFit) -> bool:
    """Returns whether a fit shuffles arrays, in another order in each run."""
    adapter = fit.epoch_iterator.data_adapter
    return type(adapter).__name__ == "ArrayDataAdapter" and bool(adapter._shuffle) and rng.global_seed() is None


def make_again(fit: RunningFit, seed: int) -> Callable[[int], None]:
    """Makes the dataset of a fit again, before its first epoch, with orders that depend on a seed and a number alone.

    Args:
        fit: The running fit, of which `is_unseeded` is true.
        seed: That of all orders, up to 63 bits.

    Returns:
        A function that takes the number of the next order, before anything is read of the iterator that gets it.

    Raises:
        CompatError: Keras shuffles arrays in a way that is not known.
    """
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    iterator, adapter = fit.epoch_iterator, fit.epoch_iterator.data_adapter
    # On the CPU orders are drawn; `tf.Variable` would be one for each replica in a strategy's scope.
    with tf.device("CPU:0"):
        number = ResourceVariable(0, dtype=tf.int64, trainable=False, name="order")
    given, adapter._inputs = adapter._inputs, _as_held(fit.data, adapter._inputs)
    try:
        with _replaced_shuffle(seed, number) as calls:
            dataset = adapter.get_tf_dataset()
    finally:
        adapter._inputs = given
    if not calls:
        raise incompatible("ArrayDataAdapter does not shuffle by tf.random.shuffle")
    iterator._distributed_dataset = iterator._distribute_strategy.experimental_distribute_dataset(dataset)
    iterator._current_iterator = None
    return lambda value: number.assign(value, read_value=False)


def _as_held(dataset: Any, inputs: Any) -> Any:
    """Returns arrays as the tensors that the dataset made of them holds, so that no row is copied again."""
    import keras
    from tensorflow.python.data.util import structure

    found = [stage for stage in pipeline.stages(pipeline.original(dataset)) if pipeline.kind_of(stage) == "Tensor"]
    arrays = [array for array in keras.tree.flatten(inputs) if array is not None]
    if len(found) != 1 or len(found[0]._tensors) != len(arrays):  # sparse ones are several tensors each
        return inputs
    return structure.from_tensor_list(found[0]._structure, found[0]._tensors)


@contextlib.contextmanager
def _replaced_shuffle(key: int, number: Any) -> Iterator[list[Any]]:
    """Puts a shuffle without a state in the place of `tf.random.shuffle`; gives what it was called with."""
    import tensorflow as tf

    calls: list[Any] = []
    original, stateless = tf.random.shuffle, tf.random.experimental

    def shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
        calls.append(value)
        of_pass = tf.stack([tf.constant(key, tf.int64), number.read_value()])
        # With shuffle="batch" each batch is shuffled by itself: its first row distinguishes it from the others.
        of_rows = stateless.stateless_fold_in(of_pass, tf.reduce_sum(value[:1]))
        return stateless.stateless_shuffle(value, of_rows, alg="philox", name=name)

    tf.random.shuffle = tf.autograph.experimental.do_not_convert(shuffle)
    try:
        yield calls
    finally:
        tf.random.shuffle = original
