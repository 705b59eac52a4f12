"""`EpochDataset`: each epoch's data by its number, so that any shuffle resumes exactly at no cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_dist_callbacks._compat import running_fit
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.callbacks.rebuild_on_copy import RebuiltOnCopy
from keras_dist_callbacks.cluster.strategy import enable_for_cluster


class EpochDataset(RebuiltOnCopy, keras.callbacks.Callback):
    """Gives `fit()` the dataset `fn(epoch)` at the beginning of each epoch.

    What an epoch reads then depends on its number alone, not on how many iterators were created before: a
    resumed run reads nothing of past epochs, whatever the pipeline does, under every strategy.

    Example:
        ```python
        def data(epoch: int) -> tf.data.Dataset:
            return files.shuffle(10_000, seed=epoch).batch(64)

        model.fit(data(0), epochs=90, callbacks=[kdc.EpochDataset(data), kdc.BackupAndRestore("backup")])
        ```

    Args:
        fn: Takes the epoch, counted from 0, and returns a `tf.data.Dataset` with the elements of the one given
            to `fit()`. Its randomness must come from seeds that it derives from the epoch.

    Raises:
        ConfigError: `fn` is not a function.
    """

    _kdc_addresses_epochs = True  # for the position in the input

    def __init__(self, fn: Callable[[int], Any]) -> None:
        enable_for_cluster()
        super().__init__()
        self.fn = validation.function("fn", fn, "a function of the epoch")

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Puts the epoch's dataset in place.

        Raises:
            ConfigError: `fn` returns no dataset, or one with other elements than fit was given.
        """
        import tensorflow as tf

        fit = running_fit.find_fit(self.model)
        if fit is None:
            raise ConfigError("EpochDataset works only within model.fit()")
        dataset = self.fn(epoch)
        if not isinstance(dataset, tf.data.Dataset):
            raise ConfigError(f"EpochDataset: fn({epoch}) returned a {type(dataset).__name__}, not a tf.data.Dataset")
        if not isinstance(fit.input, tf.data.Dataset):
            raise ConfigError("EpochDataset: fit() must be given a tf.data.Dataset too, such as fn(0)")
        if not _like(dataset.element_spec, fit.input.element_spec):
            raise ConfigError(
                f"EpochDataset: fn({epoch}) has the elements {dataset.element_spec}, but fit() was given "
                f"{fit.input.element_spec}"
            )
        fit.set_dataset(dataset)


def _like(one: Any, other: Any) -> bool:
    import tensorflow as tf

    try:
        pairs = tf.nest.flatten(tf.nest.map_structure(lambda a, b: a.dtype == b.dtype, one, other))
    except (TypeError, ValueError):
        return False
    return all(pairs)
