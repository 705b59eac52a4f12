"""TensorFlow's coordination service: settings before the strategy exists, and its key-value store.

The service is private API of TensorFlow (`tensorflow.python.eager.context`). Blocked reads release the
GIL; its own barrier does not (measured on TF 2.21: a worker inside it cannot run another thread), which is
why only set and get are used here.
"""

from __future__ import annotations

import inspect
from typing import Any

from keras_dist_callbacks._compat.incompatible import incompatible


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def configure(
    jobs: list[tuple[str, int]], leader: str, *, heartbeat_ms: int, register_ms: int, shutdown_ms: int
) -> None:
    """Applies time-outs; only effective before TensorFlow's context is initialised.

    Raises:
        CompatError: This TensorFlow has another coordination service.
    """
    try:
        # its own path has moved between versions: TensorFlow's context imports it in each of them
        from tensorflow.python.eager.context import coordination_config_pb2
    except ImportError as error:
        raise incompatible("TensorFlow has no coordination_config_pb2 that multi-worker training can use") from error
    configure_service = _context().configure_coordination_service
    if "heartbeat_timeout_in_ms" not in inspect.signature(configure_service).parameters:
        raise incompatible("TensorFlow has no configure_coordination_service that multi-worker training can use")
    configure_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=heartbeat_ms,
        cluster_register_timeout_in_ms=register_ms,
        shutdown_barrier_timeout_in_ms=shutdown_ms,
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name=name, num_tasks=count) for name, count in jobs],
    )


def is_too_late() -> bool:
    """Returns whether TensorFlow has begun to run operations, so that no cluster can be joined any more."""
    return bool(getattr(_context(), "_initialized", False))


def set_value(key: str, value: str) -> None:
    """Publishes a value; a key can be set once."""
    _context().set_config_key_value(key, value)


def set_once(key: str, value: str) -> bool:
    """Publishes a value unless the key has one; whether it did."""
    import tensorflow as tf

    try:
        set_value(key, value)
    except tf.errors.AlreadyExistsError:
        return False
    return True


def get_value(key: str, timeout_ms: int) -> str | None:
    """The value, waiting for it up to `timeout_ms` (1 or more); None if it did not come, or the host is frozen."""
    import tensorflow as tf

    context = _context()
    if "timeout_in_ms" not in inspect.signature(context.get_config_key_value).parameters:
        raise incompatible("TensorFlow has no get_config_key_value that multi-worker training can use")
    try:
        value: str = context.get_config_key_value(key, max(1, timeout_ms))
    except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
        return None
    return value


def delete_value(key: str) -> None:
    """Forgets a key."""
    _context().delete_config_key_value(key)


def lost_tasks(jobs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Job and task of those workers that the service has given up, such as for want of heartbeats.

    Only for the process that hosts the service: the call holds the GIL, and elsewhere does not return while the host
    is frozen (measured on TF 2.21).
    """
    tasks = [(name, index) for name, count in jobs for index in range(count)]
    states = _context().get_task_states(jobs)
    return [task for task, state in zip(tasks, states, strict=True) if state is not None]


def report_error(text: str) -> None:
    """Makes every other worker fail at once with this text.

    While the host of the service is frozen, the call holds the GIL and does not return (measured on TF 2.21).
    """
    import tensorflow as tf

    _context().report_error_to_cluster(tf.errors.UNAVAILABLE, text)


def peer_errors() -> tuple[type[Exception], ...]:
    """Returns what TensorFlow raises when another worker is gone."""
    import tensorflow as tf

    return (
        tf.errors.UnavailableError,
        tf.errors.DeadlineExceededError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
    )


def service_errors() -> tuple[type[Exception], ...]:
    """Returns what a request to the service may end with when its host goes away meanwhile."""
    import tensorflow as tf

    return (*peer_errors(), tf.errors.InternalError, tf.errors.UnknownError, tf.errors.FailedPreconditionError)
