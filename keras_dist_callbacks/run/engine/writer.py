"""One ordered queue for everything that a run publishes.

Jobs run one after the other in the background, in the order in which they were handed over: a backup that
refers to the state after an artefact was decided is never visible before that artefact. Threads live only
while there is work, so that nothing is left behind when training ends, however it ends.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.run.engine.background import lower_priority


@dataclass(eq=False)
class Owner:
    """A run that hands jobs over, and asks how they ended.

    Attributes:
        is_alive: Whether it has not ended, to be asked in any thread: what fails later is a warning alone.
        newest: The number of its newest job in the queue; 0 before the first.
        longest: Seconds that its longest job took.
    """

    is_alive: Callable[[], bool] = lambda: True
    newest: int = 0
    longest: float = 0.0


_NOBODY = Owner(lambda: False)


@dataclass(frozen=True)
class _Job:
    run: Callable[[], None]
    what: str
    owner: Owner
    number: int


class Writer(Shared):
    """Runs jobs in order in the background; a job's failure is kept until its owner asks for it, or has ended."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._numbers = itertools.count(1)
        self._done = 0  # the number of the last one
        self._thread: threading.Thread | None = None
        self._failures: list[tuple[Owner, BaseException]] = []
        self._longest, self._began = 0.0, time.monotonic()

    def in_child(self) -> Writer:
        """A forked child has neither the thread nor what may hold the lock."""
        return Writer()

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or running."""
        with self._condition:
            return self._thread is not None

    @property
    def seconds_left(self) -> float:
        """How long what is being written may last, judged by the longest write so far; 0 if there is nothing."""
        if not self.busy:
            return 0.0
        return max(self._longest, time.monotonic() - self._began)

    def failed(self, owner: Owner) -> bool:
        """Whether `raise_failure` would raise; asked after every step, so without a lock."""
        return bool(self._failures) and any(whose is owner for whose, _ in self._failures)

    def submit(self, run: Callable[[], None], what: str, owner: Owner = _NOBODY) -> None:
        """Appends a job.

        Args:
            run: What to do; it must not call a TensorFlow collective.
            what: For messages, such as `"backup at step 1200"`.
            owner: Who asks for its failure. Defaults to nobody: it is a warning at once.

        Raises:
            RuntimeError: No thread can be started, and nothing is.
        """
        with self._condition:
            job = _Job(run, what, owner, next(self._numbers))
            self._jobs.append(job)
            if self._thread is None:
                try:
                    self._start()
                except BaseException:
                    self._jobs.remove(job)
                    raise
            owner.newest = job.number

    def is_done(self, owner: Owner) -> bool:
        """Whether every job of an owner is done; asked after every step, so without a lock."""
        return self._done >= owner.newest

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every job is done; whether that happened within `timeout` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: self._thread is None, timeout)

    def wait_for(self, owner: Owner) -> None:
        """Waits until every job of an owner is done; those of others that come later are not waited for."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_done(owner) or self._thread is None)

    def raise_failure(self, owner: Owner) -> None:
        """Raises, once, the first error that a job of an owner ended with."""
        failure = self.take_failure(owner)
        if failure is not None:
            raise failure

    def take_failure(self, owner: Owner) -> BaseException | None:
        """The first error that a job of an owner ended with, once."""
        with self._condition:
            place = next((n for n, (whose, _) in enumerate(self._failures) if whose is owner), None)
            return None if place is None else self._failures.pop(place)[1]

    def finish_earlier(self) -> None:
        """A run begins: waits for what earlier ones left in the queue, which must not end this one."""
        self.wait()
        self.report_left()

    def report_left(self) -> None:
        """Warns of each failure whose owner has ended, and will not ask for it."""
        for failure in [failure for failure in tuple(self._failures) if not failure[0].is_alive()]:
            warn(f"a write of an earlier fit() failed: {failure[1]}")
            with self._condition, contextlib.suppress(ValueError):  # another thread has reported it, too
                self._failures.remove(failure)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="kdc-writer")
        try:
            thread.start()
        except RuntimeError as error:
            raise RuntimeError(
                f"no thread can be started to write it ({error}): raise the limit of threads or memory of this process "
                "(ulimit -u, ulimit -v, pids.max of the container)"
            ) from error
        self._thread = thread

    def _work(self) -> None:
        lower_priority()
        job = self._next()
        while job is not None:
            number = job.number
            self._run(job)
            del job  # the snapshot must be released when it counts as done
            self._done = number
            job = self._next()

    def _next(self) -> _Job | None:
        with self._condition:
            self._condition.notify_all()
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            return None

    def _run(self, job: _Job) -> None:
        self._began = time.monotonic()
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001 - surfaces in raise_failure
            error.add_note(f"it was raised while this was written: {job.what}")
            self._failures.append((job.owner, error))
            with contextlib.suppress(Warning):  # where warnings are errors, the next run reports it
                self.report_left()
        finally:
            took = time.monotonic() - self._began
            self._longest, job.owner.longest = max(self._longest, took), max(job.owner.longest, took)


def shared_writer() -> Writer:
    """The queue of this process: backups and artefacts go through the same one."""
    return shared(Writer)


atexit.register(lambda: shared_writer().report_left())  # of a run that ended before it could ask
