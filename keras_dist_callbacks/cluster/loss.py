"""Which worker is lost, and why it is taken for lost."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import uuid

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.preflight import split_address
from keras_dist_callbacks.cluster.roles import Role
from keras_dist_callbacks.errors import PeerLostError

_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_PASSED_ON = re.compile(r"lost: (.*?)(?: \[type\.googleapis|\n|$)")
_FAREWELL = re.compile(r"worker (\d+) ended with (.*?)(?: \[type\.googleapis|\n|$)")
KEY = "kdc/lost"
"""Under which the coordination service keeps what is known of a lost worker."""
_ENDED = "has ended: nothing listens on its port any more"
_SILENT = "sends no heartbeats: it died, is frozen or cut off"
_CONNECT_SECONDS = 1.0
_ANSWER_SECONDS = 3.0
_LONGEST_REASON = 300


def is_loss(role: Role, error: BaseException) -> bool:
    """Whether an exception of one worker means that another is gone."""
    return role.num_workers > 1 and (coordination.is_peer_error(error) or isinstance(error, PeerLostError))


def say_farewell(role: Role, error: BaseException) -> None:
    """Tells the other workers that this one ends, so that they need not wait for its heartbeats to stay away."""
    if role.num_workers > 1:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]
        _tell(f"worker {role.worker_index} ended with {reason}")


def explained(role: Role, error: BaseException) -> PeerLostError:
    """The error that names the lost worker; the others are told too, who may know less.

    Args:
        role: Of this worker.
        error: What TensorFlow or the coordination service said.
    """
    who = messaging.lost()
    if who is None:
        passed_on = _PASSED_ON.search(str(error))
        who = passed_on[1] if passed_on is not None else _who(role, str(error))
        if passed_on is None:
            _tell(f"lost: {who}")
    return PeerLostError(f"{role.name}: {who}. Training cannot go on without it: start all workers again")


def explained_here(error: Exception) -> Exception:
    """An error of TensorFlow's as `explained`; another one, or one of a single worker, as it is."""
    role = Role.detect()
    if not is_loss(role, error):
        return error
    told = explained(role, error)
    told.__cause__ = error
    return told


def meaning(role: Role, told: str) -> str | None:
    """Who is lost and why, of what a worker has said; None if that was this one."""
    farewell = _FAREWELL.search(told)
    if farewell is not None and int(farewell[1]) == role.worker_index:
        return None
    passed_on = _PASSED_ON.search(told)
    return passed_on[1] if passed_on is not None else _who(role, told)


def pass_on(role: Role, tasks: list[tuple[str, int]]) -> str:
    """Who is lost and why, of tasks that the coordination service has given up; tells the other workers."""
    workers = [worker for job, index in tasks if (worker := _worker(role, job, index)) is not None]
    who = "; ".join(f"{_named(role, worker)} {_state(role.addresses[worker]) or _SILENT}" for worker in workers)
    _tell(f"lost: {who}")
    return who


def silent(role: Role, worker: int) -> str:
    """A worker is lost that does not answer."""
    return f"{_named(role, worker)} {_state(role.addresses[worker]) or 'does not answer: it is frozen or cut off'}"


def has_ended(role: Role, worker: int) -> bool:
    """Whether nothing listens on a worker's port any more."""
    return _state(role.addresses[worker]) == _ENDED


def _who(role: Role, text: str) -> str:
    farewell = _FAREWELL.search(text)
    if farewell is not None:
        return f"{_named(role, int(farewell[1]))} said that it ended with {farewell[2]}"
    told = {worker for job, index in _TASK.findall(text) if (worker := _worker(role, job, int(index))) is not None}
    told.discard(role.worker_index)
    states = {worker: _state(role.addresses[worker]) for worker in _peers(role)}
    lost = [f"{_named(role, worker)} {states[worker] or _SILENT}" for worker in told]
    lost = lost or [f"{_named(role, worker)} {state}" for worker, state in states.items() if state]
    if not lost and (role.num_workers == 2 or not _service_answers(role)):
        return silent(role, 0 if role.worker_index else 1)
    return "; ".join(lost) or "one of the other workers does not answer"


def _service_answers(role: Role) -> bool:
    """Whether the chief is there, which hosts the coordination service."""
    try:
        messaging.publish(f"kdc/alive/{uuid.uuid4().hex}", b"", _ANSWER_SECONDS)
    except Exception:  # noqa: BLE001 - whatever a lost service says
        return role.is_chief
    return True


def _tell(text: str) -> None:
    """In a step others hear of it as an error, elsewhere by watching the key."""
    publish, report = (
        functools.partial(coordination.set_once, KEY, text),
        functools.partial(coordination.report_error, text),
    )
    with contextlib.suppress(Exception):  # the error itself is what matters, and others may be gone already
        messaging.bounded(publish, _ANSWER_SECONDS, "telling the other workers")
        messaging.bounded(report, _ANSWER_SECONDS, "telling the other workers")  # not unless the service has answered


def _peers(role: Role) -> list[int]:
    return [worker for worker in range(role.num_workers) if worker != role.worker_index]


def _named(role: Role, worker: int) -> str:
    return f"{'the chief' if worker == 0 else f'worker {worker}'} ({role.addresses[worker]})"


def _worker(role: Role, job: str, index: int) -> int | None:
    before = 0
    for name, hosts in role.jobs.items():
        if name == job:
            return before + index if index < len(hosts) else None
        before += len(hosts)
    return None


def _state(address: str) -> str:
    """What can be told of a worker from its port; empty if it listens."""
    try:
        socket.create_connection(split_address(address), _CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return _ENDED
    except OSError as error:
        return f"cannot be reached: {error.strerror or 'no answer'}"
    return ""
