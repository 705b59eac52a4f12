"""The rendezvous of all workers before the strategy is made: each says hello at the chief's own port."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keras_dist_callbacks.cluster.rendezvous_protocol import (
    FAULTS,
    VARIABLE,
    Answer,
    AuthSession,
    Challenge,
    ClusterToken,
    Deadline,
    Fault,
    Go,
    Hello,
    NotUnderstoodError,
    Refusal,
    new_nonce,
    receive,
    send,
)
from keras_dist_callbacks.cluster.roles import split_address
from keras_dist_callbacks.errors import ClusterTimeoutError, ConfigError

STRANGER_SECONDS = 10.0
"""How long a caller may take to become a worker."""
_MOST_STRANGERS = 256
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_POLL_SECONDS = 0.1
_PARTING_SECONDS = 2.0
_OUT_OF_TURN = "its message is not one of a chief of this version"


def wait_for_everyone(addresses: Sequence[str], index: int, timeout: float, token: ClusterToken | None = None) -> None:
    """Returns when all workers of the cluster have said hello to the chief.

    Args:
        addresses: `host:port` of each training worker, the chief first.
        index: This process' place in `addresses`.
        timeout: Seconds for everything together, whatever others send or do not send.
        token: What the workers of this cluster have and strangers do not. Defaults to none.

    Raises:
        ClusterTimeoutError: A worker is missing; the message names it, and who said to be it.
        ConfigError: An address is malformed, this process' port is occupied, or this worker's token is not the chief's.
    """
    deadline = Deadline.after(timeout)
    cluster = hashlib.sha256(",".join(addresses).encode()).hexdigest()
    with _listen(split_address(addresses[index])[1], addresses[index]) as own:
        if index == 0:
            _Chief(own, addresses, cluster, token, deadline).wait()
        else:
            _Worker(addresses, cluster, index, token, deadline).deliver()


def _listen(port: int, address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"this worker cannot listen on its own port {port} ({address}): {error.strerror}; end the process that "
            "uses it (an earlier run?) or give the worker another port in TF_CONFIG"
        ) from error


@dataclass(frozen=True)
class _Worker:
    """One worker's attempts to reach the chief."""

    addresses: Sequence[str]
    cluster: str
    index: int
    token: ClusterToken | None
    deadline: Deadline

    def deliver(self) -> None:
        """Returns when the chief has said that all workers are there."""
        reason = "no connection"
        while left := self.deadline.left():
            try:
                place = split_address(self.addresses[0])
                with socket.create_connection(place, min(_CONNECT_SECONDS, left)) as connection:
                    self._talk(connection)
                    return
            except NotUnderstoodError as error:
                reason = str(error)
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            time.sleep(min(_RETRY_SECONDS, self.deadline.left()))
        raise ClusterTimeoutError(
            f"worker {self.index}: the chief {self.addresses[0]} and the other workers did not start within "
            f"{self.deadline.seconds:g} s (last: {reason}); start all workers of TF_CONFIG, or raise startup_timeout"
        )

    def _talk(self, connection: socket.socket) -> None:
        patience = self.deadline.within(STRANGER_SECONDS)
        hello = Hello(self.cluster, self.index, new_nonce(), self.token is not None)
        send(connection, hello, patience)
        said = receive(connection, patience)
        if isinstance(said, Refusal) and said.why == "cluster":
            raise NotUnderstoodError("it belongs to another cluster: its TF_CONFIG differs from this worker's")
        if isinstance(said, Refusal) and said.why == ("missing" if self.token is None else "unwanted"):
            raise self._other_token(said.why)
        if not isinstance(said, Challenge):
            raise NotUnderstoodError(_OUT_OF_TURN)
        session = AuthSession(self.token, self.cluster, self.index, hello.nonce, said.nonce)
        if not session.is_proven("chief", said.proof):
            if self.token is None:  # a chief with a token would have refused this worker
                raise NotUnderstoodError(_OUT_OF_TURN)
            raise self._other_token("different")
        send(connection, Answer(session.proof("worker")), patience)
        go = receive(connection, self.deadline)
        if not isinstance(go, Go) or not session.is_proven("chief: go", go.proof):
            raise NotUnderstoodError(_OUT_OF_TURN)

    def _other_token(self, fault: Fault) -> ConfigError:
        return ConfigError(
            f"worker {self.index} ({self.addresses[self.index]}) {FAULTS[fault]}; set the same {VARIABLE} (or "
            f"{VARIABLE}_FILE) for all workers, or for none"
        )


class _Chief:
    """Waits for all workers of a cluster: one thread for each caller, which a deadline ends.

    Args:
        server: Listens on the chief's port.
        addresses: Of all workers, the chief first.
        cluster: What distinguishes this cluster from others.
        token: What the workers have to prove that they have.
        deadline: Of everything.
    """

    def __init__(
        self, server: socket.socket, addresses: Sequence[str], cluster: str, token: ClusterToken | None,
        deadline: Deadline,
    ) -> None:  # fmt: skip
        self._server = server
        self._addresses = addresses
        self._cluster = cluster
        self._token = token
        self._deadline = deadline
        self._lock = threading.Lock()
        self._callers: dict[socket.socket, None] = {}  # who are no workers yet, the oldest first
        self._workers: dict[int, tuple[socket.socket, AuthSession]] = {}
        self._claims: dict[int, str] = {}  # who said to be a worker and did not prove it

    def wait(self) -> None:
        """Returns when every worker is there and has been informed."""
        self._server.settimeout(_POLL_SECONDS)
        try:
            while len(self._workers) < len(self._addresses) - 1:
                if not self._deadline.left():
                    raise self._timed_out()
                self._accept()
            for connection, session in list(self._workers.values()):
                with contextlib.suppress(OSError):  # its thread notices
                    send(connection, Go(session.proof("chief: go")), self._deadline.within(_PARTING_SECONDS))
            self._await_parting()  # the workers close their connections first: TIME_WAIT stays on their side
        finally:
            _hang_up([*list(self._callers), *(connection for connection, _ in list(self._workers.values()))])
            self._await_parting()

    def _await_parting(self) -> None:
        parting = self._deadline.within(_PARTING_SECONDS)
        while self._workers and parting.left():
            time.sleep(0.01)

    def _accept(self) -> None:
        try:
            connection, (host, *_) = self._server.accept()
        except TimeoutError:
            return
        except OSError:  # no more descriptors, or the caller has gone already
            _hang_up(list(self._callers)[:1])
            time.sleep(0.01)
            return
        self._callers[connection] = None
        _hang_up(list(self._callers)[:-_MOST_STRANGERS])
        threading.Thread(
            target=self._serve, args=(connection, host.removeprefix("::ffff:")), name="kdc-rendezvous", daemon=True
        ).start()

    def _serve(self, connection: socket.socket, host: str) -> None:
        """One caller, from its hello until it has gone."""
        with connection, contextlib.suppress(OSError, NotUnderstoodError):  # a port scanner, or another version
            patience = self._deadline.within(STRANGER_SECONDS)
            hello = receive(connection, patience)
            if isinstance(hello, Hello) and (session := self._greet(connection, host, hello, patience)) is not None:
                answer = receive(connection, patience)
                if isinstance(answer, Answer) and session.is_proven("worker", answer.proof):
                    self._admit(connection, session)
                    connection.settimeout(None)  # until `wait` hangs up
                    connection.recv(1)  # it has nothing more to say: this is its end
        with self._lock:
            self._callers.pop(connection, None)
            for index in [index for index, (worker, _) in self._workers.items() if worker is connection]:
                del self._workers[index]

    def _greet(self, connection: socket.socket, host: str, hello: Hello, patience: Deadline) -> AuthSession | None:
        if hello.cluster != self._cluster or hello.index >= len(self._addresses):
            send(connection, Refusal("cluster"), patience)
            return None
        has_token = self._token is not None
        if (hello.has_token or has_token) and hello.index not in self._workers:
            how = f"but with a {VARIABLE}, and the chief has none"
            if has_token:
                how = f"but did not prove that it has the chief's {VARIABLE}"
            self._claims[hello.index] = f"{host} claims to be worker {hello.index}, {how}"
        if hello.has_token != has_token:
            send(connection, Refusal("missing" if has_token else "unwanted"), patience)
            return None
        session = AuthSession(self._token, self._cluster, hello.index, hello.nonce, new_nonce())
        send(connection, Challenge(session.chief_nonce, session.proof("chief")), patience)
        return session

    def _admit(self, connection: socket.socket, session: AuthSession) -> None:
        with self._lock:
            if session.index in self._workers:  # it was restarted while the others were waited for
                _hang_up([self._workers[session.index][0]])
            self._callers.pop(connection, None)
            self._workers[session.index] = connection, session
            self._claims.pop(session.index, None)

    def _timed_out(self) -> ClusterTimeoutError:
        missing = [i for i in range(1, len(self._addresses)) if i not in self._workers]
        named = ", ".join(f"worker {i} ({self._addresses[i]})" for i in missing)
        claims = "".join(f"; {self._claims[i]}" for i in missing if i in self._claims)
        return ClusterTimeoutError(
            f"chief {self._addresses[0]}: no contact from {named} within {self._deadline.seconds:g} s{claims}; start "
            f"all workers of TF_CONFIG{', with the same token' if claims else ''}, or raise startup_timeout"
        )


def _hang_up(connections: Iterable[socket.socket]) -> None:
    """Ends what their threads wait for; these close them."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
