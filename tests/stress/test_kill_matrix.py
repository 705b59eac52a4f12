"""Real SIGKILLs of real processes: strategies x data sources x the moments at which a job can die.

Each cell is one chain: the job is killed, restarted, killed again in the same epoch, at the last step of an
epoch, within validation, and between the last save and the end of fit; then it finishes. Its final weights
(every component of every variable on every worker) and its History must be those of a run that was never
interrupted, bit for bit, and no training step may have run twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import assert_same_run, count_calls, read_steps
from keras_dist_callbacks.testing.local_cluster import Attempt, run_until_done
from tests.support import SUPPORT
from tests.support.processes import worker_processes

WORKLOAD = [sys.executable, str(SUPPORT / "workload.py")]
STRATEGIES = {
    "default": ("default", 1),
    "mirrored-2": ("mirrored", 1),
    "multi-worker-2": ("multi_worker", 2),
    "multi-worker-3": ("multi_worker", 3),
}
SOURCES = ("dataset", "shuffled", "infinite", "numpy", "pydataset")
STEPS, EPOCHS = 9, 3

MID_EPOCH = "phase=train_batch_begin,epoch=1,batch=3"
AGAIN = "phase=train_batch_begin,epoch=1,batch=5"
LAST_STEP = "phase=test_batch_end,epoch=1,batch=0"  # the first validation batch after the saved last step
IN_VALIDATION = "phase=test_batch_end,epoch=1,batch=1"
NEXT_EPOCH = "phase=train_batch_begin,epoch=2,batch=0"
BEFORE_THE_END = "phase=train_end"
CHAIN = (MID_EPOCH, AGAIN, LAST_STEP, IN_VALIDATION, NEXT_EPOCH, BEFORE_THE_END)
LR, EARLY = ("--lr-schedule",), ("--early-stopping",)

_baselines: dict[tuple[str, str, tuple[str, ...]], Path] = {}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """The recording of an uninterrupted run, made once."""

    def make(strategy: str, source: str, options: tuple[str, ...]) -> Path:
        key = (strategy, source, options)
        if key not in _baselines:
            directory = tmp_path_factory.mktemp("baseline")
            run(directory, strategy, source, options, kills=())
            _baselines[key] = directory
        return _baselines[key]

    return make


def run(
    directory: Path,
    strategy: str,
    source: str,
    options: Sequence[str],
    kills: Iterable[str],
    save_freq: str = "1",
    *,
    preload: bool = True,
) -> list[Attempt]:
    kind, workers = STRATEGIES[strategy]
    arguments = ["--strategy", kind, "--source", source, *options, "--save-freq", save_freq]
    arguments += ["--record", f"{directory}/run", "--count", f"{directory}/count", "--step-log", f"{directory}/steps"]
    arguments += ["--backup-dir", f"{directory}/backup", "--audit", f"{directory}/audit"]
    extra = [["--kill", f"{kill},worker={workers - 1}"] for kill in kills]
    with worker_processes([*WORKLOAD, *arguments], workers, directory / "logs", grace=3.0, preload=preload) as cluster:
        attempts = run_until_done(cluster, len(extra), 60.0 + 40.0 * len(extra) * workers, extra_args=extra)
        assert attempts[-1].succeeded, cluster.tails()
        assert len(attempts) == len(extra) + 1, "a fault did not strike"
        last_lines = [cluster.log(worker).splitlines() for worker in range(workers)]
    for attempt in attempts[:-1]:
        assert attempt.returncodes[workers - 1] == -9
    if extra:
        restored = {line for lines in last_lines for line in lines if line.startswith("RESTORED ")}
        assert len(restored) == 1, f"the workers restored different backups: {restored}"
        answer, *reasons = restored.pop().split("; ")
        assert answer.endswith(" exact if")  # it counts its steps in Python code
        of_order = [reason for reason in reasons if "enable_op_determinism" in reason]
        assert len(of_order) == (strategy != "default"), reasons  # several replicas
        shuffles = source in ("shuffled", "infinite") or "--shuffled-validation" in options
        of_reads = [reason for reason in reasons if "read before fit() as often" in reason]
        assert bool(of_reads) == (strategy != "default" and shuffles), reasons  # its iterators do not show their seeds
        known = ("count_calls", "PyDataset", "stateless_input", "read before fit() as often")  # with what to do
        known += ("adds in the same order", "enable_op_determinism")
        assert all(any(word in reason for word in known) for reason in reasons), reasons
    return attempts


def assert_same(directory: Path, reference: Path, strategy: str) -> None:
    for worker in range(STRATEGIES[strategy][1]):
        assert_same_run(reference / f"run-worker{worker}", directory / f"run-worker{worker}")


def assert_no_step_repeated(directory: Path, reference: Path, strategy: str) -> None:
    for worker in range(STRATEGIES[strategy][1]):
        ours, theirs = (
            [(s.epoch, s.batch) for s in read_steps(f"{d}/steps-worker{worker}")] for d in (directory, reference)
        )
        assert ours == theirs
    killed = STRATEGIES[strategy][1] - 1  # the others began a step that the killed one never joined
    assert count_calls(f"{directory}/count-worker{killed}") == count_calls(f"{reference}/count-worker{killed}")


def assert_only_the_chief_wrote(directory: Path, strategy: str) -> None:
    for worker in range(STRATEGIES[strategy][1]):
        log = directory / f"audit-worker{worker}"
        assert (log.stat().st_size > 0) == (worker == 0), log.read_text()


def check_cell(
    tmp_path: Path, baseline, strategy: str, source: str, options: tuple[str, ...], kills: Sequence[str], preload: bool
) -> None:  # type: ignore[no-untyped-def]
    reference = baseline(strategy, source, options)
    run(tmp_path, strategy, source, options, kills, preload=preload)
    assert_same(tmp_path, reference, strategy)
    assert_no_step_repeated(tmp_path, reference, strategy)
    assert_only_the_chief_wrote(tmp_path, strategy)


@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "source", "options", "kills"),
    [
        ("default", "infinite", LR, CHAIN),
        ("mirrored-2", "numpy", EARLY, (AGAIN, NEXT_EPOCH, BEFORE_THE_END)),
        ("multi-worker-2", "pydataset", LR, (MID_EPOCH, AGAIN, LAST_STEP)),
        ("multi-worker-3", "dataset", LR, (MID_EPOCH, IN_VALIDATION)),
    ],
)
@pytest.mark.in_gate(1)
def test_a_killed_job_ends_as_if_never_interrupted(
    tmp_path: Path, baseline, strategy: str, source: str, options: tuple[str, ...], kills: Sequence[str]
) -> None:  # type: ignore[no-untyped-def]
    check_cell(tmp_path, baseline, strategy, source, options, kills, preload=True)


@pytest.mark.in_gate(1)
@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("strategy", "source", "options", "kill"),
    [
        ("default", "infinite", LR, AGAIN),
        ("mirrored-2", "numpy", EARLY, MID_EPOCH),
        ("multi-worker-2", "shuffled", EARLY, IN_VALIDATION),
    ],
)
def test_a_job_of_fresh_processes_ends_as_if_never_interrupted(
    tmp_path: Path, baseline, strategy: str, source: str, options: tuple[str, ...], kill: str
) -> None:  # type: ignore[no-untyped-def]
    """Other hash seeds and memory layouts in each process, and others than in the run it is compared with."""
    check_cell(tmp_path, baseline, strategy, source, options, [kill], preload=False)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(300)
def test_a_killed_cluster_that_saves_by_measure_continues_exactly(tmp_path: Path, baseline) -> None:  # type: ignore[no-untyped-def]
    reference = baseline("multi-worker-2", "dataset", LR)
    after_the_first_save = "phase=train_batch_begin,epoch=2,batch=5"
    run(tmp_path, "multi-worker-2", "dataset", LR, [after_the_first_save], save_freq="auto")
    assert_same(tmp_path, reference, "multi-worker-2")
    for worker in range(2):
        steps = [(s.epoch, s.batch) for s in read_steps(f"{tmp_path}/steps-worker{worker}")]
        repeated = {step for step in steps if steps.count(step) > 1}
        assert all(step >= (2, 2) for step in repeated), "it did not go on from the first save, at step 20"


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("strategy", "source", "options"),
    [(strategy, source, LR) for strategy in ("default", "multi-worker-2") for source in SOURCES]
    + [(strategy, source, LR) for strategy in ("mirrored-2", "multi-worker-3") for source in ("shuffled", "pydataset")]
    + [(strategy, "shuffled", EARLY) for strategy in ("default", "multi-worker-3")],
    ids=lambda value: value if isinstance(value, str) else value[0].strip("-"),
)
def test_every_cell_survives_the_complete_chain(
    tmp_path: Path, baseline, strategy: str, source: str, options: tuple[str, ...]
) -> None:  # type: ignore[no-untyped-def]
    check_cell(tmp_path, baseline, strategy, source, options, CHAIN, preload=False)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(600)
def test_a_job_killed_again_and_again_while_it_saves_ends_as_if_never_interrupted(tmp_path: Path, baseline) -> None:  # type: ignore[no-untyped-def]
    """Kills at once, into whatever is being written; steps since the last commit are trained again."""
    reference = baseline("default", "shuffled", LR)
    kills = [
        f"phase=train_batch_end,epoch={e},batch={b},after_commit=false" for e, b in ((0, 4), (1, 2), (1, 7), (2, 8))
    ]
    run(tmp_path, "default", "shuffled", LR, kills, save_freq="2")
    assert_same(tmp_path, reference, "default")


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(600)
def test_the_killed_chief_of_a_cluster_resumes_at_the_last_epoch(tmp_path: Path, baseline) -> None:  # type: ignore[no-untyped-def]
    reference = baseline("multi-worker-2", "shuffled", EARLY)
    kind, workers = STRATEGIES["multi-worker-2"]
    arguments = ["--strategy", kind, "--source", "shuffled", *EARLY, "--record", f"{tmp_path}/run"]
    arguments += ["--backup-dir", f"{tmp_path}/backup", "--save-freq", "epoch", "--count", f"{tmp_path}/count"]
    with worker_processes([*WORKLOAD, *arguments], workers, tmp_path / "logs", grace=3.0, chief=True) as cluster:
        kill = ["--kill", "phase=train_batch_end,epoch=1,batch=4,worker=0"]
        attempts = run_until_done(cluster, 1, 200.0, extra_args=[kill])
        assert attempts[0].returncodes[0] == -9
        assert attempts[-1].succeeded, cluster.tails()
    assert_same(tmp_path, reference, "multi-worker-2")
