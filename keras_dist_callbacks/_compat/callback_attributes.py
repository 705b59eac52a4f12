"""Which attributes of Keras' own callbacks are their state, and which arguments identify one.

Some are private (`_ema_weights_in_model`), which is why the table lives here.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Attributes(NamedTuple):
    """A callback class' state.

    Attributes:
        state: Names of attributes that training changes.
        identity: Names of attributes that tell two callbacks of the class apart.
    """

    state: tuple[str, ...]
    identity: tuple[str, ...] = ()


_TABLE: dict[str, Attributes] = {
    "EarlyStopping": Attributes(("wait", "stopped_epoch", "best", "best_weights", "best_epoch"), ("monitor",)),
    "ReduceLROnPlateau": Attributes(("wait", "best", "cooldown_counter"), ("monitor",)),
    "ModelCheckpoint": Attributes(
        ("best", "_batches_seen_since_last_saving", "_last_batch_seen"), ("filepath", "monitor")
    ),
    "TensorBoard": Attributes(("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations")),
    "SwapEMAWeights": Attributes(("_ema_weights_in_model",)),
    "History": Attributes(("epoch", "history")),
}

_STATELESS = ("LearningRateScheduler", "LambdaCallback", "TerminateOnNaN", "ProgbarLogger", "RemoteMonitor")


def attributes_of(callback: Any) -> Attributes | None:
    """The state of a Keras callback or of a subclass of one; None if the class is not known."""
    import keras

    for name, attributes in _TABLE.items():
        if isinstance(callback, getattr(keras.callbacks, name)):
            return attributes
    return None


def is_stateless(callback: Any) -> bool:
    """Whether it is a Keras callback that carries nothing from one step to the next."""
    import keras

    return type(callback) in {getattr(keras.callbacks, name) for name in _STATELESS}
