"""One ordered queue for everything that a run publishes.

Jobs run one after the other on a background thread, in the order in which they were handed over: a backup
that refers to the state after an artefact was decided is never visible before that artefact. The thread
lives only while there is work, so that nothing is left behind when training ends, however it ends.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from keras_dist_callbacks.engine.priority import Priority, cpu_times


@dataclass(frozen=True)
class _Job:
    run: Callable[[], None]
    what: str
    ticket: int
    urgent: bool
    late: bool


class Writer:
    """Runs jobs in order in the background; a job's failure is kept until somebody asks."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._tickets = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._priority = Priority()

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or running."""
        with self._condition:
            return self._thread is not None

    @property
    def failed(self) -> bool:
        """Whether `raise_failure` would raise; asked after every step, so without a lock."""
        return self._failure is not None

    def submit(self, run: Callable[[], None], what: str, *, urgent: bool = False, late: bool = False) -> int:
        """Appends a job.

        Args:
            run: What to do; it must not call a TensorFlow collective.
            what: For messages, such as `"backup at step 1200"`.
            urgent: Nothing is saved yet: training that leaves no processor idle must not hold it up.
            late: It came due before the one of its kind that is still being written was done.

        Returns:
            A number for `withdraw`.
        """
        with self._condition:
            job = _Job(run, what, next(self._tickets), urgent, late)
            self._jobs.append(job)
            if self._thread is None:
                try:
                    self._start(job)
                except BaseException:
                    self._jobs.remove(job)
                    raise
        return job.ticket

    def withdraw(self, ticket: int) -> bool:
        """Takes a job back, with all that it holds, if it has not begun and none is behind it.

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

    def _start(self, first: _Job) -> None:
        """Lets a thread begin with a job; it has a priority of its own, which it could not raise again."""
        thread = threading.Thread(target=self._work, args=(first.urgent,), name="kdc-writer")
        thread.start()
        self._thread = thread

    def _work(self, urgent: bool) -> None:
        if not urgent:
            self._priority.take()
        job = self._next()
        while job is not None:
            try:
                job.run()
            except BaseException as error:  # noqa: BLE001 - surfaces in raise_failure
                error.add_note(f"in the background: {job.what}")
                with self._condition:
                    self._failure = self._failure or error
            del job  # a waiting thread must not hold what was written
            job = self._hand_over()

    def _next(self) -> _Job | None:
        with self._condition:
            if self._jobs:
                return self._jobs.popleft()
            self._done()  # what there was has been withdrawn
            return None

    def _done(self) -> None:
        """There is nothing to do any more; whoever calls this holds the lock."""
        self._thread = None
        self._condition.notify_all()

    def _hand_over(self) -> _Job | None:
        """Leaves what waits to a new thread; where none can be started, the next job for this one."""
        with self._condition:
            self._priority.learn(cpu_times(), late=any(job.late for job in self._jobs))
            try:
                if self._jobs:
                    self._start(self._jobs[0])
                else:
                    self._done()
            except RuntimeError:
                return self._jobs.popleft()
            return None


_shared = Writer()


def shared_writer() -> Writer:
    """The queue of this process: backups and artefacts go through the same one."""
    return _shared
