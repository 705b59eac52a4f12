"""Variables that Keras makes in the first step only, made before it."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks._compat.fit import RunningFit


def build_from_spec(fit: RunningFit) -> None:
    """Creates optimizer and metric variables, which the default strategy leaves to the first step.

    Only shapes and dtypes are used: no batch is read.
    """
    import tensorflow as tf

    model = fit.model
    strategy = model.distribute_strategy
    spec = fit.data.element_spec
    local = tf.nest.map_structure(
        lambda s: s._value_specs[0] if hasattr(s, "_value_specs") else s, spec, expand_composites=False
    )
    with strategy.scope():
        try:
            model._symbolic_build(data_batch=local)
        except (ValueError, TypeError, RuntimeError, AttributeError):
            # A train_step of the user's may take what the model itself does not. Then metrics are made by the first
            # step, and a restore says that they start afresh.
            if model.optimizer is not None and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)


def compile_metrics_pending(model: Any) -> bool:
    """Whether metric or optimizer variables do not exist yet."""
    metrics = model._compile_metrics
    losses = model._compile_loss
    return (
        (metrics is not None and not metrics.built)
        or (losses is not None and not losses.built)
        or (model.optimizer is not None and not model.optimizer.built)
    )
