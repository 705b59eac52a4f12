"""What a dispatcher of the tf.data service says: clients have no other way to learn how many workers it has."""

from __future__ import annotations

_SECONDS = 5.0


def worker_count(address: str) -> int | None:
    """Returns how many workers a tf.data service has; None if its dispatcher cannot be asked."""
    import grpc  # TensorFlow depends on it
    import tensorflow as tf

    try:
        with grpc.insecure_channel(address) as channel:
            ask = channel.unary_unary("/tensorflow.data.DispatcherService/GetWorkers")
            answer = ask(b"", timeout=_SECONDS)
        return len(tf.train.BytesList.FromString(answer).value)  # this message too is one repeated field, the first
    except Exception:  # noqa: BLE001 - whatever it is, the service cannot be asked
        return None
