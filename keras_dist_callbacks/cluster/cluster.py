"""Who this process is in its cluster, and what the workers say to each other.

The only reader of TF_CONFIG and of roles. Everything here works with one worker too, so that callers need
no branches.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from keras_dist_callbacks._compat import coordination, multi_worker
from keras_dist_callbacks.cluster import messaging, preflight
from keras_dist_callbacks.errors import ClusterError, ClusterTimeoutError, ConfigError

_T = TypeVar("_T")
_TRAINING_TASKS = ("chief", "worker")
_DROPPED_TASKS = ("ps", "evaluator")
_calls: collections.Counter[str] = collections.Counter()


@dataclass(frozen=True)
class Cluster:
    """Facts of this process and the means to agree with the other workers.

    Attributes:
        task_type: `"chief"`, `"worker"` or `"evaluator"`; `"worker"` without TF_CONFIG.
        task_id: The index within the task type.
        worker_index: The place among all training workers, the chief at 0; -1 for an evaluator.
        addresses: `host:port` of all training workers, the chief first; empty without TF_CONFIG.
    """

    task_type: str = "worker"
    task_id: int = 0
    worker_index: int = 0
    addresses: tuple[str, ...] = ()

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> Cluster:
        """Reads TF_CONFIG.

        Args:
            environ: Where to look. Defaults to `os.environ`.

        Raises:
            ConfigError: TF_CONFIG is malformed; the message names the field.
        """
        text = (os.environ if environ is None else environ).get("TF_CONFIG", "").strip()
        return _parse(text) if text else cls()

    @property
    def num_workers(self) -> int:
        """Number of training workers, the chief included; at least 1."""
        return max(1, len(self.addresses))

    @property
    def is_evaluator(self) -> bool:
        """Whether this process only evaluates."""
        return self.task_type == "evaluator"

    @property
    def is_chief(self) -> bool:
        """Whether this process writes backups and checkpoints: the first training worker."""
        return self.worker_index == 0

    @property
    def name(self) -> str:
        """How messages call this process, such as `worker 1`."""
        return self.task_type if self.is_evaluator or self.task_type == "chief" else f"worker {self.worker_index}"

    def gather(self, value: Any, tag: str, timeout: float = 120.0) -> list[Any]:
        """Every worker's JSON value, in worker order, on every worker.

        Every worker must call it, with the same tags in the same order.

        Raises:
            ClusterTimeoutError: A worker did not answer in time; the message names it.
            PeerLostError: A worker is gone.
        """
        if self.num_workers == 1:
            return [value]
        key = self._key(tag)
        messaging.publish(f"{key}/{self.worker_index}", json.dumps(value).encode(), timeout)
        return [
            value if i == self.worker_index else json.loads(self._await(f"{key}/{i}", i, tag, timeout))
            for i in range(self.num_workers)
        ]

    def broadcast(self, value: Any, tag: str, timeout: float = 120.0) -> Any:
        """The chief's JSON value, on every worker; the others' argument is ignored."""
        if self.num_workers == 1:
            return value
        key = self._key(tag)
        if self.is_chief:
            messaging.publish(key, json.dumps(value).encode(), timeout)
            return value
        return json.loads(self._await(key, 0, tag, timeout))

    def barrier(self, tag: str, timeout: float = 120.0) -> None:
        """Returns when every worker has called it."""
        self.gather(None, tag, timeout)

    def agree(self, action: Callable[[], _T], tag: str, timeout: float = 120.0) -> _T:
        """Runs `action` on every worker; if it fails on one, all raise.

        Raises:
            Exception: This worker's own error, as it was.
            ClusterError: Another worker failed; the message names it and its reason.
        """
        failure: Exception | None = None
        result: _T | None = None
        try:
            result = action()
        except Exception as error:  # noqa: BLE001 - raised again below, after the others know
            failure = error
        reports = self.gather(None if failure is None else f"{type(failure).__name__}: {failure}", tag, timeout)
        if failure is not None:
            raise failure
        failed = [f"worker {i}: {report}" for i, report in enumerate(reports) if report is not None]
        if failed:
            raise ClusterError(f"{tag} failed on " + "; ".join(failed))
        return result  # type: ignore[return-value]

    def on_chief(self, action: Callable[[], _T], tag: str, timeout: float = 600.0) -> _T | None:
        """Runs `action` on the chief alone while the others wait; its error is raised on all.

        Returns:
            The result on the chief, None elsewhere.
        """
        return self.agree(action if self.is_chief else _nothing, tag, timeout)

    def leave(self, tag: str, timeout: float = 120.0) -> None:
        """Returns at once on a worker, and on the chief when every worker has called it.

        The chief hosts the coordination service: it must be the last to go.
        """
        if self.num_workers == 1:
            return
        key = self._key(tag)
        if not self.is_chief:
            messaging.publish(f"{key}/{self.worker_index}", b"", timeout)
            return
        for worker in range(1, self.num_workers):
            self._await(f"{key}/{worker}", worker, tag, timeout)

    def require_connection(self, strategy: Any) -> None:
        """Checks that a strategy joins the workers that TF_CONFIG names.

        Raises:
            ConfigError: Several workers are named, but the model was made under another strategy.
        """
        if self.num_workers > 1 and not self.is_evaluator and not multi_worker.is_multi_worker(strategy):
            raise ConfigError(
                f"TF_CONFIG names {self.num_workers} workers, but the model was made under "
                f"{type(strategy).__name__}, so each worker would train alone; make the model within "
                "`with keras_dist_callbacks.make_strategy().scope():`"
            )

    def _key(self, tag: str) -> str:
        _calls[tag] += 1
        return f"kdc/{tag}/{_calls[tag]}"

    def _await(self, key: str, source: int, tag: str, timeout: float) -> bytes:
        value = messaging.fetch(key, timeout)
        if value is None:
            raise ClusterTimeoutError(
                f"{self.name}: no answer from worker {source} ({self.addresses[source]}) about {tag!r} "
                f"within {timeout:g} s"
            )
        return value


def _nothing() -> None:
    return None


def make_strategy(
    kind: str = "auto",
    *,
    startup_timeout: float = 300.0,
    heartbeat_timeout: float = 10.0,
    devices: list[str] | None = None,
    communication_options: Any = None,
) -> Any:
    """The `tf.distribute` strategy for this process.

    Call it before any other TensorFlow operation: a cluster cannot be joined later.

    Args:
        kind: `"auto"`, `"default"`, `"mirrored"` or `"multi_worker"`. `"auto"` is MultiWorkerMirrored when
            TF_CONFIG names more than one training worker (never for the evaluator), Mirrored when this
            process has more than one GPU, else the default strategy.
        startup_timeout: Seconds to wait for the other workers before a clear error.
        heartbeat_timeout: Seconds after which a silent worker counts as lost.
        devices: Devices for MirroredStrategy. Defaults to all GPUs.
        communication_options: `tf.distribute.experimental.CommunicationOptions` for MultiWorkerMirrored.

    Returns:
        A `tf.distribute.Strategy`. Under MultiWorkerMirrored, Keras' `fit` is made to work as by
        `enable_multi_worker_fit`.

    Raises:
        ConfigError: TF_CONFIG is malformed, `kind` unknown, or this worker's port occupied.
        ClusterTimeoutError: A worker did not come in time; the message names it.
    """
    cluster = Cluster.detect()
    if kind not in {"auto", "default", "mirrored", "multi_worker"}:
        raise ConfigError(f"kind must be 'auto', 'default', 'mirrored' or 'multi_worker', got {kind!r}")
    if startup_timeout <= 0 or heartbeat_timeout <= 0:
        raise ConfigError("startup_timeout and heartbeat_timeout are seconds above 0")
    if kind == "multi_worker" and cluster.num_workers == 1:
        raise ConfigError("kind='multi_worker' needs a TF_CONFIG that names more than one training worker")
    if kind in {"auto", "multi_worker"} and cluster.num_workers > 1 and not cluster.is_evaluator:
        return _join(cluster, startup_timeout, heartbeat_timeout, communication_options)
    import tensorflow as tf

    gpus = len(tf.config.list_logical_devices("GPU"))
    if kind == "mirrored" or (kind == "auto" and (gpus > 1 or devices is not None)):
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.get_strategy()


def _join(cluster: Cluster, startup_timeout: float, heartbeat_timeout: float, options: Any) -> Any:
    token = hashlib.sha256(",".join(cluster.addresses).encode()).hexdigest()[:16]
    preflight.wait_for_everyone(cluster.addresses, cluster.worker_index, startup_timeout, token)
    jobs = _jobs(cluster)
    coordination.configure(
        [(name, len(hosts)) for name, hosts in jobs.items()],
        leader=f"/job:{next(iter(jobs))}/replica:0/task:0",
        heartbeat_ms=int(heartbeat_timeout * 1000),
        register_ms=int(startup_timeout * 1000),
        shutdown_ms=int(max(10.0, heartbeat_timeout) * 1000),
    )
    multi_worker.enable_multi_worker_fit()
    with _exit_if_stuck(startup_timeout):
        return multi_worker.build_strategy(jobs, cluster.task_type, cluster.task_id, options)


def _jobs(cluster: Cluster) -> dict[str, list[str]]:
    """The training jobs of the cluster as TensorFlow wants them."""
    has_chief = cluster.task_type == "chief" or cluster.worker_index != cluster.task_id
    if not has_chief:
        return {"worker": list(cluster.addresses)}
    return {"chief": [cluster.addresses[0]], "worker": list(cluster.addresses[1:])}


@contextlib.contextmanager
def _exit_if_stuck(seconds: float) -> Iterator[None]:
    # TensorFlow holds the GIL here: only a watchdog outside of Python can end a build that never returns.
    if sys.__stderr__ is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds + 30.0, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _parse(text: str) -> Cluster:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"TF_CONFIG is not valid JSON: {error}") from error
    spec = _field(config, "cluster", dict, "TF_CONFIG") if "cluster" in _mapping(config) else {}
    task = _field(config, "task", dict, "TF_CONFIG") if "task" in config or spec else {}
    if not spec and not task:
        return Cluster()
    task_type = _field(task, "type", str, "TF_CONFIG['task']")
    index = _index(task)
    if task_type == "master":
        task_type = "chief"
    if "master" in spec:
        spec = {("chief" if job == "master" else job): hosts for job, hosts in spec.items()}
    _check_jobs(spec, task_type)
    chiefs, workers = list(spec.get("chief", [])), list(spec.get("worker", []))
    if len(chiefs) > 1:
        raise ConfigError(f"TF_CONFIG['cluster']['chief'] names {len(chiefs)} addresses; there can be one chief")
    addresses = tuple(chiefs + workers)
    for address in addresses:
        preflight.split_address(address)
    if task_type == "evaluator":
        return Cluster("evaluator", index, -1, addresses)
    count = len(spec.get(task_type, []))
    if index >= count:
        raise ConfigError(
            f"TF_CONFIG['task']['index'] is {index}, but TF_CONFIG['cluster'][{task_type!r}] names {count} address(es)"
        )
    return Cluster(task_type, index, index + (len(chiefs) if task_type == "worker" else 0), addresses)


def _check_jobs(spec: dict[str, Any], task_type: str) -> None:
    known = (*_TRAINING_TASKS, *_DROPPED_TASKS)
    for job, hosts in spec.items():
        if job not in known:
            raise ConfigError(f"TF_CONFIG['cluster'] has the unknown job {job!r}; known ones are {', '.join(known)}")
        if not isinstance(hosts, list) or not all(isinstance(h, str) for h in hosts):
            raise ConfigError(f"TF_CONFIG['cluster'][{job!r}] must be a list of 'host:port' strings, got {hosts!r}")
    if task_type == "ps":
        raise ConfigError("TF_CONFIG['task']['type'] is 'ps'; parameter servers do not work with Keras 3's fit()")
    if task_type not in known:
        raise ConfigError(f"TF_CONFIG['task']['type'] is {task_type!r}; known ones are {', '.join(known)}")


def _index(task: dict[str, Any]) -> int:
    index = task.get("index", 0)
    if isinstance(index, str) and index.isdigit():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ConfigError(f"TF_CONFIG['task']['index'] must be an integer of 0 or more, got {task.get('index')!r}")
    return index


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"TF_CONFIG must be a JSON object, got {type(value).__name__}")
    return value


def _field(mapping: Any, name: str, kind: type[_T], where: str) -> _T:
    value = _mapping(mapping).get(name)
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a string"
        raise ConfigError(f"{where}[{name!r}] must be {wanted}, got {value!r}")
    return value
