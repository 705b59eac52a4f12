"""ChiefOnly: any Keras callback, run on the chief alone."""

from __future__ import annotations

from typing import Any

import keras

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.callbacks.rebuild_on_copy import RebuiltOnCopy
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.strategy import enable_for_cluster

_HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


class ChiefOnly(RebuiltOnCopy, keras.callbacks.Callback):
    """Runs a callback on the chief of a cluster and nowhere else.

    For what shall happen once: `CSVLogger`, `RemoteMonitor`, notifications, uploads. On the other workers
    nothing of the wrapped callback is called.

    Do not wrap what changes training (`EarlyStopping`, `ReduceLROnPlateau`, `LearningRateScheduler`,
    `TerminateOnNaN`, `SwapEMAWeights`): the workers would go apart, and MultiWorkerMirroredStrategy hangs or
    fails. For the same reason a wrapped callback must not do what all workers have to do together:
    `model.predict`, `model.evaluate`, `metric.result()`. Reading weights and saving the model is safe.

    A backup keeps the wrapped callback's state as if it were not wrapped.

    Args:
        callback: The callback. It is also the attribute `callback`.

    Raises:
        ConfigError: It is not a Keras callback, or one of this package, which must run on every worker.
    """

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        enable_for_cluster()
        super().__init__()
        if not isinstance(callback, keras.callbacks.Callback):
            given = type(callback).__name__
            raise ConfigError(f"callback: ChiefOnly needs a keras.callbacks.Callback, got {given}")
        if any(cls.__module__.startswith("keras_dist_callbacks.callbacks") for cls in type(callback).__mro__):
            raise ConfigError(f"{type(callback).__name__} must run on every worker: use it without ChiefOnly")
        self.callback = callback
        self._kdc_runs_here = Cluster.detect().is_chief  # it also says that a backup keeps the state of `callback`
        if self._kdc_runs_here:
            # Not methods of this class: Keras looks whether a hook is overridden to choose how to call it.
            for name in _HOOKS:
                setattr(self, name, getattr(callback, name))

    @property
    def async_safe(self) -> bool:
        """Whether Keras may call the wrapped callback's batch hooks from another thread."""
        return not self._kdc_runs_here or bool(getattr(self.callback, "async_safe", False))

    def set_params(self, params: dict[str, Any]) -> None:
        """Passes fit's parameters on."""
        super().set_params(params)
        if self._kdc_runs_here:
            self.callback.set_params(params)

    def set_model(self, model: Any) -> None:
        """Passes the model on."""
        super().set_model(model)
        if self._kdc_runs_here:
            self.callback.set_model(model)
