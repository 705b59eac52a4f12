"""The error for a Keras or TensorFlow whose inside is not as known."""

from __future__ import annotations

from keras_dist_callbacks.base.errors import CompatError


def incompatible(what: str) -> CompatError:
    """Says what differs, and which versions do not."""
    import keras
    import tensorflow as tf

    return CompatError(
        f"Keras {keras.__version__} with TensorFlow {tf.__version__}: {what}; install versions that docs/limits.md "
        "lists, or a newer keras-dist-callbacks"
    )
