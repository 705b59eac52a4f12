"""What one worker alone does, or was given, never leaves the others hanging."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import read_steps
from tests.support import SUPPORT
from tests.support.one_worker_alone import SLOW_SECONDS, STEPS
from tests.support.processes import worker_processes

SECONDS = 120.0
PEER_TIMEOUT = 30.0
LOST = {
    "kill": "has ended: its port is closed|sends no heartbeats|does not answer",
    "freeze": "sends no heartbeats|does not answer",
    "leave": "has ended: its port is closed|sends no heartbeats|does not answer",
    "raise": "reported that it ended with ValueError: a bug of one worker",
}


def run(directory: Path, workers: int, *options: str, grace: float = 60.0) -> tuple[list[int | None], list[str], float]:
    """Exit codes and logs of all workers, and the seconds that it took."""
    command = [sys.executable, str(SUPPORT / "one_worker_alone.py"), str(directory), *options]
    with worker_processes(command, workers, directory / "logs", grace=grace) as cluster:
        began = time.monotonic()
        cluster.start()
        codes = list(cluster.wait(SECONDS))
        return codes, [cluster.log(worker) for worker in range(workers)], time.monotonic() - began


def trained(directory: Path, worker: int) -> list[tuple[int, int]]:
    return [(step.epoch, step.batch) for step in read_steps(f"{directory}/steps-worker{worker}")]


def steps_until(epoch: int, batch: int) -> list[tuple[int, int]]:
    every = [(e, b) for e in range(4) for b in range(STEPS)]
    return every[: every.index((epoch, batch)) + 1]


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("workers", "who"), [(2, 1), (2, -1), (3, 0)])
def test_stop_training_in_an_epoch_on_one_worker_stops_all_at_the_same_step(
    tmp_path: Path, workers: int, who: int
) -> None:
    codes, logs, _ = run(tmp_path, workers, "--who", str(who), "--does", "batch")
    assert codes == [0] * workers, logs
    stops = [trained(tmp_path, worker) for worker in range(workers)]
    assert all(steps == stops[0] for steps in stops)
    # where all stop by themselves, they stop where they would without this package
    assert stops[0] in ([steps_until(1, 2)] if who == -1 else [steps_until(1, 2), steps_until(1, 3)])


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize("who", [0, -1])
def test_stop_training_at_the_end_of_an_epoch_on_one_worker_stops_all_there(tmp_path: Path, who: int) -> None:
    codes, logs, _ = run(tmp_path, 2, "--who", str(who), "--does", "epoch")
    assert codes == [0, 0], logs
    for worker in range(2):
        assert trained(tmp_path, worker) == steps_until(1, STEPS - 1)


@pytest.mark.in_gate(2)
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("directory", ["the backup directory", "backup on worker 0", "elsewhere on worker 1"]),
        ("save_freq", ["save_freq: 'epoch' on worker 0; 2 on worker 1"]),
        ("rows", ["the number of batches: 6 on worker 0; 5 on worker 1"]),
        ("checkpoint", ["BackupAndRestore on worker 0; BackupAndRestore, ModelCheckpoint on worker 1"]),
    ],
)
def test_workers_that_disagree_get_an_error_at_the_start(tmp_path: Path, does: str, words: list[str]) -> None:
    codes, logs, _ = run(tmp_path, 2, "--does", does)
    assert codes == [1, 1], logs
    for log in logs:
        assert "ConfigError: the workers disagree about" in log
        assert all(word in log for word in words), log
    assert trained(tmp_path, 0) == trained(tmp_path, 1) == []


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize("write_on", ["chief", "all"])
def test_workers_write_files_of_their_own_only_if_asked_to(tmp_path: Path, write_on: str) -> None:
    codes, logs, _ = run(tmp_path, 2, "--write-on", write_on)
    assert codes == [0, 0], logs
    written = [sorted(p.name for p in (tmp_path / f"worker{worker}").glob("*.keras")) for worker in range(2)]
    events = [len(list((tmp_path / f"worker{worker}" / "logs").rglob("events*"))) > 0 for worker in range(2)]
    every = [f"{epoch}.keras" for epoch in range(1, 5)]
    told = re.findall(r"^worker 1 does not write for (\w+): only the chief does, to (\S+)\. .*$", logs[1], re.MULTILINE)
    assert "does not write" not in logs[0]
    if write_on == "all":
        assert written == [every, every]
        assert events == [True, True]
        assert told == []
    else:
        assert written == [every, []]
        assert events == [True, False]
        chiefs = [("ModelCheckpoint", "{epoch}.keras"), ("TensorBoard", "logs")]
        assert sorted(told) == [(name, f"{tmp_path}/worker0/{path}") for name, path in chiefs]
        assert f"With write_on='all' this worker writes too, to {tmp_path}/worker1/logs" in logs[1]


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_workers_that_would_all_write_to_one_path_get_an_error_at_the_start(tmp_path: Path) -> None:
    codes, logs, _ = run(tmp_path, 2, "--write-on", "all", "--who", "-1", "--does", "same path")
    assert codes == [1, 1], logs
    for log in logs:
        assert "TensorBoard(write_on='all'): workers 0, 1 would all write to" in log
    assert trained(tmp_path, 0) == trained(tmp_path, 1) == []


def check_loss(directory: Path, workers: int, who: int, does: str) -> None:
    codes, logs, _ = run(directory, workers, "--who", str(who), "--does", does, grace=PEER_TIMEOUT + 10.0)
    name = "the chief" if who == 0 else f"worker {who}"
    for worker in set(range(workers)) - {who}:
        assert codes[worker] == 138, logs[worker]  # killed by the cluster it would be -9
        told = re.search(r"^\S*PeerLostError: (.*)$", logs[worker], re.MULTILINE)
        assert told is not None, logs[worker]
        assert re.search(rf"{name} \(\S+\) (?:{LOST[does]})", told[1]), told[1]
    if who != 0:
        assert re.search(r"the newest backup in \S+ is at the end of epoch 1 \(step 6\)", logs[0])
    if does == "raise":
        assert codes[who] == 1


@pytest.mark.in_gate(1)
@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("workers", "who", "does"), [(2, 1, "kill"), (3, 0, "raise")])
def test_a_lost_worker_is_named_and_the_others_end_with_138(tmp_path: Path, workers: int, who: int, does: str) -> None:
    check_loss(tmp_path, workers, who, does)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_an_exception_that_ends_all_workers_at_one_step_is_saved(tmp_path: Path) -> None:
    codes, logs, _ = run(tmp_path, 2, "--who", "-1", "--does", "raise")
    assert codes == [1, 1], logs
    assert all("ValueError: a bug of one worker" in log and "PeerLostError" not in log for log in logs), logs
    where = rf"the newest backup in \S+ is at epoch 2, batch 3 \(step {STEPS + 3}\); a restart loses no step"
    assert re.search(where, logs[0])
    codes, logs, _ = run(tmp_path, 2)
    assert codes == [0, 0], logs
    assert f"resumed at step {STEPS + 3}" in logs[0]


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize("who", [0, 1])
def test_a_worker_that_lives_but_is_slow_is_never_lost(tmp_path: Path, who: int) -> None:
    codes, logs, seconds = run(tmp_path, 2, "--who", str(who), "--does", "slow")
    assert codes == [0, 0], logs
    assert seconds > SLOW_SECONDS


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_tensorflows_own_way_to_join_a_cluster_works(tmp_path: Path) -> None:
    codes, logs, _ = run(tmp_path, 2, "--own-strategy")
    assert codes == [0, 0], logs


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_strategy_that_is_made_too_late_is_refused_with_what_to_do(tmp_path: Path) -> None:
    codes, logs, _ = run(tmp_path, 2, "--who", "-1", "--does", "too late")
    assert codes == [1, 1], logs
    assert all("make_strategy() was called too late" in log and "Call it first" in log for log in logs)
