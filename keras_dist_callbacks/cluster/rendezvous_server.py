"""The chief's side of the rendezvous."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from keras_dist_callbacks.cluster.rendezvous_protocol import (
    FAULTS,
    LONGEST,
    VARIABLE,
    Aborted,
    Answer,
    AuthSession,
    Challenge,
    ClusterToken,
    Deadline,
    Fault,
    Go,
    Hello,
    Message,
    NotUnderstoodError,
    Refusal,
    Statement,
    connect,
    decode,
    encode,
    new_nonce,
    receive,
)
from keras_dist_callbacks.errors import ClusterTimeoutError, ConfigError

PATIENCE_SECONDS = 2.0


class SecondLook:
    """Asks workers at their own addresses, one after the other, in a thread of its own.

    Args:
        addresses: Of all workers, the chief first.
        cluster: What tells this cluster from others.
        deadline: Of the whole start.
    """

    def __init__(self, addresses: Sequence[str], cluster: str, deadline: Deadline) -> None:
        self._addresses = addresses
        self._cluster = cluster
        self._deadline = deadline
        self._asked: set[int] = set()
        self._questions: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, Fault | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, worker: int) -> None:
        """Returns at once; a worker is asked once at a time."""
        if worker in self._asked:
            return
        self._asked.add(worker)
        self._questions.put(worker)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kdc-second-look", daemon=True)
            self._thread.start()

    def answers(self) -> list[tuple[int, Fault | None]]:
        """What has come in meanwhile: a worker, and what it says is wrong with its token; None if it says nothing."""
        found: list[tuple[int, Fault | None]] = []
        while not self._answers.empty():
            found.append(self._answers.get())
            self._asked.discard(found[-1][0])
        return found

    def close(self) -> None:
        """Nothing more is asked."""
        self._questions.put(None)

    def _run(self) -> None:
        while (worker := self._questions.get()) is not None:
            self._answers.put((worker, self._ask(worker)))

    def _ask(self, worker: int) -> Fault | None:
        try:
            with connect(self._addresses[worker], self._deadline, PATIENCE_SECONDS) as connection:
                said = receive(connection, self._deadline.within(PATIENCE_SECONDS))
        except (OSError, NotUnderstoodError):
            return None
        is_it = isinstance(said, Statement) and (said.cluster, said.index) == (self._cluster, worker)
        return said.why if isinstance(said, Statement) and is_it else None


STRANGER_SECONDS = 10.0
"""How long a caller may take to become a worker."""
_MOST_STRANGERS = 256
_MOST_AT_ONCE = 64
_POLL_SECONDS = 0.1
_PARTING_SECONDS = 2.0


@dataclass(eq=False)
class _Caller:
    socket: socket.socket
    host: str
    since: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)
    index: int = 0  # who it says it is
    conversation: AuthSession | None = None
    is_doubted: bool = False  # it stays connected until the second look is over


class RendezvousServer:
    """Waits for all workers of a cluster.

    Args:
        server: Listens on the chief's port.
        addresses: Of all workers, the chief first.
        cluster: What tells this cluster from others.
        token: What the workers have to prove that they have.
        deadline: Of everything.
    """

    def __init__(
        self,
        server: socket.socket,
        addresses: Sequence[str],
        cluster: str,
        token: ClusterToken | None,
        deadline: Deadline,
    ) -> None:
        self._server = server
        self._addresses = addresses
        self._cluster = cluster
        self._token = token
        self._deadline = deadline
        self._strangers: dict[_Caller, None] = {}  # the oldest first
        self._workers: dict[int, _Caller] = {}
        self._claims: dict[int, str] = {}  # who said to be a worker and did not prove it
        self._second_look = SecondLook(addresses, cluster, deadline)
        self._selector = selectors.DefaultSelector()

    def wait(self) -> None:
        """Returns when every worker is there and was told so.

        Raises:
            ClusterTimeoutError: A worker is missing.
            ConfigError: A worker has another token, or only one side has one.
        """
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        try:
            while len(self._workers) < len(self._addresses) - 1:
                if not self._deadline.left():
                    raise self._timed_out()
                self._serve(min(_POLL_SECONDS, self._deadline.left()))
                self._hang_up_on_slow_ones()
                self._hear_second_look()
            self._say_go()
        finally:
            self._second_look.close()
            self._hang_up([*self._strangers, *self._workers.values()])
            self._selector.close()

    def _serve(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._server:
                self._accept()
            elif key.data.socket.fileno() >= 0:  # another one's words may have led to its end
                self._listen_to(key.data)

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, (host, *_) = self._server.accept()
            except BlockingIOError:
                return
            except OSError:  # no more descriptors, or the caller has gone already
                self._hang_up(list(self._strangers)[:1])
                time.sleep(0.01)
                return
            connection.setblocking(False)
            caller = _Caller(connection, host.removeprefix("::ffff:"))
            self._strangers[caller] = None
            self._selector.register(connection, selectors.EVENT_READ, caller)
            if len(self._strangers) > _MOST_STRANGERS:
                self._hang_up(list(self._strangers)[:1])

    def _listen_to(self, caller: _Caller) -> None:
        try:
            part = caller.socket.recv(LONGEST + 1)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        caller.received += part
        is_waiting = caller.is_doubted or caller not in self._strangers  # there is nothing more that it should say
        if not part or is_waiting or len(caller.received) > LONGEST:
            self._hang_up([caller])
        elif caller.received.endswith(b"\n"):
            line, caller.received = bytes(caller.received), bytearray()
            try:
                self._answer(caller, decode(line))
            except NotUnderstoodError:  # a port scanner, a health check or another version
                self._hang_up([caller])

    def _answer(self, caller: _Caller, said: Message) -> None:
        conversation = caller.conversation
        if isinstance(said, Hello) and conversation is None:
            self._greet(caller, said)
        elif isinstance(said, Answer) and conversation is not None:
            self._admit(caller, conversation, said)
        elif isinstance(said, Refusal) and conversation is not None and said.why == "different" and self._token:
            self._doubt(caller)
        else:
            self._hang_up([caller])

    def _greet(self, caller: _Caller, hello: Hello) -> None:
        if hello.cluster != self._cluster or hello.index >= len(self._addresses):
            self._say(caller, Refusal("cluster"))
            self._hang_up([caller])
            return
        caller.index = hello.index
        if hello.has_token != (self._token is not None):
            self._say(caller, Refusal("unwanted" if hello.has_token else "missing"))
            self._doubt(caller)
        else:
            if self._token is not None:
                self._note(caller)
            caller.conversation = AuthSession(self._token, self._cluster, hello.index, hello.nonce, new_nonce())
            self._say(caller, Challenge(caller.conversation.chief_nonce, caller.conversation.proof("chief")))

    def _admit(self, caller: _Caller, conversation: AuthSession, answer: Answer) -> None:
        if not conversation.is_proven("worker", answer.proof):
            self._hang_up([caller])
            return
        if caller.index in self._workers:  # it was restarted while the others were waited for
            self._hang_up([self._workers[caller.index]])
        del self._strangers[caller]
        self._workers[caller.index] = caller
        self._claims.pop(caller.index, None)

    def _doubt(self, caller: _Caller) -> None:
        """A worker whose token is not the chief's, or a stranger who says so."""
        if caller.index in self._workers:
            self._hang_up([caller])
            return
        caller.is_doubted = True
        self._note(caller)
        self._second_look.ask(caller.index)

    def _note(self, caller: _Caller) -> None:
        if caller.index not in self._workers:
            how = f"but with a {VARIABLE}, and the chief has none"
            if self._token is not None:
                how = f"but has not proven that it has the chief's {VARIABLE}"
            self._claims[caller.index] = f"{caller.host} said it is worker {caller.index}, {how}"

    def _hear_second_look(self) -> None:
        for index, fault in self._second_look.answers():
            if fault is not None and index not in self._workers and self._is_possible(fault):
                for worker in self._workers.values():
                    self._say(worker, Aborted(index, fault))
                raise is_lasting_fault(index, self._addresses[index], fault)
            self._hang_up([caller for caller in self._strangers if caller.is_doubted and caller.index == index])

    def _is_possible(self, fault: Fault) -> bool:
        return (fault == "unwanted") == (self._token is None)

    def _say(self, caller: _Caller, message: Message) -> None:
        with contextlib.suppress(OSError):  # it has gone, which shows itself when it is listened to
            caller.socket.send(encode(message))

    def _hang_up_on_slow_ones(self) -> None:
        oldest_allowed = time.monotonic() - STRANGER_SECONDS
        self._hang_up([caller for caller in self._strangers if caller.since < oldest_allowed])

    def _hang_up(self, callers: Iterable[_Caller]) -> None:
        for caller in callers:
            self._strangers.pop(caller, None)
            if self._workers.get(caller.index) is caller:
                del self._workers[caller.index]
            with contextlib.suppress(KeyError):
                self._selector.unregister(caller.socket)
            caller.socket.close()

    def _say_go(self) -> None:
        """The workers close their connections first, so that TIME_WAIT stays on their side."""
        self._selector.unregister(self._server)
        self._hang_up(list(self._strangers))
        for worker in self._workers.values():
            if worker.conversation is not None:
                self._say(worker, Go(worker.conversation.proof("chief: go")))
        parting = self._deadline.within(_PARTING_SECONDS)
        while self._workers and parting.left():
            self._serve(parting.left())

    def _timed_out(self) -> ClusterTimeoutError:
        missing = [i for i in range(1, len(self._addresses)) if i not in self._workers]
        named = ", ".join(f"worker {i} ({self._addresses[i]})" for i in missing)
        claims = "".join(f"; {self._claims[i]}" for i in missing if i in self._claims)
        return ClusterTimeoutError(
            f"chief {self._addresses[0]}: no contact from {named} within {self._deadline.seconds:g} s{claims}; start "
            f"all workers of TF_CONFIG{', with the same token' if claims else ''}, or raise startup_timeout"
        )


def is_lasting_fault(worker: int, address: str, fault: Fault) -> ConfigError:
    """The error that all workers raise when one has another token."""
    return ConfigError(
        f"worker {worker} ({address}) {FAULTS[fault]}; set the same {VARIABLE} (or {VARIABLE}_FILE) for all workers, "
        "or for none"
    )
