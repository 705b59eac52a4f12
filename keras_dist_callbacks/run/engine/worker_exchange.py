"""How worker-local values reach the chief, which alone writes.

Every worker fingerprints its entire snapshot; the chief asks for what differs from its own (metrics of each
worker, statistics of non-synchronized BatchNormalization, random states) and gets that alone. All of it
happens on the background threads, through the key-value store of the coordination service, never through
collectives. The chief answers every part of every worker: it asks for values, or says that this save does not happen.
Where it has to wait for its writer first, it says that too: only the chief knows how long a write takes.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import xxhash

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import FINDINGS, Finding
from keras_dist_callbacks.backups.packing import Fingerprint, dtype_of, fingerprints, raw_bytes
from keras_dist_callbacks.backups.snapshot import (
    JSON,
    SharedArray,
    Snapshot,
)
from keras_dist_callbacks.base.errors import BackupError, ClusterError
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.cluster import Cluster

_SKIP = b"skip"
_LOOK = 2.0  # seconds in which the coordination service has answered
_FOREVER = 1e8


class _Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tensors: dict[str, Fingerprint]
    topics: dict[str, str]


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tensors: list[str]
    topics: list[str]


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    state: dict[str, Any]
    sent: list[str]


@dataclass(frozen=True)
class LocalState:
    """What one worker has that differs from the chief's; None is a topic of the chief's that it has not."""

    tensors: Mapping[str, SharedArray]
    prints: Mapping[str, Fingerprint]
    state: Mapping[str, JSON]


@dataclass(frozen=True)
class WorkerStateExchange:
    """The worker-local part of saving, for one fit.

    Attributes:
        cluster: Who takes part.
        name: What distinguishes this fit's messages from another's; the same on every worker.
        max_local_state: Bytes above which a worker's local tensors are skipped.
        timeout: Seconds for each answer.
        abort: Set when the run ends or the cluster is lost: no worker is waited for any more.
    """

    cluster: Cluster
    name: str
    max_local_state: int
    timeout: float
    abort: threading.Event = field(default_factory=threading.Event)

    def collect(self, save: int, snapshot: Snapshot, prints: Mapping[str, Fingerprint]) -> list[LocalState]:
        """On the chief: what differs on each other worker, in worker order.

        Raises:
            BackupError: A worker did not deliver in time; this save fails, training continues.
        """
        found: list[LocalState] = []
        unanswered = 1  # the first worker that waits for an answer still
        try:
            topics = _topic_hashes(snapshot.state) if self.cluster.num_workers > 1 else {}
            known = [*topics, *prints]
            for worker in range(1, self.cluster.num_workers):
                source = f"worker {worker} in save {save}"
                hello: _Hello = _understood(self._receive(save, worker, "hello"), _Hello, source)
                differing = [name for name, fingerprint in hello.tensors.items() if prints.get(name) != fingerprint]
                wanted = {"tensors": differing, "topics": [t for t, h in hello.topics.items() if topics.get(t) != h]}
                messaging.publish(self._key(save, worker, "wanted"), _dump(wanted), self.timeout)
                unanswered = worker + 1
                head, tensors = _unpack_message(self._receive(save, worker, "values"), hello.tensors, source)
                messaging.publish(self._key(save, worker, "taken"), b"", self.timeout)
                none = [name for name in known if name not in hello.topics and name not in hello.tensors]
                state = {**dict.fromkeys(none), **head.state}
                if len(tensors) < len(differing):
                    state[f"engine/{FINDINGS}"] = findings.to_json([Finding("local-state", f"worker {worker}")])
                held = {name: SharedArray(array) for name, array in tensors.items()}
                found.append(LocalState(held, {name: hello.tensors[name] for name in held}, state))
        except BaseException:
            self.skip(save, first=unanswered)
            raise
        return found

    def skip(self, save: int, first: int = 1) -> None:
        """On the chief: reports to workers that this save does not happen, without waiting for anything."""
        self._publish("wanted", _SKIP, save, first)

    def mark_queued(self, save: int) -> None:
        """On the chief: reports to workers that this save is queued, however long the one before takes."""
        self._publish("queued", b"", save)

    def deliver(self, save: int, snapshot: Snapshot) -> None:
        """On a worker: publishes what this worker has that the chief has not.

        Args:
            save: Its number.
            snapshot: This worker's.

        Raises:
            BackupError: The chief did not ask in time.
        """
        me = self.cluster.worker_index
        prints = fingerprints(snapshot.tensors)
        hello = {"tensors": prints, "topics": _topic_hashes(snapshot.state)}
        sent = messaging.publish(self._key(save, me, "hello"), _dump(hello), self.timeout)
        try:
            answer = self._answer(save, me)
        finally:
            messaging.delete_key(self._key(save, me, "hello"), sent)
        messaging.delete_key(self._key(save, me, "wanted"), messaging.chunk_count(answer))
        messaging.delete_key(self._key(save, me, "queued"))
        if answer == _SKIP:
            return
        wanted: _Wanted = _understood(answer, _Wanted, f"the chief in save {save}")
        if not (snapshot.tensors.keys() >= set(wanted.tensors) and snapshot.state.keys() >= set(wanted.topics)):
            raise BackupError(f"in save {save} the chief requested tensors that this worker does not have")
        arrays = {name: snapshot.tensors[name].array() for name in wanted.tensors}
        if sum(array.nbytes for array in arrays.values()) > self.max_local_state:
            arrays = {}  # the chief finds that they are missing
        body = {"state": {topic: snapshot.state[topic] for topic in wanted.topics}, "sent": list(arrays)}
        sent = messaging.publish(self._key(save, me, "values"), _pack_message(body, arrays), self.timeout)
        messaging.fetch(self._key(save, me, "taken"), self.timeout, self.abort.is_set)
        messaging.delete_key(self._key(save, me, "values"), sent)
        messaging.delete_key(self._key(save, me, "taken"))

    def _answer(self, save: int, me: int) -> bytes:
        """What the chief says to a worker's hello; for a queued save, that may take any time."""
        began, wanted, given_up = time.monotonic(), self._key(save, me, "wanted"), self.abort.is_set
        answer = messaging.fetch(wanted, self.timeout, given_up)
        if answer is None and not given_up():
            if messaging.fetch(self._key(save, me, "queued"), _LOOK) is None:
                raise BackupError(f"the chief did not take part in save {save} within {self.timeout:g} s")
            answer = messaging.fetch(wanted, _FOREVER, given_up)
        if answer is None:
            raise BackupError(f"the chief had not taken part in save {save} {_when_ended(began)}")
        return answer

    def _receive(self, save: int, worker: int, topic: str) -> bytes:
        began = time.monotonic()
        try:
            value = messaging.fetch(self._key(save, worker, topic), self.timeout, self.abort.is_set)
        except ClusterError as error:
            raise BackupError(f"worker {worker} could not deliver its state: {error}") from error
        if value is None and self.abort.is_set():
            raise BackupError(f"worker {worker} had not delivered its state {_when_ended(began)}")
        if value is None:
            raise BackupError(f"worker {worker} did not deliver its state within {self.timeout:g} s")
        return value

    def _publish(self, topic: str, message: bytes, save: int, first: int = 1) -> None:
        """Publishes the same for each worker from `first` on, in a thread without a join."""

        def publish() -> None:
            for worker in range(first, self.cluster.num_workers):
                with contextlib.suppress(ClusterError):  # a lost cluster shows itself at the next training step
                    messaging.publish_once(self._key(save, worker, topic), message, self.timeout)

        if first < self.cluster.num_workers:
            try:
                threading.Thread(target=publish, name=f"kdc-{topic}", daemon=True).start()
            except RuntimeError:  # no thread can be started, and without an answer the workers would wait for one
                publish()

    def _key(self, save: int, worker: int, topic: str) -> str:
        return f"kdc/{self.name}/{save}/{worker}/{topic}"


def _when_ended(began: float) -> str:
    why = messaging.lost()
    return f"when this run ended, {time.monotonic() - began:.1f} s after the request{f' ({why})' if why else ''}"


def _topic_hashes(state: Mapping[str, JSON]) -> dict[str, str]:
    return {topic: xxhash.xxh3_128_hexdigest(_dump(value)) for topic, value in state.items()}


def _dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _pack_message(body: dict[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    head = _dump(body)
    return b"".join([len(head).to_bytes(8, "little"), head, *(raw_bytes(array) for array in arrays.values())])


def _unpack_message(
    message: bytes, prints: Mapping[str, Fingerprint], source: str
) -> tuple[_Head, dict[str, np.ndarray[Any, Any]]]:
    size = int.from_bytes(message[:8], "little")
    head: _Head = _understood(message[8 : 8 + size], _Head, source)
    offset, arrays = 8 + size, {}
    for name in head.sent:
        dtype, shape = dtype_of(prints[name].dtype), prints[name].shape
        count = math.prod(shape)
        arrays[name] = np.frombuffer(message, dtype, count, offset).reshape(shape)
        offset += count * dtype.itemsize
    return head, arrays


def _understood(message: bytes, kind: Any, source: str) -> Any:
    try:
        return messaging.decode(message, kind, source)
    except ClusterError as error:
        raise BackupError(str(error)) from error
