"""The `tf.distribute` strategy of this process, joined without a start that could hang."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, Literal

from keras_dist_callbacks._compat import coordination, multi_worker
from keras_dist_callbacks._compat.hard_exit import exit_process_after
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import RESTART_EXIT_CODE, ConfigError
from keras_dist_callbacks.cluster import messaging, peer_monitor, rendezvous, timeouts
from keras_dist_callbacks.cluster.cluster_token import ClusterToken
from keras_dist_callbacks.cluster.roles import Role
from keras_dist_callbacks.cluster.timeouts import ClusterOptions
from keras_dist_callbacks.options import explains_arguments, group_of

_Kind = Literal["auto", "default", "mirrored", "multi_worker"]
_DEVICES = "a list of names such as '/gpu:0', or None for all GPUs"
_STUCK_SECONDS = 30.0  # after TensorFlow's own time-out, which does not always come


@explains_arguments
def make_strategy(
    kind: _Kind = "auto",
    *,
    devices: list[str] | None = None,
    communication_options: Any = None,
    cluster_options: ClusterOptions | None = None,
) -> Any:
    """Returns the `tf.distribute` strategy for this process.

    Call it before any other TensorFlow operation: a cluster cannot be joined later.

    Args:
        kind: `"auto"`, `"default"`, `"mirrored"` or `"multi_worker"`. `"auto"` is MultiWorkerMirrored when
            TF_CONFIG names more than one training worker (never for the evaluator), Mirrored when this
            process has more than one GPU, else the default strategy.
        devices: Devices for MirroredStrategy. Defaults to all GPUs.
        communication_options: `tf.distribute.experimental.CommunicationOptions` for MultiWorkerMirrored.
        cluster_options: How long workers wait for each other. Defaults to `ClusterOptions()`.

    With `KDC_CLUSTER_TOKEN` in the environment (or `KDC_CLUSTER_TOKEN_FILE`, the path of a file that holds it) of all
    workers, only processes that have this token count as workers at the start: the chief and each worker prove to each
    other that they have it, without sending it. TensorFlow's own messages are neither authenticated nor encrypted.

    Returns:
        A `tf.distribute.Strategy`. Under MultiWorkerMirrored, Keras' `fit` is made to work as by
        `advanced.enable_multi_worker_fit`.

    Raises:
        ConfigError: TF_CONFIG is malformed, an argument wrong, or this worker's port occupied; the token cannot be
            read or is not a secret, or workers have different ones (the message names the worker).
        ClusterTimeoutError: A worker did not come in time; the message names it.
    """
    cluster = Role.detect()
    kind = validation.check("kind", kind, _Kind)
    timeouts.give(group_of("cluster_options", cluster_options, ClusterOptions))
    _check_parts(devices, communication_options)
    if kind == "multi_worker" and cluster.num_workers == 1:
        raise ConfigError("kind='multi_worker' needs a TF_CONFIG that names more than one training worker")
    if kind in {"auto", "multi_worker"} and cluster.num_workers > 1 and not cluster.is_evaluator:
        return _join(cluster, communication_options)
    import tensorflow as tf

    gpus = len(tf.config.list_logical_devices("GPU"))
    if kind == "mirrored" or (kind == "auto" and (gpus > 1 or devices is not None)):
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.get_strategy()


def _check_parts(devices: Any, communication_options: Any) -> None:
    if devices is None and communication_options is None:
        return
    import tensorflow as tf

    if devices is not None:
        try:
            named = list(map(tf.DeviceSpec.from_string, validation.check("devices", devices, list[str], _DEVICES)))
        except ValueError:
            named = []
        if not named:
            raise validation.invalid_argument("devices", devices, _DEVICES)
    if communication_options is not None:
        public = tf.distribute.experimental.CommunicationOptions
        if not isinstance(communication_options, type(public())):  # its constructor makes objects of another class
            what = "a tf.distribute.experimental.CommunicationOptions, or None"
            raise validation.invalid_argument("communication_options", communication_options, what)


def enable_for_cluster() -> None:
    """What `advanced.enable_multi_worker_fit` does, where TF_CONFIG names several training workers.

    For programs that build TensorFlow's own MultiWorkerMirroredStrategy.
    """
    role = Role.detect()
    if role.num_workers > 1 and not role.is_evaluator:
        _enable(role)


def _enable(role: Role) -> None:
    multi_worker.enable_multi_worker_fit()
    multi_worker.set_error_translator(functools.partial(peer_monitor.describe_peer_failure, role))


def _join(cluster: Role, options: Any) -> Any:
    startup_timeout, heartbeat_timeout = map(timeouts.seconds_of, ("startup_timeout", "heartbeat_timeout"))
    if coordination.is_too_late():
        raise ConfigError(
            "make_strategy() was called too late: TensorFlow has already run an operation in this process, which "
            "cannot join a cluster after that. Call it first, before you create any dataset, tensor or model"
        )
    token = ClusterToken.detect()
    rendezvous.wait_for_everyone(cluster.addresses, cluster.worker_index, startup_timeout, token)
    jobs = cluster.jobs
    coordination.configure(
        [(name, len(hosts)) for name, hosts in jobs.items()],
        leader=f"/job:{next(iter(jobs))}/replica:0/task:0",
        heartbeat_ms=int(heartbeat_timeout * 1000),
        register_ms=int(startup_timeout * 1000),
        shutdown_ms=int(max(10.0, heartbeat_timeout) * 1000),
    )
    messaging.expect_heartbeats(heartbeat_timeout)
    _enable(cluster)
    with _sigterm_kept(), _exit_if_stuck(startup_timeout):
        return multi_worker.build_strategy(jobs, cluster.task_type, cluster.task_id, options)


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    # TensorFlow takes SIGTERM over while it builds, and swallows it from then on. One that arrives meanwhile waits.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _exit_if_stuck(seconds: float) -> Iterator[None]:
    # TensorFlow holds the GIL here: only what is outside of Python can end a build that never returns.
    seconds += _STUCK_SECONDS
    take_back = exit_process_after(seconds + 1.0, RESTART_EXIT_CODE)
    try:
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr with a descriptor
            faulthandler.dump_traceback_later(seconds, exit=take_back is None, file=sys.__stderr__ or sys.stderr)
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        if take_back is not None:
            take_back()
