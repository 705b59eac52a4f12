"""Whether the Keras in use is the one that this package extends: Keras 3 on TensorFlow."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks.base.errors import ConfigError


def require_backend() -> None:
    """Makes sure that Keras runs on TensorFlow.

    Raises:
        ConfigError: It runs on something else.
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ConfigError(
            f"Keras runs on {backend!r}, and this package needs 'tensorflow': set KERAS_BACKEND=tensorflow in the "
            "environment before Keras is imported (without it, ~/.keras/keras.json names the backend)"
        )


def require_model(model: Any) -> None:
    """Makes sure that a model is not one of another Keras.

    Raises:
        ConfigError: It is.
    """
    require_backend()
    packages = [cls.__module__.partition(".")[0] for cls in type(model).__mro__ if cls.__name__ == "Model"]
    package = next((name for name in packages if name in ("tf_keras", "tensorflow")), None)
    if package is not None:
        what = "tf_keras, which is Keras 2" if package == "tf_keras" else "the Keras within TensorFlow"
        raise ConfigError(
            f"this is a model of {what}, and this package needs Keras 3: import keras instead of tf_keras, or unset "
            "TF_USE_LEGACY_KERAS, which lets tf.keras be Keras 2"
        )
