"""Strategies of TensorFlow's under which Keras 3 does not train, or not every model."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks._compat import model_parts

_INSTEAD = "use kdc.make_strategy(), or MirroredStrategy or MultiWorkerMirroredStrategy"


def unsupported_reason(strategy: Any) -> str | None:
    """Returns why nothing can be trained or saved under a strategy; None if it can.

    Keras 3's `fit()` hands its dataset to the strategy, which ParameterServerStrategy refuses (measured with TensorFlow
    2.21). On TPUs nothing here was ever run.
    """
    import tensorflow as tf

    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return f"Keras 3 does not train under ParameterServerStrategy: {_INSTEAD}"
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return f"this package does not support TPUStrategy: {_INSTEAD}, on CPUs or GPUs"
    return None


def unsupported_model_reason(strategy: Any, model: Any) -> str | None:
    """Returns why a model cannot be trained under a strategy; None if it can.

    Under CentralStorageStrategy none of several replicas may assign to a variable (measured with Keras 3.15): layers
    that draw random numbers, frozen ones too, BatchNormalization that is not frozen, and moving averages of weights do.
    """
    import keras
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy) or strategy.num_replicas_in_sync < 2:
        return None
    reasons = [
        f"layer {layer.name!r} ({type(layer).__name__})"
        for layer in model_parts.all_layers(model)
        if getattr(layer, "_seed_generators", ())
        or (isinstance(layer, keras.layers.BatchNormalization) and layer.trainable)
    ]
    if getattr(getattr(model, "optimizer", None), "use_ema", False):
        reasons.append("the optimizer's use_ema")
    if not reasons:
        return None
    return f"under CentralStorageStrategy Keras cannot train with {', '.join(reasons)}: use MirroredStrategy"
