"""Processes that are asked to end: all workers save one step together, leave with 138, and lose nothing."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import LocalCluster, read_steps
from keras_dist_callbacks.testing.local_cluster import Attempt, run_until_done
from tests.stress.test_kill_matrix import STRATEGIES, WORKLOAD, assert_only_the_chief_wrote, assert_same
from tests.support.processes import worker_processes

TRAIN, VALIDATION = "phase=train_batch_end,epoch=1,batch=3", "phase=test_batch_end,epoch=1,batch=0"
EPOCH_END, EPOCH_BEGIN, TRAIN_END = "phase=epoch_end,epoch=1", "phase=epoch_begin,epoch=2", "phase=train_end"
PHASES = (TRAIN, VALIDATION, EPOCH_END, EPOCH_BEGIN, TRAIN_END)


GRACE = 25.0


def workload(directory: Path, strategy: str, source: str, *options: str, preload: bool = True) -> LocalCluster:
    kind, workers = STRATEGIES[strategy]
    arguments = ["--strategy", kind, "--source", source, *options, "--record", f"{directory}/run"]
    arguments += ["--backup-dir", f"{directory}/backup", "--audit", f"{directory}/audit"]
    arguments += ["--step-log", f"{directory}/steps"]
    return worker_processes([*WORKLOAD, *arguments], workers, directory / "logs", grace=60.0, preload=preload)


def run(directory: Path, strategy: str, source: str, signals: list[str], *options: str) -> list[Attempt]:
    """A job that gets signals, each once, and is started again; its recordings lie in the directory."""
    workers = STRATEGIES[strategy][1]
    extra = [["--kill", f"{signal},sig=SIGTERM,after_commit=false"] for signal in signals]
    with workload(directory, strategy, source, *options) as cluster:
        attempts = run_until_done(cluster, len(extra), 60.0 + 40.0 * len(extra) * workers, extra_args=extra)
        assert attempts[-1].succeeded, cluster.tails()
    return attempts


def assert_nothing_lost(directory: Path, reference: Path, strategy: str) -> None:
    for worker in range(STRATEGIES[strategy][1]):
        ours, theirs = (
            [(s.epoch, s.batch) for s in read_steps(f"{d}/steps-worker{worker}")] for d in (directory, reference)
        )
        assert ours == theirs, "a step was trained twice, or left out"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    made: dict[tuple[str, str], Path] = {}

    def make(strategy: str, source: str) -> Path:
        if (strategy, source) not in made:
            made[strategy, source] = tmp_path_factory.mktemp("reference")
            run(made[strategy, source], strategy, source, [])
        return made[strategy, source]

    return make


def check(tmp_path: Path, reference, strategy: str, source: str, signals: list[str], *options: str) -> None:  # type: ignore[no-untyped-def]
    expected = reference(strategy, source)
    attempts = run(tmp_path, strategy, source, signals, *options)
    assert len(attempts) == len(signals) + 1, "a signal ended nothing"
    for attempt in attempts[:-1]:
        assert set(attempt.returncodes) == {138}, attempt
    assert_same(tmp_path, expected, strategy)
    assert_nothing_lost(tmp_path, expected, strategy)
    assert_only_the_chief_wrote(tmp_path, strategy)


@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "source", "signals"),
    [
        ("default", "shuffled", [*PHASES]),
        ("mirrored-2", "numpy", [VALIDATION]),
        ("multi-worker-2", "shuffled", [f"{TRAIN},worker=1", f"{VALIDATION},worker=0", f"{TRAIN_END},worker=1"]),
        ("multi-worker-3", "dataset", [f"{EPOCH_END},worker=2"]),
    ],
)
@pytest.mark.in_gate(1)
def test_a_preempted_job_saves_leaves_and_loses_nothing(
    tmp_path: Path,
    reference,
    strategy: str,
    source: str,
    signals: list[str],  # type: ignore[no-untyped-def]
) -> None:
    check(tmp_path, reference, strategy, source, signals)


def steps_of(directory: Path, worker: int) -> int:
    path = Path(f"{directory}/steps-worker{worker}")
    return len(read_steps(path)) if path.exists() else 0


def strike(cluster: LocalCluster, directory: Path, draw: random.Random, workers: int) -> tuple[int, str]:
    """SIGTERM to one worker: within its start, or within or between some steps later."""
    victim = draw.randrange(workers)
    steps = draw.choice([None, *range(27), *range(27)])
    cluster.start()
    if steps is None:
        delay = draw.uniform(0.0, 4.0)
    else:
        delay = draw.uniform(0.0, 0.05)
        while steps_of(directory, victim) < steps and cluster.poll()[victim] is None:
            time.sleep(0.002)
    time.sleep(delay)
    cluster.kill(victim, signal.SIGTERM)
    return victim, f"worker {victim}, {'the start' if steps is None else f'{steps} steps'} and {delay:.3f} s"


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(24))
def test_a_signal_at_any_instant_loses_no_step(tmp_path: Path, reference, seed: int) -> None:  # type: ignore[no-untyped-def]
    draw = random.Random(seed)  # noqa: S311 - nothing to do with security
    strategy = list(STRATEGIES)[seed % len(STRATEGIES)]
    workers = STRATEGIES[strategy][1]
    expected = reference(strategy, "shuffled")
    with workload(tmp_path, strategy, "shuffled") as cluster:
        victim, where = strike(cluster, tmp_path, draw, workers)
        struck = time.monotonic()
        codes = cluster.wait(GRACE + 90.0)
        seconds = time.monotonic() - struck
        print(f"{strategy}, {where}: {codes} after {seconds:.1f} s and {steps_of(tmp_path, victim)} steps")
        assert codes[victim] in {138, 0, -signal.SIGTERM}, cluster.tails()
        if codes[victim] == 138:
            assert set(codes) == {138}, cluster.tails()
            assert seconds < GRACE
        if codes[victim] == -signal.SIGTERM:  # before fit, or after it
            assert seconds < 5.0 or workers > 1
            assert steps_of(tmp_path, victim) in {0, 27}
            if steps_of(tmp_path, victim) == 27:
                return
        if any(codes):
            cluster.start()
            assert cluster.wait(120.0) == [0] * workers, cluster.tails()
    assert_same(tmp_path, expected, strategy)
    assert_nothing_lost(tmp_path, expected, strategy)
