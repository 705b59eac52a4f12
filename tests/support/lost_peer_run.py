"""One worker is lost, the others end, all are started again: `python -m tests.support.lost_peer_run --workers 2`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from keras_dist_callbacks.launch.processes import WorkerProcess, free_ports
from keras_dist_callbacks.testing import LocalCluster
from tests.support import ROOT, SUPPORT
from tests.support.networks import Network, reason_against
from tests.support.processes import worker_processes

FAULTS = ("kill", "freeze", "raise", "exit", "partition", "lone start")
PHASES = ("start-up", "train", "validation", "save", "end")
PEER_TIMEOUT = 30.0
STARTUP_TIMEOUT = 15.0
SLACK = 10.0
COMMAND = [sys.executable, str(SUPPORT / "lost_peer_job.py")]
# what `LocalCluster` sets, in which the job continues: other kernels and numbers of threads would round otherwise
_AS_THE_OTHERS = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_NUM_INTEROP_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "1"}
_RUN_SECONDS = 180.0
_PORT = 12345


@dataclass(frozen=True)
class Case:
    """Which worker is lost, how and when."""

    workers: int
    chief: bool
    fault: str
    phase: str
    loop: bool = False  # with Checkpointer, instead of fit()

    @property
    def who(self) -> int:
        """The lost worker; of a lone start, the one that is there."""
        return 0 if self.chief else self.workers - 1

    @property
    def limit(self) -> float:
        """Seconds within which all others are to end."""
        return (STARTUP_TIMEOUT if self.fault == "lone start" else PEER_TIMEOUT) + SLACK

    def __str__(self) -> str:
        where = f"{self.phase} of a loop" if self.loop else self.phase
        return f"{self.workers} workers, {'chief' if self.chief else 'worker'}, {self.fault}, {where}"


@dataclass(frozen=True)
class Row:
    """What came of a case; worker by worker where there are several."""

    seconds: float
    codes: list[int | None]
    logs: list[str]
    resumed_at: int = 0
    identical: bool = False

    def __str__(self) -> str:
        end = "identical" if self.identical else "DIFFERS"
        return f"{self.seconds:.1f} s, exit codes {self.codes}, resumed at step {self.resumed_at}, {end}"


def cases() -> list[Case]:
    """The complete table of two workers; of three, a worker's faults in training, and a kill of the chief in each.

    A lone start has no phase but one.
    """
    every = [Case(*parts) for parts in itertools.product((2, 3), (True, False), FAULTS, PHASES)]
    fits = [case for case in every if case.phase == "start-up" or case.fault != "lone start"]
    of_three = [c for c in fits if c.workers == 3 and (c.fault == "kill" if c.chief else c.phase == "train")]
    fits = [case for case in fits if case.workers == 2] + of_three
    loops = itertools.product((2,), (True, False), ("kill", "raise"), ("train", "save"), (True,))
    return fits + [Case(*parts) for parts in loops]


def run(case: Case, directory: Path) -> Row:
    """Loses a worker, waits for the others, and starts the job again."""
    lost = lose(case, directory)
    at = _finished([*_command(case), str(directory / "job")], case.workers, directory / "again")
    identical = _weights(directory / "job") == _uninterrupted(case.workers, case.loop)
    return dataclasses.replace(lost, resumed_at=at, identical=identical)


def lose(case: Case, directory: Path) -> Row:
    """Loses a worker, and waits for the others."""
    faulty = [
        *_command(case),
        str(directory / "job"),
        "--who",
        str(case.who),
        "--fault",
        case.fault,
        "--phase",
        case.phase,
    ]
    (directory / "job").mkdir()
    with _started(case, faulty, directory) as (processes, logs):
        seconds = _until_others_end(case, processes, directory / "job")
        codes = [process.poll() for process in processes]
    texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs]
    return Row(seconds, codes, texts)


def _command(case: Case) -> list[str]:
    return [*COMMAND, *(["--loop"] if case.loop else [])]


@functools.cache
def _uninterrupted(workers: int, loop: bool) -> list[bytes]:
    """The weights of a run without a loss."""
    with tempfile.TemporaryDirectory(prefix="kdc-whole-") as directory:
        _finished([*COMMAND, directory, *(["--loop"] if loop else [])], workers, Path(directory, "logs"))
        return _weights(Path(directory))


class _Polled(Protocol):
    def poll(self) -> int | None: ...


class _Worker:
    """One process of a cluster."""

    def __init__(self, cluster: LocalCluster, index: int) -> None:
        self._cluster, self._index = cluster, index

    def poll(self) -> int | None:
        return self._cluster.poll()[self._index]


@contextlib.contextmanager
def _started(case: Case, command: list[str], directory: Path) -> Iterator[tuple[Sequence[_Polled], list[Path]]]:
    if case.fault not in ("partition", "lone start"):
        with worker_processes(command, case.workers, directory / "logs") as cluster:
            cluster.start()
            yield (
                [_Worker(cluster, worker) for worker in range(case.workers)],
                [cluster.log_path(worker) for worker in range(case.workers)],
            )
        return
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(case.workers)) if case.fault == "partition" else None
        if network is None:
            addresses = [f"127.0.0.1:{port}" for port in free_ports(case.workers)]
        else:
            addresses = [f"{address}:{_PORT}" for address in network.addresses]
        started, logs = [], []
        for worker in range(case.workers) if network is not None else [case.who]:
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
            env = {**os.environ, **_AS_THE_OTHERS, "PYTHONPATH": str(ROOT), "TF_CONFIG": json.dumps(task)}
            logs.append(directory / f"worker-{worker}.log")
            started.append(WorkerProcess(network.command(worker, command) if network else command, env, logs[-1]))
            stack.callback(started[-1].end)
        if network is not None:
            _cut_when_asked(network, case.who, directory / "job", started)
        yield started, logs


def _cut_when_asked(network: Network, host: int, directory: Path, processes: Sequence[_Polled]) -> None:
    _until(lambda: (directory / "cut").exists() or None not in [process.poll() for process in processes])
    network.cut(host)
    (directory / "is-cut").touch()


def _until_others_end(case: Case, processes: Sequence[_Polled], directory: Path) -> float:
    """Seconds from the loss until the last of the others had ended; a partition has no others."""
    began = time.time()
    waits = [p for worker, p in enumerate(processes) if worker != case.who or case.fault in ("partition", "lone start")]
    if case.fault == "lone start":
        waits = list(processes)
    _until(lambda: None not in [process.poll() for process in waits])
    ended = time.time()
    if case.fault == "raise":
        _until(lambda: None not in [process.poll() for process in processes])
    noted = directory / "lost-at"
    return ended - (float(noted.read_text(encoding="utf-8")) if noted.exists() else began)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _RUN_SECONDS
    while not done():
        if time.monotonic() > deadline:
            return  # what still runs has no exit code
        time.sleep(0.05)


def _finished(command: list[str], workers: int, logs: Path) -> int:
    """Runs to the end; the step that it was resumed at."""
    with worker_processes(command, workers, logs) as cluster:
        cluster.start()
        codes = cluster.wait(_RUN_SECONDS)
        if any(codes):
            raise AssertionError(f"exit codes {codes}\n{cluster.tails()}")
        found = re.search(r"^resumed at (\d+)$", cluster.log(0), re.MULTILINE)
        assert found is not None
        return int(found[1])


def _weights(directory: Path) -> list[bytes]:
    with np.load(directory / "final.npz") as arrays:
        return [arrays[name].tobytes() for name in arrays.files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, choices=(2, 3))
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--phase", choices=PHASES)
    parser.add_argument("--loop", action="store_true", help="only those with Checkpointer")
    parser.add_argument("--verbose", action="store_true", help="the ends of the logs too")
    args = parser.parse_args()
    against = reason_against()
    for case in cases():
        wanted = args.workers in (None, case.workers) and args.fault in (None, case.fault)
        if not wanted or args.phase not in (None, case.phase) or case.loop != args.loop:
            continue
        if case.fault == "partition" and against:
            print(f"{case}: skipped, {against}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="kdc-lost-") as directory:
            try:
                row = run(case, Path(directory))
            except AssertionError as error:
                print(f"{case}: FAILED {error}", flush=True)
                continue
            print(f"{case}: {row}", flush=True)
            for log in row.logs:
                told = re.findall(r"^\S*(?:PeerLostError|ClusterTimeoutError): .*$", log, re.MULTILINE)
                print("   ", (told or [line for line in log.splitlines() if line][-1:] or [""])[-1][:240], flush=True)
                if args.verbose:
                    print(log[-3000:])


if __name__ == "__main__":
    main()
