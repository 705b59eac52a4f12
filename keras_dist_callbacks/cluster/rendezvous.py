"""The rendezvous of all workers before the strategy is made."""

from __future__ import annotations

import contextlib
import hashlib
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from keras_dist_callbacks.cluster.rendezvous_protocol import (
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
    encode,
    new_nonce,
    receive,
    send,
)
from keras_dist_callbacks.cluster.rendezvous_server import STRANGER_SECONDS, RendezvousServer, is_lasting_fault
from keras_dist_callbacks.cluster.roles import split_address
from keras_dist_callbacks.errors import ClusterTimeoutError, ConfigError

_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_STATEMENT_SECONDS = 5.0
_OUT_OF_TURN = "it said something that a chief would not have said"


@dataclass(frozen=True)
class RendezvousClient:
    """One worker's attempts to reach the chief.

    Attributes:
        own: Listens on this worker's port.
        addresses: Of all workers, the chief first.
        cluster: What tells this cluster from others.
        index: Of this worker.
        token: What the chief has to prove that it has.
        deadline: Of everything.
    """

    own: socket.socket
    addresses: Sequence[str]
    cluster: str
    index: int
    token: ClusterToken | None
    deadline: Deadline

    def deliver(self) -> None:
        """Returns when the chief has said that everybody is there.

        Raises:
            ClusterTimeoutError: It has not in time.
            ConfigError: The chief has another token, or only one side has one.
        """
        reason = "no connection"
        while self.deadline.left():
            try:
                with connect(self.addresses[0], self.deadline, _CONNECT_SECONDS) as connection:
                    self._talk(connection)
                    return
            except NotUnderstoodError as error:
                reason = str(error)
            except OSError as error:
                reason = error.strerror or str(error)
            time.sleep(min(_RETRY_SECONDS, self.deadline.left()))
        raise ClusterTimeoutError(
            f"worker {self.index}: the chief {self.addresses[0]} and the rest of the cluster did not come up within "
            f"{self.deadline.seconds:g} s (last: {reason}); start all workers of TF_CONFIG, or raise startup_timeout"
        )

    def _talk(self, connection: socket.socket) -> None:
        patience = self.deadline.within(STRANGER_SECONDS)
        hello = Hello(self.cluster, self.index, new_nonce(), self.token is not None)
        send(connection, hello, patience)
        said = receive(connection, patience)
        if isinstance(said, Refusal):
            self._refused(connection, said)
        if not isinstance(said, Challenge):
            raise NotUnderstoodError(_OUT_OF_TURN)
        conversation = AuthSession(self.token, self.cluster, self.index, hello.nonce, said.nonce)
        if not conversation.is_proven("chief", said.proof):
            self._refuse(connection, patience)
        send(connection, Answer(conversation.proof("worker")), patience)
        self._wait_for_go(conversation, receive(connection, self.deadline))

    def _wait_for_go(self, conversation: AuthSession, said: Message) -> None:
        if isinstance(said, Aborted) and said.worker < len(self.addresses):
            raise is_lasting_fault(said.worker, self.addresses[said.worker], said.why)
        if not isinstance(said, Go) or not conversation.is_proven("chief: go", said.proof):
            raise NotUnderstoodError(_OUT_OF_TURN)

    def _refused(self, connection: socket.socket, refusal: Refusal) -> None:
        if refusal.why == "cluster":
            raise NotUnderstoodError("it belongs to another cluster: its TF_CONFIG differs from this worker's")
        if refusal.why == ("missing" if self.token is None else "unwanted"):
            self._end(connection, refusal.why)

    def _refuse(self, connection: socket.socket, patience: Deadline) -> None:
        if self.token is None:  # a chief with a token would have refused this worker
            raise NotUnderstoodError(_OUT_OF_TURN)
        with contextlib.suppress(OSError):  # whoever it was has gone
            send(connection, Refusal("different"), patience)
        self._end(connection, "different")

    def _end(self, connection: socket.socket, fault: Fault) -> None:
        """Ends this worker, once the chief knows why.

        The chief believes it to nobody but who listens on this worker's own port, and hangs up when it has asked there.
        """
        statement = encode(Statement(self.cluster, self.index, fault))
        until = self.deadline.within(_STATEMENT_SECONDS)
        self.own.setblocking(False)
        connection.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.own, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            while until.left():
                ready = [key.fileobj for key, _ in selector.select(until.left())]
                if self.own in ready:
                    _state(self.own, statement)
                if connection in ready:
                    break
        raise is_lasting_fault(self.index, self.addresses[self.index], fault)


def _state(own: socket.socket, statement: bytes) -> None:
    with contextlib.suppress(OSError):  # whoever asked has gone
        asker, _ = own.accept()
        with asker:
            asker.setblocking(False)
            asker.send(statement)


def wait_for_everyone(addresses: Sequence[str], index: int, timeout: float, token: ClusterToken | None = None) -> None:
    """Returns when all workers of the cluster have said hello to the chief.

    Args:
        addresses: `host:port` of each training worker, the chief first.
        index: This process' place in `addresses`.
        timeout: Seconds for everything together, whatever others send or do not send.
        token: What the workers of this cluster have and strangers do not. Defaults to none.

    Raises:
        ClusterTimeoutError: Somebody is missing; the message names them, and who said to be them.
        ConfigError: An address is malformed, this process' port is occupied, or the workers' tokens differ.
    """
    deadline = Deadline.after(timeout)
    cluster = hashlib.sha256(",".join(addresses).encode()).hexdigest()
    with _listen(split_address(addresses[index])[1], addresses[index]) as own:
        if index == 0:
            RendezvousServer(own, addresses, cluster, token, deadline).wait()
        else:
            RendezvousClient(own, addresses, cluster, index, token, deadline).deliver()


def _listen(port: int, address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if dual else socket.AF_INET,
            dualstack_ipv6=dual,
            backlog=128,
        )
    except OSError as error:
        raise ConfigError(
            f"this worker cannot listen on its own port {port} ({address}): {error.strerror}; "
            "end the process that occupies it (an earlier run?) or give the worker another port in TF_CONFIG"
        ) from error
