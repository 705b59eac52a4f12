"""What the workers say to each other: gather, broadcast, barrier, agree.

Everything here works with one worker too, so that callers need no branches.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from keras_dist_callbacks._compat import multi_worker, strategies
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ClusterError, ClusterTimeoutError, ConfigError, PeerLostError, is_temporary
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.cluster import messaging, peer_monitor, timeouts
from keras_dist_callbacks.cluster.roles import Role

_PARTING_SECONDS = 10.0
_KEPT_CALLS = 1000
_T = TypeVar("_T")


@dataclass
class _Calls(Shared):
    """Numbers of calls, the same on all workers: what one does, the others do too.

    Attributes:
        numbers: Of the calls to come.
        chunks: In how many chunks the service holds what this worker has said, by call.
    """

    numbers: itertools.count[int] = field(default_factory=itertools.count)
    chunks: dict[int, int] = field(default_factory=dict)


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tag: str
    value: Any


@dataclass(frozen=True)
class Cluster(Role):
    """Facts of this process and the means to agree with the other workers.

    Every worker must make the same calls, with the same tags in the same order.

    Attributes:
        patience: Seconds to wait for a worker that lives but does not answer, such as one that uploads, unless a call
            says otherwise. Defaults to the `timeout` of `make_strategy`.

    Raises:
        ConfigError: A value is wrong.
    """

    patience: validation.Seconds = field(default_factory=functools.partial(timeouts.seconds_of, "timeout"))

    def __post_init__(self) -> None:
        validation.check_fields(self)

    def gather(self, value: Any, tag: str, timeout: float | None = None, *, kind: Any = Any) -> list[Any]:
        """Returns every worker's JSON value, in worker order, on every worker.

        Args:
            value: This worker's.
            tag: What this call is about; the same on every worker.
            timeout: Seconds to wait for each other worker. Defaults to `patience`.
            kind: The type whose JSON each other worker's value must be. Defaults to any.

        Raises:
            ClusterTimeoutError: A worker did not answer in time; the message names it.
            PeerLostError: A worker is gone.
            ConfigError: Another worker does something else instead.
            ClusterError: What a worker has published is not what this version would publish.
        """
        if self.num_workers == 1:
            return [value]
        call = self._say(value, tag)
        return [
            value if worker == self.worker_index else self._hear(call, worker, tag, timeout, kind)
            for worker in range(self.num_workers)
        ]

    def gather_soon(self, value: Any, key: str, seconds: float) -> list[Any] | None:
        """As `gather`, for what not every worker may do; None if one has not in time, or is lost.

        Args:
            value: This worker's JSON value.
            key: What distinguishes this from every other call of the process.
            seconds: For all of them together.
        """
        if self.num_workers == 1:
            return [value]
        deadline = time.monotonic() + seconds
        answers: list[Any] = []
        with contextlib.suppress(ClusterError):
            messaging.publish(f"kdc/{key}/{self.worker_index}", json.dumps(value).encode(), seconds)
            for worker in range(self.num_workers):
                said = messaging.fetch(f"kdc/{key}/{worker}", max(0.1, deadline - time.monotonic()))
                if said is None:
                    return None
                answers.append(messaging.decode(said, Any, f"worker {worker} about {key!r}"))
        return answers if len(answers) == self.num_workers else None

    def broadcast(self, value: Any, tag: str, timeout: float | None = None, *, kind: Any = Any) -> Any:
        """The chief's JSON value, on every worker; the others' argument is ignored. The rest is as in `gather`."""
        if self.num_workers == 1:
            return value
        call = self._say(value if self.is_chief else None, tag)
        return value if self.is_chief else self._hear(call, 0, tag, timeout, kind)

    def barrier(self, tag: str, timeout: float | None = None) -> None:
        """Returns when every worker has called it."""
        self.gather(None, tag, timeout)

    def agree(self, action: Callable[[], _T], tag: str, timeout: float | None = None) -> _T:
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
        report = None if failure is None else [f"{type(failure).__name__}: {failure}", is_temporary(failure)]
        answers = self.gather(report, tag, timeout, kind=tuple[str, bool] | None)
        reports = {worker: said for worker, said in enumerate(answers) if said is not None}
        failed = [f"worker {worker}: {text}" for worker, (text, _) in reports.items()]
        if failed:
            self.sync_before_raise(tag)
        if failure is not None:  # its own error says more than the list of all
            raise failure
        if failed:
            theirs = ClusterError(f"{tag} failed on " + "; ".join(failed))
            theirs.unavailable = all(temporary for _, temporary in reports.values())
            raise theirs
        return result  # type: ignore[return-value]

    def on_chief(self, action: Callable[[], _T], tag: str, timeout: float | None = None) -> _T | None:
        """Runs `action` on the chief alone while the others wait; its error is raised on all.

        Returns:
            The result on the chief, None elsewhere.
        """
        return self.agree(action if self.is_chief else lambda: None, tag, timeout)

    def require_same(self, facts: Mapping[str, str], tag: str, timeout: float | None = None) -> None:
        """Checks that every worker was given the same.

        Args:
            facts: What must not differ, by names for messages.
            tag: As in `gather`.
            timeout: Seconds to wait for other workers.

        Raises:
            ConfigError: Workers differ; the message names each value and who has it. Raised on all of them.
        """
        answers = self.gather(dict(facts), tag, timeout, kind=dict[str, str])
        differences = []
        for name in dict.fromkeys(name for facts in answers for name in facts):
            workers: dict[str, list[int]] = {}
            for worker, facts_there in enumerate(answers):
                workers.setdefault(facts_there.get(name, "missing"), []).append(worker)
            if len(workers) > 1:
                values = (f"{value} on worker {', '.join(map(str, those))}" for value, those in workers.items())
                differences.append(f"{name}: {'; '.join(values)}")
        if differences:
            self.sync_before_raise(tag)
            raise ConfigError(f"the workers disagree about {'. '.join(differences)}. Give all workers the same values")

    def leave(self, tag: str, timeout: float | None = None) -> None:
        """Returns at once on a worker, and on the chief when every worker has called it.

        The chief hosts the coordination service: it must be the last to go.
        """
        if self.num_workers == 1:
            return
        try:
            call = self._say(None, tag)
        except PeerLostError:
            # The chief goes as soon as it has heard this worker: what tells it that may not be answered any more.
            if self.is_chief or messaging.lost() is not None:
                raise
            return
        if self.is_chief:
            for worker in range(1, self.num_workers):
                self._hear(call, worker, tag, timeout)

    def require_connection(self, strategy: Any) -> None:
        """Checks that a strategy is one that Keras trains under, and joins the workers that TF_CONFIG names.

        Raises:
            ConfigError: It is not; or several workers are named, but the model was made under another strategy.
        """
        reason = strategies.unsupported_reason(strategy)
        if reason is not None:
            raise ConfigError(reason)
        if self.num_workers > 1 and not self.is_evaluator and not multi_worker.is_multi_worker(strategy):
            raise ConfigError(
                f"TF_CONFIG names {self.num_workers} workers, but the model was made under "
                f"{type(strategy).__name__}, so each worker would train alone; make the model within "
                "`with keras_dist_callbacks.make_strategy().scope():`"
            )

    def sync_before_raise(self, tag: str) -> None:
        """All are going to raise: the service must stay until the others have read why."""
        with contextlib.suppress(ClusterError):
            self.leave(f"{tag}, failed", _PARTING_SECONDS)

    def _say(self, value: Any, tag: str) -> int:
        calls = shared(_Calls)
        call = next(calls.numbers)
        message = json.dumps({"tag": tag, "value": value}).encode()
        with peer_monitor.monitoring(self):
            calls.chunks[call] = messaging.publish(f"kdc/call/{call}/{self.worker_index}", message, self.patience)
            past = call - _KEPT_CALLS
            if past in calls.chunks:  # every worker has read it, and the service would keep it to the end
                messaging.delete_key(f"kdc/call/{past}/{self.worker_index}", calls.chunks.pop(past))
        return call

    def _hear(self, call: int, worker: int, tag: str, timeout: float | None, kind: Any = Any) -> Any:
        seconds = self.patience if timeout is None else timeout
        with peer_monitor.monitoring(self):
            message = messaging.fetch(f"kdc/call/{call}/{worker}", seconds)
        if message is None:
            raise ClusterTimeoutError(
                f"{self.name}: no answer from worker {worker} ({self.addresses[worker]}) about {tag!r} "
                f"within {seconds:g} s"
            )
        source = f"worker {worker} ({self.addresses[worker]}) about {tag!r}"
        said: _Said = messaging.decode(message, _Said, source)
        if said.tag != tag:
            raise ConfigError(
                f"the workers made different collective calls: {tag!r} on {self.name}, {said.tag!r} on worker "
                f"{worker}. Give all workers the same callbacks, in the same order, and the same calls"
            )
        messaging.check(said.value, kind, source)
        return said.value
