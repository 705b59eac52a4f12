"""Whether a claim about a worker's token comes from that worker.

Anyone can say to the chief "I am worker 1, and I have no token". The start may end because of it only if worker 1
itself says so, and what listens on worker 1's own port in TF_CONFIG is worker 1: a stranger who has taken that port
has prevented the start already, because worker 1 cannot have it then.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from keras_dist_callbacks.cluster.greetings import (
    Deadline,
    Fault,
    NotUnderstoodError,
    Statement,
    connect,
    receive,
)

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
