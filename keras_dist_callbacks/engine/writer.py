"""One ordered queue for everything that a run publishes.

Jobs run one after the other in the background, in the order in which they were handed over: a backup that
refers to the state after an artefact was decided is never visible before that artefact. Threads live only
while there is work, so that nothing is left behind when training ends, however it ends.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from keras_dist_callbacks.engine.background import lower_priority
from keras_dist_callbacks.process import Shared, shared


@dataclass(frozen=True)
class _Job:
    run: Callable[[], None]
    what: str
    ticket: int


class Writer(Shared):
    """Runs jobs in order in the background; a job's failure is kept until it is asked for."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._tickets = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def in_child(self) -> Writer:
        """A forked child has neither the thread nor what may hold the lock."""
        return Writer()

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or running."""
        with self._condition:
            return self._thread is not None

    @property
    def failed(self) -> bool:
        """Whether `raise_failure` would raise; asked after every step, so without a lock."""
        return self._failure is not None

    def submit(self, run: Callable[[], None], what: str) -> int:
        """Appends a job.

        Args:
            run: What to do; it must not call a TensorFlow collective.
            what: For messages, such as `"backup at step 1200"`.

        Returns:
            A number for `withdraw`.
        """
        with self._condition:
            job = _Job(run, what, next(self._tickets))
            self._jobs.append(job)
            if self._thread is None:
                try:
                    self._start()
                except BaseException:
                    self._jobs.remove(job)
                    raise
        return job.ticket

    def withdraw(self, ticket: int) -> bool:
        """Takes a job back, with all that it holds, if it has not begun and is the last one.

        Whatever took its place at the end would come to its turn later, for ever if others keep coming.
        """
        with self._condition:
            is_last = bool(self._jobs) and self._jobs[-1].ticket == ticket
            if is_last:
                self._jobs.pop()
        return is_last

    def is_waiting(self, ticket: int) -> bool:
        """Whether a job has not begun."""
        with self._condition:
            return any(job.ticket == ticket for job in self._jobs)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every job is done; whether that happened within `timeout` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: self._thread is None, timeout)

    def raise_failure(self) -> None:
        """Raises, once, the first error that a job ended with."""
        failure = self.take_failure()
        if failure is not None:
            raise failure

    def take_failure(self) -> BaseException | None:
        """The first error that a job ended with, once."""
        with self._condition:
            failure, self._failure = self._failure, None
        return failure

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="kdc-writer")
        thread.start()
        self._thread = thread

    def _work(self) -> None:
        lower_priority()
        job = self._next()
        while job is not None:
            self._run(job)
            del job  # the snapshot must be released when waiters are notified
            job = self._next()

    def _next(self) -> _Job | None:
        with self._condition:
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            self._condition.notify_all()
            return None

    def _run(self, job: _Job) -> None:
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001 - surfaces in raise_failure
            error.add_note(f"it was raised while this was written: {job.what}")
            with self._condition:
                self._failure = self._failure or error


def shared_writer() -> Writer:
    """The queue of this process: backups and artefacts go through the same one."""
    return shared(Writer)
