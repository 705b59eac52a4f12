"""All workers stop after the same step, whichever asks for it, with no call between workers on any other step.

Each worker counts its boundaries (after a step, a step of validation, an epoch). A worker that wants to stop publishes
a request. A thread on each worker waits for it, answers with the next boundary of its own, and from then on the main
thread may not pass that one before all answers are there. All stop at the latest boundary among the answers:
no worker is beyond it, and none waits in a collective for one that has stopped before it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import msgspec

from keras_dist_callbacks.base.errors import ClusterError, ClusterTimeoutError, PeerLostError
from keras_dist_callbacks.base.progress_file import unless_restarted
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.cluster import Cluster

_FOREVER = 1e8
_RETRY_SECONDS = 1.0
_POLL_SECONDS = 0.25
_CLOSED = "closed"
_Boundary = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class StopRequest:
    """What a worker asked for.

    Attributes:
        kind: What is to be done at the boundary; for the callers to know.
        why: The reason, for messages.
        worker: Who asked.
        seconds: How long all of them may take for it; None where each has a limit of its own.
    """

    kind: str
    why: str
    worker: int
    seconds: float | None = None


@dataclass
class _Round:
    """One agreement on a boundary.

    Attributes:
        number: How many were reached before it.
        answer: The boundary that this worker may not pass until all have answered; None without a request.
        request: What was asked for, once all have answered.
        stop_at: Where all stop then.
    """

    number: int = 0
    answer: int | None = None
    request: StopRequest | None = None
    stop_at: int = 0


class CoordinatedStop:
    """The boundaries of one run, and where to stop.

    Args:
        cluster: Who has to agree.
        name: What distinguishes this run from another; the same on every worker.
        on_request: Called on every worker, in a thread of its own, as soon as a request is known there.
        timeout: Seconds to wait for the others' answers.
    """

    def __init__(
        self, cluster: Cluster, name: str, on_request: Callable[[StopRequest], None], timeout: float = 60.0
    ) -> None:
        self._cluster = cluster
        self._key = f"kdc/{name}/stop"
        self._on_request = on_request
        self._timeout = timeout
        self._alone = cluster.num_workers == 1
        self._lock = threading.Lock()
        self._wishes: queue.SimpleQueue[StopRequest | None] = queue.SimpleQueue()
        self._unmet: list[StopRequest] = []
        self._passed = 0
        self._round = _Round()
        self._noted: StopRequest | None = None
        self._failure: ClusterError | None = None  # nothing can be agreed on any more
        self._decided, self._taken, self._closing = threading.Event(), threading.Event(), threading.Event()

    def start(self) -> None:
        """Begins to listen; one worker alone has nothing to listen to."""
        if not self._alone:
            for run in (self._publish, self._watch):
                threading.Thread(target=run, name=f"kdc-stop{run.__name__}", daemon=True).start()

    @property
    def pending(self) -> StopRequest | None:
        """A request that is known here and was not acted on."""
        with self._lock:
            return self._round.request or next(iter(self._unmet), None) or self._noted

    def note(self, kind: str, why: str, seconds: float | None = None) -> None:
        """Remembers a request that is to follow; it only sets a value, as a handler of signals may.

        With one worker that is enough to stop at the next boundary.
        """
        self._noted = self._noted or StopRequest(kind, why, self._cluster.worker_index, seconds)

    def request(self, kind: str, why: str, seconds: float | None = None) -> None:
        """Asks all workers to stop at one of their next boundaries; from any thread, returns at once."""
        wish = StopRequest(kind, why, self._cluster.worker_index, seconds)
        if self._alone:
            self.note(kind, why, seconds)
            self._on_request(wish)
        else:
            self._wishes.put(wish)

    def boundary(self, kind: str | None = None, why: str = "") -> StopRequest | None:
        """The main thread is between two steps; to be called at the same ones on every worker.

        Args:
            kind: Ask for a stop at this boundary, or at one as near as the others allow.
            why: Its reason.

        Returns:
            The request, if this is the boundary where all stop.

        Raises:
            ClusterError: A worker has published what no worker of this version would.
            ClusterTimeoutError: A stop was asked for, and not every worker has answered.
            PeerLostError: A worker is lost that has not answered.
        """
        if self._alone:
            request, self._noted = self._noted, None
            return StopRequest(kind, why, 0) if request is None and kind is not None else request
        wish = None if kind is None else StopRequest(kind, why, self._cluster.worker_index)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            here = self._passed + 1
            if self._round.answer is None and wish is None:  # nobody has asked, as far as is known here: train on
                self._passed = here
                return None
            if self._round.answer is None:  # this worker asks, and offers to stop here
                self._round.answer = here
        if wish is not None:
            self._wishes.put(wish)
        return self._hold(here)

    def close(self) -> None:
        """No boundary follows. The chief calls it when every worker is past its last."""
        self._closing.set()
        self._taken.set()
        self._wishes.put(None)
        if not self._alone and self._cluster.is_chief:  # the others' threads wait for a request until they are told
            closed = self._round.number, StopRequest(_CLOSED, "", self._cluster.worker_index)
            with contextlib.suppress(RuntimeError):  # no thread can be started: the others wait for their own end
                threading.Thread(target=self._announce, args=closed, daemon=True).start()

    def _hold(self, here: int) -> StopRequest | None:
        """Waits at a boundary until all have answered; the request if they stop here, None if one is beyond it."""
        deadline = time.monotonic() + self._timeout
        while not self._decided.wait(_POLL_SECONDS):
            messaging.raise_if_lost()
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                raise ClusterTimeoutError(
                    f"{self._cluster.name}: a stop was requested, but not every worker answered within "
                    f"{self._timeout:g} s{unless_restarted(': start all workers again')}"
                )
        with self._lock:
            self._passed = here
            if here < self._round.stop_at:
                return None
            request = self._round.request
            self._round = _Round(self._round.number + 1)  # for what is asked later, such as a stop without leaving
            self._decided.clear()
        self._taken.set()
        return request

    # --- in threads of their own

    def _publish(self) -> None:
        while (wish := self._wishes.get()) is not None:
            with self._lock:
                if all(unmet.kind != wish.kind for unmet in self._unmet):
                    self._unmet.append(wish)
                number = self._round.number
            self._announce(number, wish)

    def _announce(self, number: int, request: StopRequest) -> None:
        with contextlib.suppress(ClusterError):  # a lost cluster shows itself at the next training step
            messaging.publish_once(self._of(number, "request"), json.dumps(asdict(request)).encode(), self._timeout)

    def _watch(self) -> None:
        while not self._closing.is_set():
            number = self._round.number
            try:
                value = messaging.fetch(self._of(number, "request"), _FOREVER, self._closing.is_set)
                if value is None:
                    return
                request: StopRequest = messaging.decode(value, StopRequest, "which worker requests a stop")
                if request.kind == _CLOSED:
                    return
                self._agree(number, request)
            except (ClusterTimeoutError, PeerLostError):  # a cut may heal; a lost cluster shows itself at the next step
                self._closing.wait(_RETRY_SECONDS)
                continue
            except ClusterError as error:  # what is published stays: no stop can be agreed on any more
                self._failure = error
                return
            self._taken.wait()
            self._taken.clear()
            with self._lock:
                self._unmet = [wish for wish in self._unmet if wish.kind != request.kind]
                again = list(self._unmet)
            for wish in again:  # another worker's request came first; that of this one is for the next round
                self._wishes.put(wish)

    def _agree(self, number: int, request: StopRequest) -> None:
        me = self._cluster.worker_index
        with self._lock:
            if self._round.answer is None:
                self._round.answer = self._passed + 1
            mine = self._round.answer
        self._on_request(request)
        messaging.publish_once(self._of(number, f"answer/{me}"), str(mine).encode(), self._timeout)
        answers = [mine]
        for worker in range(self._cluster.num_workers):
            if worker != me:
                value = messaging.fetch(self._of(number, f"answer/{worker}"), _FOREVER, self._closing.is_set)
                source = f"the next boundary of worker {worker}"
                answers.append(0 if value is None else messaging.decode(value, _Boundary, source))
        with self._lock:
            self._round.request, self._round.stop_at = request, max(answers)
        self._decided.set()

    def _of(self, number: int, topic: str) -> str:
        return f"{self._key}/{number}/{topic}"
