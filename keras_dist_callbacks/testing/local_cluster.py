"""A cluster of real processes on this machine, which cannot hang and ends with its user."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import keras_dist_callbacks
import keras_dist_callbacks.testing
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ClusterError, ClusterTimeoutError, ConfigError
from keras_dist_callbacks.cluster.roles import tf_config
from keras_dist_callbacks.launch.processes import LOOPBACK, free_ports, is_free
from keras_dist_callbacks.testing.fork_servers import Process, start_process

_POLL_SECONDS = 0.05
_TAIL_LINES = 30
_WORKERS = validation.number_of("workers", 1, 1000)
# Everything whose import takes a worker time. Names of this package load lazily, so their modules are listed.
PRELOADED = (
    "tensorflow",
    "keras",
    "sklearn.datasets",  # where small trainings take their data
    *sorted({*keras_dist_callbacks._HOME.values(), *keras_dist_callbacks.testing._HOME.values()}),
)
WORKER_ENV = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
}


class LocalCluster:
    """Runs one command in several processes that know each other through TF_CONFIG.

    Each process has its own session and log file, `log_dir/worker-<i>-run-<k>.log`. As in a real cluster,
    all are restarted together, on the same addresses. Leaving the `with` block kills whatever still runs.

    Args:
        command: Program and arguments of every worker, such as `[sys.executable, "train.py"]`.
        num_workers: Number of training processes. With 1 there is no TF_CONFIG.
        log_dir: Directory of the logs; made if it does not exist.
        env: Environment variables added to this process' own; they win over the defaults, which keep
            TensorFlow on the CPU, quiet and on few threads.
        chief: Whether the first worker has the role `chief` in TF_CONFIG instead of `worker` 0.
        grace: Seconds that the other workers have to end by themselves after one has failed.
        preload: Whether workers are forked from a fork server that has imported TensorFlow, Keras and this package
            once, which saves each of them the seconds of these imports. They find and train what fresh ones do, and
            end with the same codes and output. Linux and CPU only, and only commands
            `[sys.executable, "script.py", ...]` and `[sys.executable, "-m", "module", ...]`; all others start fresh.
            There is one fork server for each environment that is read at import, and `start` waits for a new one.
            What differs from a fresh worker: environment variables that the program itself sets before it imports
            TensorFlow come too late to be read by the import, a module next to the program that has the name of a
            preloaded one is not seen, workers share Python's hash seed, what imports print is in no log, and
            `__del__` of objects that live at the end is not called.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        command: Sequence[str],
        num_workers: int,
        log_dir: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        chief: bool = False,
        *,
        grace: float = 30.0,
        preload: bool = False,
    ) -> None:
        self.num_workers = validation.check("num_workers", num_workers, _WORKERS)
        self.log_dir = Path(validation.path("log_dir", log_dir))
        self.grace = validation.check("grace", grace, validation.SecondsFromZero, default=30.0)
        self.run = -1
        self.ports: list[int] = []
        self._command = _words("command", command)
        self._env = _variables(env)
        self._has_chief = validation.check("chief", chief, bool)
        self._preload = validation.check("preload", preload, bool)
        self._workers: list[Process] = []

    def start(self, extra_args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        """Starts all workers.

        Args:
            extra_args: Appended to the command, in this run only.
            env: Added to the environment, in this run only.

        Raises:
            ClusterError: Workers of an earlier run are still there; see `restart`.
            ConfigError: The program cannot be started, or an argument is wrong.
        """
        if None in self.poll():
            raise ClusterError(f"the workers of run {self.run} are still running; call wait() or restart()")
        more, added = _words("extra_args", extra_args, least=0), _variables(env)
        self.run += 1
        self.log_dir.mkdir(parents=True, exist_ok=True)
        if not self.ports or not all(map(is_free, self.ports)):
            self.ports = free_ports(self.num_workers)
        self._workers = []
        try:
            for index in range(self.num_workers):
                self._workers.append(
                    start_process(
                        [*self._command, *more],
                        self._environment(index, added),
                        self.log_path(index),
                        PRELOADED if self._preload else (),
                    )
                )
        except BaseException:
            self.close()
            raise

    def restart(self, extra_args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        """Kills what still runs and starts all workers again, on the same addresses if they are free."""
        self.close()
        self.start(extra_args, env)

    def poll(self) -> list[int | None]:
        """Returns each worker's return code, negative for a signal; None while it runs."""
        return [worker.poll() for worker in self._workers]

    def pid(self, index: int) -> int:
        """Returns the process id of worker `index`."""
        return self._worker(index).pid

    def kill(self, index: int, sig: int = signal.SIGKILL) -> None:
        """Sends a signal to worker `index`; nothing happens if it has ended."""
        number = validation.parse_signal("sig", sig)
        self._worker(index).send(number)

    def wait(self, timeout: float, on_tick: Callable[[], None] | None = None) -> list[int]:
        """Waits until every worker has ended.

        When one ends with a signal or a code other than 0, the others get `grace` seconds, then SIGKILL.

        Args:
            timeout: Seconds; afterwards everything is killed.
            on_tick: Called about 20 times a second, to show progress.

        Returns:
            The return codes, negative for a signal.

        Raises:
            ClusterTimeoutError: Workers were still running; the message names them and shows their logs.
            ConfigError: An argument is wrong.
        """
        timeout = validation.check("timeout", timeout, validation.SecondsFromZero)
        deadline = time.monotonic() + timeout
        grace_ends: float | None = None
        while None in (codes := self.poll()):
            now = time.monotonic()
            if any(codes) and grace_ends is None:
                grace_ends = now + self.grace
            if grace_ends is not None and now > grace_ends:
                self._end_running(f"killed: it did not exit within {self.grace:g} s after another worker had failed")
            elif now > deadline:
                raise self._timed_out(codes, timeout)
            if on_tick is not None:
                on_tick()
            time.sleep(_POLL_SECONDS)
        return [code for code in codes if code is not None]

    def log_path(self, index: int, run: int | None = None) -> Path:
        """Returns the log file of worker `index`; of the latest run by default."""
        return self.log_dir / f"worker-{index}-run-{self.run if run is None else run}.log"

    def log(self, index: int, run: int | None = None) -> str:
        """Returns what worker `index` has printed, standard error included; of the latest run by default."""
        path = self.log_path(index, run)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def tails(self, lines: int = _TAIL_LINES) -> str:
        """Returns the last lines of every worker's latest log, with headings, for error messages."""
        parts = []
        for index in range(self.num_workers):
            tail = "\n".join(self.log(index).splitlines()[-lines:])
            parts.append(f"--- {self.log_path(index)}\n{tail}")
        return "\n".join(parts)

    def close(self) -> None:
        """Kills the process groups of all workers that still run; harmless if none does."""
        self._end_running("killed by the local cluster at its end")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _worker(self, index: int) -> Process:
        if not validation.check("index", index, validation.Count) < len(self._workers):
            raise ConfigError(f"index={index}: worker {index} does not exist; {len(self._workers)} were started")
        return self._workers[index]

    def _end_running(self, note: str) -> None:
        for worker in self._workers:
            worker.end(note)

    def _timed_out(self, codes: list[int | None], timeout: float) -> ClusterTimeoutError:
        running = ", ".join(f"worker {i}" for i, code in enumerate(codes) if code is None)
        self._end_running(f"killed: still running after {timeout:g} s")
        return ClusterTimeoutError(f"{running} still ran after {timeout:g} s and were killed\n{self.tails()}")

    def _environment(self, index: int, extra: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        env = {**inherited, **WORKER_ENV, **self._env, **extra}
        if self.num_workers > 1:
            addresses = [f"{LOOPBACK}:{port}" for port in self.ports]
            env["TF_CONFIG"] = tf_config(addresses, index, has_chief=self._has_chief)
        return env


def _words(name: str, given: Any, least: int = 1) -> list[str]:
    example = "[sys.executable, 'train.py']" if least else "['--epochs', '3']"
    if not isinstance(given, list | tuple) or len(given) < least:
        raise validation.invalid_argument(name, given, f"a list such as {example}")
    if not all(isinstance(part, str | os.PathLike) and "\0" not in str(part) for part in given):
        raise validation.invalid_argument(name, given, f"a list of str such as {example}")
    return [str(part) for part in given]


def _variables(env: Any) -> dict[str, str]:
    """Environment variables; their values are in no message."""
    found = validation.mapping("env", env)
    for name, value in found.items():
        if not isinstance(value, str) or "\0" in name + value or "=" in name or not name:
            raise ConfigError(f"env[{name!r}] must be a str, under a name without '=', got a {type(value).__name__}")
    return found


def _attempts(given: Any) -> list[list[str]]:
    if not isinstance(given, list | tuple):
        raise validation.invalid_argument("extra_args", given, "a list with a list of arguments for each attempt")
    return [_words("extra_args", words, least=0) for words in given]


@dataclass(frozen=True)
class Attempt:
    """One run of all workers.

    Attributes:
        run: Which run of the cluster it was; part of the log files' names.
        returncodes: One per worker, negative for a signal.
        seconds: How long it took.
    """

    run: int
    returncodes: tuple[int, ...]
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether every worker ended with 0."""
        return not any(self.returncodes)


def run_until_done(
    cluster: LocalCluster,
    max_restarts: int,
    timeout: float,
    *,
    extra_args: Sequence[Sequence[str]] = (),
    on_tick: Callable[[], None] | None = None,
) -> list[Attempt]:
    """Runs a cluster and restarts all its workers whenever one has failed.

    Args:
        cluster: A cluster of which nothing runs.
        max_restarts: How often it is started again.
        timeout: Seconds for everything together.
        extra_args: Arguments appended to the command in the first attempt, in the second and so on; none
            in those after them. A fault belongs here, so that it does not strike again.
        on_tick: Called about 20 times a second, to show progress.

    Returns:
        All attempts; the last one has succeeded unless the restarts were used up.

    Raises:
        ClusterTimeoutError: It was not done in time; everything was killed.
        ConfigError: An argument is wrong.
    """
    validation.instance("cluster", cluster, LocalCluster)
    max_restarts = validation.check("max_restarts", max_restarts, validation.Count)
    timeout = validation.check("timeout", timeout, validation.Seconds)
    faults = _attempts(extra_args)
    if on_tick is not None:
        validation.function("on_tick", on_tick, "a function, or None")
    deadline = time.monotonic() + timeout
    attempts: list[Attempt] = []
    for number in range(max_restarts + 1):
        began = time.monotonic()
        cluster.restart(faults[number] if number < len(faults) else ())
        codes = cluster.wait(max(0.0, deadline - began), on_tick)
        attempts.append(Attempt(cluster.run, tuple(codes), time.monotonic() - began))
        if attempts[-1].succeeded:
            break
    return attempts
