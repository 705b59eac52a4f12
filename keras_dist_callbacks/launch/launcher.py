"""`kdc launch`: runs the workers of a job on this machine, and starts all of them again when one has failed."""

from __future__ import annotations

import functools
import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from keras_dist_callbacks.base import progress_file
from keras_dist_callbacks.base.errors import RESTART_EXIT_CODE, KdcError
from keras_dist_callbacks.base.progress_file import NO_BACKUP, Phase
from keras_dist_callbacks.base.terminal import write_line
from keras_dist_callbacks.launch import guard
from keras_dist_callbacks.launch.hang_watch import HangWatch
from keras_dist_callbacks.launch.launch_options import LaunchOptions
from keras_dist_callbacks.launch.processes import WorkerProcess, reserve_ports
from keras_dist_callbacks.launch.restart_policy import Decision, RestartPolicy, WorkerEnd, code_after_signal
from keras_dist_callbacks.launch.standby import Standby
from keras_dist_callbacks.launch.worker_output import WorkerOutput
from keras_dist_callbacks.storage import temporary

_CANNOT_START = 2
_CAUSES = 10  # that are named at the end
_TICK_SECONDS = 0.5
_ABORT_SECONDS = 5.0
_UNREPORTED_SECONDS = 60.0  # after which a worker is taken to train, if it reports no step
_POLL_SECONDS = 0.05  # where the system does not report the end of a process


def launch(options: LaunchOptions) -> int:
    """Runs a job until it is done, or cannot be done; returns the exit code."""

    def work() -> int:
        try:
            return Launcher(options, directory).run()
        except KdcError as error:
            _say(str(error))
            return _CANNOT_START

    if options.log_dir is not None:
        Path(options.log_dir).mkdir(parents=True, exist_ok=True)
    with temporary.writing("the pipes to the workers"):
        directory = Path(tempfile.mkdtemp(prefix="kdc-launch-"))
    return guard.run_guarded(work, functools.partial(shutil.rmtree, directory, ignore_errors=True))


@dataclass
class _Worker:
    index: int
    process: WorkerProcess
    env: dict[str, str]
    progress: Path
    watch: HangWatch
    began: float = field(default_factory=time.monotonic)
    hang: str = ""
    kill_at: float | None = None  # once it hangs


@dataclass
class _Attempt:
    """One start of all workers.

    Attributes:
        running: Those that have not ended.
        ends: How the others have, in the order of their ends.
        kill_at: When those that still run are killed; None as long as nothing has failed.
        failed_before_signal: A worker had failed when the job was asked to end.
        ports: Kept from others as long as the run lasts.
        began: When it did, in seconds since 1970.
        ended: When the first worker had; 0 before that.
    """

    running: list[_Worker] = field(default_factory=list)
    ends: list[WorkerEnd] = field(default_factory=list)
    outputs: list[WorkerOutput] = field(default_factory=list)
    kill_at: float | None = None
    failed_before_signal: bool = False
    ports: list[socket.socket] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    ended: float = 0.0

    @property
    def failure(self) -> WorkerEnd | None:
        """The first worker that has failed."""
        return next((end for end in self.ends if end.returncode), None)

    @property
    def newest(self) -> WorkerEnd:
        """The worker that knows of the newest backup: the chief, once it has looked for one."""
        return max(self.ends, key=lambda end: (end.report.backup is not None, end.report.backup or NO_BACKUP))

    @property
    def repeated_steps(self) -> int:
        """How many steps a restart from the newest backup trains again."""
        report = self.newest.report
        fit, first = report.backup or NO_BACKUP
        trained = max(((end.report.fit, end.report.step or 0) for end in self.ends), default=(0, 0))
        return report.unsaved + max(0, trained[1] - first if trained[0] == fit else trained[1])


class Launcher:
    """Runs all workers, and decides what follows when one has ended.

    Args:
        options: What was asked for.
        directory: For pipes and progress files.
    """

    def __init__(self, options: LaunchOptions, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self._policy = RestartPolicy(options.max_restarts, on_error=options.restart_on_error)
        program = options.program if options.standby else None
        self._standby = None if program is None else Standby(program, has_pipe=options.has_output_of_its_own)
        self._selector = selectors.DefaultSelector()  # reports ends in their order
        self._arrived: list[signal.Signals] = []
        self._asked: signal.Signals | None = None  # the signal that ends the job
        self._before: dict[str, str] = {}  # variables that report the attempt before to the next one
        self._stop_at: int | None = None  # what a worker has reported, of the attempts before too
        self._looked_at = time.monotonic()
        self._has_reported_no_progress = False
        self._listen()

    def run(self) -> int:
        """Runs the job; returns the exit code."""
        attempt = 0
        causes: list[str] = []
        while True:
            run = self._run(attempt)
            decision = self._decide(run)
            if decision.delay is None:
                if causes:
                    how = ", ".join(causes)
                    _say(f"ended with code {decision.code} after {attempt + 1} starts; before that by {how}")
                return decision.code
            attempt += 1
            causes = [*causes, run.failure.kind][-_CAUSES:] if run.failure is not None else causes
            step = max((end.report.step or 0 for end in run.ends), default=0)
            before = {"began": run.began, "ended": run.ended, "step": step}
            self._before = {progress_file.BEFORE: json.dumps(before)}
            self._report_restart(run, attempt, decision.delay)
            self._wait(decision.delay)

    def _decide(self, run: _Attempt) -> Decision:
        failure, asked = run.failure, self._asked
        if asked is not None and (failure is None or not run.failed_before_signal):  # a failure follows from the signal
            return self._after_signal(asked, run.ends)
        if failure is None:
            return Decision(None)
        self._stop_at = next((end.report.stop_at for end in run.ends if end.report.stop_at), self._stop_at)
        newest = run.newest.report
        decision = self._policy.decide(failure, newest.backup, self._stop_at, newest.place)
        _say(f"{failure}; {decision.reason}" if decision.reason else str(failure))
        if asked is not None and (decision.delay is not None or asked == signal.SIGINT):
            return self._after_signal(asked, [])
        return decision

    def _after_signal(self, number: signal.Signals, ends: list[WorkerEnd]) -> Decision:
        code = code_after_signal(number, ends)
        meaning = " (asks for a restart)" if code == RESTART_EXIT_CODE else ""
        _say(f"ended after {number.name} with code {code}{meaning}")
        return Decision(None, code)

    # --- one run

    def _run(self, attempt: int) -> _Attempt:
        run = _Attempt()
        try:
            if self._asked is None:
                self._start(run, attempt)
            while run.running:
                self._handle_events(self._patience(run))
                for worker in [worker for worker in run.running if worker.process.end_descriptor is None]:
                    self._collect(run, worker)  # of others, an event has reported the end
                self._pass_signals_on(run)
                self._prepare_spares(run)
                self._look_for_hangs(run)
                now = time.monotonic()
                for worker in run.running:
                    if any(limit is not None and now >= limit for limit in (run.kill_at, worker.kill_at)):
                        worker.process.send(signal.SIGKILL)
        finally:
            for worker in run.running:
                worker.process.end()
            guard.kill_descendants(spared=() if self._standby is None else self._standby.processes)
            for output in run.outputs:
                self._selector.unregister(output.descriptor)
                output.close()
            for port in run.ports:
                port.close()
        return run

    def _start(self, run: _Attempt, attempt: int) -> None:
        count = self._options.workers
        run.ports = reserve_ports(count) if count > 1 else []
        ports = [reserved.getsockname()[1] for reserved in run.ports]
        for index in range(count):
            progress = self._directory / f"progress-{index}"
            with temporary.writing("the pipes to the workers", within=self._directory):
                progress_file.create(progress)
                output = self._output(run, index, attempt)
            env = {**self._options.environment(index, attempt, ports, progress), **self._before}
            process = None if self._standby is None else self._standby.start(index, env, output)
            if process is None:
                end_with_this = functools.partial(guard.end_with, os.getpid())
                process = WorkerProcess(self._options.command, env, output, end_with_this)
            worker = _Worker(index, process, env, progress, HangWatch(self._options.hang_timeout))
            run.running.append(worker)
            if (descriptor := process.end_descriptor) is not None:
                self._selector.register(descriptor, selectors.EVENT_READ, functools.partial(self._collect, run, worker))

    def _prepare_spares(self, run: _Attempt) -> None:
        """Starts the spare of each worker once that trains, so that it does not delay the start."""
        if self._standby is None:
            return
        for worker in [worker for worker in run.running if worker.index not in self._standby]:
            trains = progress_file.read(worker.progress).entries[Phase.STEP] > 0
            if trains or time.monotonic() > worker.began + _UNREPORTED_SECONDS:
                self._standby.prepare(worker.index, worker.env)

    def _output(self, run: _Attempt, index: int, attempt: int) -> Path | None:
        """The pipe that a worker writes to; None for the launcher's own output."""
        options = self._options
        if not options.has_output_of_its_own:
            return None
        log = None if options.log_dir is None else Path(options.log_dir) / f"worker-{index}-run-{attempt}.log"
        prefix = f"[{index}] " if options.workers > 1 else ""
        output = WorkerOutput(self._directory / f"output-{index}", prefix, log)
        run.outputs.append(output)
        self._selector.register(output.descriptor, selectors.EVENT_READ, output.forward)
        return output.path

    def _collect(self, run: _Attempt, worker: _Worker) -> None:
        """A worker has ended, as it seems."""
        descriptor = worker.process.end_descriptor
        code = worker.process.poll()
        if code is None:
            return
        if descriptor is not None:
            self._selector.unregister(descriptor)
        run.running.remove(worker)
        run.ended = run.ended or time.time()
        run.ends.append(WorkerEnd(worker.index, code, progress_file.read(worker.progress), worker.hang))
        if code != 0 and run.running and run.kill_at is None:
            run.kill_at = time.monotonic() + self._options.grace
            for other in run.running:
                other.process.send(signal.SIGTERM)

    def _patience(self, run: _Attempt) -> float:
        """Seconds until there is something to do in any case."""
        if any(worker.process.end_descriptor is None for worker in run.running):
            return _POLL_SECONDS
        left = _TICK_SECONDS if run.kill_at is None else run.kill_at - time.monotonic()
        return max(_POLL_SECONDS, min(_TICK_SECONDS, left))

    def _look_for_hangs(self, run: _Attempt) -> None:
        now = time.monotonic()
        seconds, self._looked_at = min(now - self._looked_at, 2 * _TICK_SECONDS), now
        for worker in run.running if self._options.hang_timeout is not None else ():
            report = progress_file.read(worker.progress)
            limit = worker.watch.look(report, seconds)
            if limit is not None and not worker.hang:
                worker.hang = f"hung {report.phase}, without progress for {limit:.0f} s"
                worker.kill_at = now + _ABORT_SECONDS
                _say(f"worker {worker.index} {worker.hang}: SIGABRT makes it print all stacks")
                worker.process.send(signal.SIGABRT)

    # --- signals

    def _listen(self) -> None:
        """Handles signals in the event loop; those that arrived meanwhile are delivered now."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._wakeup = (ours, theirs)
        self._selector.register(ours, selectors.EVENT_READ, lambda: ours.recv(4096))

        def note(number: int, frame: FrameType | None) -> None:
            self._arrived.append(signal.Signals(number))

        for number in guard.heard():
            signal.signal(number, note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.FORWARDED)

    def _handle_events(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            act: Callable[[], object] = key.data
            act()

    def _pass_signals_on(self, run: _Attempt) -> None:
        while self._arrived:
            number = self._arrived.pop(0)
            is_second = number == signal.SIGINT and self._asked == signal.SIGINT
            if number in guard.ENDING:
                if self._asked is None:
                    self._asked, run.failed_before_signal = number, run.failure is not None
                run.kill_at = run.kill_at or time.monotonic() + self._options.grace
            for worker in run.running:
                worker.process.send(signal.SIGKILL if is_second else number)

    def _wait(self, seconds: float) -> None:
        """Waits until the next start, or until the job is asked to end."""
        until = time.monotonic() + seconds
        nothing = _Attempt()
        while (left := until - time.monotonic()) > 0 and self._asked is None:
            self._handle_events(min(_TICK_SECONDS, left))
            self._pass_signals_on(nothing)

    # --- reports

    def _report_restart(self, run: _Attempt, attempt: int, delay: float) -> None:
        soon = f" in {delay:g} s" if delay else ""
        report = run.newest.report
        if report.backup is None:
            _say(f"attempt {attempt} starts{soon}")
        else:
            start = (
                "from the beginning" if report.backup == NO_BACKUP else f"from the backup of step {report.backup[1]}"
            )
            repeated = "1 step is" if run.repeated_steps == 1 else f"{run.repeated_steps} steps are"
            _say(f"attempt {attempt} starts{soon} {start}; {repeated} repeated")
        if not (report.is_written or self._has_reported_no_progress):
            _say("no worker reported progress (BackupAndRestore and Checkpointer do), so all restarts count")
            self._has_reported_no_progress = True


def _say(text: str) -> None:
    write_line(f"kdc launch: {text}", to_stderr=True)
