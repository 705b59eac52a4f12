"""The harness that everything else is proven with: does it kill, wait, clean up and compare as it says?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.base.errors import ClusterError, ClusterTimeoutError, ConfigError
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.launch.processes import free_ports, is_free
from keras_dist_callbacks.testing import LocalCluster, Step, count_calls, read_steps, run_until_done
from tests.support import SUPPORT
from tests.support.launching import is_alive, wait_for
from tests.support.processes import worker_processes

WORKLOAD = SUPPORT / "workload.py"
INDEX = "import json, os; i = json.loads(os.environ.get('TF_CONFIG', '{\"task\": {\"index\": 0}}'))['task']['index']\n"
SLEEP = "import time; print('up', flush=True); time.sleep(300)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", INDEX + code]


# --- LocalCluster


@pytest.mark.process
def test_workers_know_each_other_and_have_a_log_each(tmp_path: Path) -> None:
    code = "import sys; print(os.environ['TF_CONFIG']); print('to stderr', file=sys.stderr)"
    with LocalCluster(python(code), 3, tmp_path / "logs") as cluster:
        cluster.start()
        assert cluster.wait(30) == [0, 0, 0]
        for index in range(3):
            found = Cluster.detect({"TF_CONFIG": cluster.log(index).splitlines()[0]})
            assert (found.task_type, found.worker_index, found.num_workers) == ("worker", index, 3)
            assert found.addresses == tuple(f"127.0.0.1:{port}" for port in cluster.ports)
            assert "to stderr" in (tmp_path / "logs" / f"worker-{index}-run-0.log").read_text()


@pytest.mark.process
def test_the_first_worker_can_be_called_chief(tmp_path: Path) -> None:
    with LocalCluster(python("print(os.environ['TF_CONFIG'])"), 3, tmp_path, chief=True) as cluster:
        cluster.start()
        assert cluster.wait(30) == [0, 0, 0]
        found = [Cluster.detect({"TF_CONFIG": cluster.log(index).splitlines()[0]}) for index in range(3)]
    assert [(f.task_type, f.task_id, f.worker_index) for f in found] == [
        ("chief", 0, 0),
        ("worker", 0, 1),
        ("worker", 1, 2),
    ]


@pytest.mark.process
def test_one_worker_gets_no_tf_config_not_even_an_inherited_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    code = "print(os.environ.get('TF_CONFIG'), os.environ['MINE'], os.environ['CUDA_VISIBLE_DEVICES'])"
    with LocalCluster(python(code), 1, tmp_path, env={"MINE": "yes"}) as cluster:
        cluster.start()
        assert cluster.wait(30) == [0]
        assert cluster.log(0).split() == ["None", "yes", "-1"]


@pytest.mark.kill
def test_a_killed_worker_ends_the_others_within_the_grace(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    with LocalCluster(python(stubborn), 2, tmp_path, grace=0.5) as cluster:
        cluster.start()
        wait_for(lambda: "up" in cluster.log(0) and "up" in cluster.log(1))
        began = time.monotonic()
        cluster.kill(1)
        assert cluster.wait(60) == [-signal.SIGKILL, -signal.SIGKILL]
        assert 0.4 < time.monotonic() - began < 10
        assert "another worker had failed" in cluster.log(0)
        assert "local cluster" not in cluster.log(1)
        cluster.kill(1)  # it is gone: nothing happens


@pytest.mark.kill
def test_the_grace_is_enough_to_end_by_oneself(tmp_path: Path) -> None:
    code = "import sys, time; time.sleep(0.5 * i); sys.exit(3 if i == 0 else 138)"
    with LocalCluster(python(code), 2, tmp_path) as cluster:
        cluster.start()
        assert cluster.wait(30) == [3, 138]


@pytest.mark.kill
def test_other_signals_reach_the_worker_alone(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n" + SLEEP
    with LocalCluster(python(code), 1, tmp_path) as cluster:
        cluster.start()
        wait_for(lambda: "up" in cluster.log(0))
        cluster.kill(0, signal.SIGTERM)
        assert cluster.wait(30) == [5]


@pytest.mark.kill
def test_waiting_is_bounded_names_who_ran_and_shows_the_logs(tmp_path: Path) -> None:
    with LocalCluster(python(SLEEP + " if i else print('done')"), 2, tmp_path) as cluster:
        cluster.start()
        pid = cluster.pid(1)
        wait_for(lambda: cluster.poll()[0] == 0 and "up" in cluster.log(1))
        ticks: list[int] = []
        with pytest.raises(ClusterTimeoutError, match=r"(?s)^worker 1 still ran after 0.3 s.*up") as caught:
            cluster.wait(0.3, on_tick=lambda: ticks.append(1))
        assert ticks
        assert "worker 0" not in str(caught.value).split("\n")[0]
        assert not is_alive(pid)
        assert cluster.poll() == [0, -signal.SIGKILL]


@pytest.mark.kill
@pytest.mark.parametrize("how", ["killed", "ended", "closed"])
def test_what_a_worker_has_started_dies_with_it(tmp_path: Path, how: str) -> None:
    child = tmp_path / "child"
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
with open({str(child) + ".tmp"!r}, "w") as file: file.write(str(child.pid))
os.rename({str(child) + ".tmp"!r}, {str(child)!r})
if {how != "ended"}: time.sleep(300)
"""
    with LocalCluster(python(code), 1, tmp_path) as cluster:
        cluster.start()
        wait_for(child.exists)
        if how == "killed":
            cluster.kill(0)
        if how != "closed":
            cluster.wait(20)
    wait_for(lambda: not is_alive(int(child.read_text())))


@pytest.mark.kill
@pytest.mark.parametrize(
    "ending", ["pass", "raise SystemExit(1)", "del cluster; import gc; gc.collect(); time.sleep(300)"]
)
def test_a_forgotten_cluster_is_cleaned_up(tmp_path: Path, ending: str) -> None:
    code = f"""
import sys, time
from keras_dist_callbacks.testing import LocalCluster
cluster = LocalCluster([sys.executable, "-c", "import time; time.sleep(300)"], 2, {str(tmp_path)!r})
cluster.start()
print(cluster.pid(0), cluster.pid(1), flush=True)
{ending}
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(text) for text in owner.stdout.readline().split()]
        assert len(pids) == 2
        wait_for(lambda: not any(map(is_alive, pids)))
        owner.kill()


@pytest.mark.kill
def test_restarting_keeps_the_addresses_and_the_old_logs(tmp_path: Path) -> None:
    with LocalCluster(python("import sys; print(sys.argv[1:])\n" + SLEEP), 2, tmp_path) as cluster:
        cluster.start()
        wait_for(lambda: "up" in cluster.log(0) and "up" in cluster.log(1))
        ports, pids = list(cluster.ports), [cluster.pid(0), cluster.pid(1)]
        with pytest.raises(ClusterError, match="are still running"):
            cluster.start()
        cluster.restart(["--more"])
        assert not any(map(is_alive, pids))
        wait_for(lambda: "up" in cluster.log(1))
        assert cluster.ports == ports
        assert "[]" in cluster.log(1, run=0)
        assert "['--more']" in cluster.log(1)


@pytest.mark.process
def test_an_occupied_address_is_replaced(tmp_path: Path) -> None:
    import socket

    with LocalCluster(python("pass"), 2, tmp_path) as cluster:
        cluster.start()
        cluster.wait(30)
        before = list(cluster.ports)
        with socket.create_server(("127.0.0.1", before[0])):
            cluster.restart()
            cluster.wait(30)
        assert before[0] not in cluster.ports


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(map(is_free, ports))


@pytest.mark.parametrize(
    ("command", "workers", "message"),
    [("train.py", 2, "must be a list"), ([], 2, "must be a list"), (["x"], 0, "1 or more")],
)
def test_wrong_arguments_of_a_cluster(tmp_path: Path, command: Any, workers: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalCluster(command, workers, tmp_path)


@pytest.mark.process
def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with LocalCluster(["no-such-program"], 1, tmp_path) as cluster:
        with pytest.raises(ConfigError, match="no-such-program"):
            cluster.start()
        with pytest.raises(ConfigError, match="worker 0 does not exist; 0 were started"):
            cluster.kill(0)


@pytest.mark.kill
def test_run_until_done_restarts_everything_until_it_is(tmp_path: Path) -> None:
    code = "import sys, signal\nif i == 1 and sys.argv[1:]: os.kill(os.getpid(), int(sys.argv[1]))"
    with LocalCluster(python(code), 2, tmp_path) as cluster:
        attempts = run_until_done(cluster, max_restarts=5, timeout=60, extra_args=[["9"], ["15"]])
    assert [attempt.returncodes for attempt in attempts] == [(0, -9), (0, -15), (0, 0)]
    assert [attempt.succeeded for attempt in attempts] == [False, False, True]
    assert [attempt.run for attempt in attempts] == [0, 1, 2]


@pytest.mark.kill
def test_run_until_done_gives_up(tmp_path: Path) -> None:
    with LocalCluster(python("raise SystemExit(1)"), 1, tmp_path) as cluster:
        attempts = run_until_done(cluster, max_restarts=2, timeout=60)
        assert [attempt.returncodes for attempt in attempts] == [(1,), (1,), (1,)]
    with LocalCluster(python(SLEEP), 1, tmp_path) as cluster, pytest.raises(ClusterTimeoutError, match="worker 0"):
        run_until_done(cluster, max_restarts=2, timeout=0.5)


# --- the pytest plugin


@pytest.mark.process
def test_the_plugin_imports_next_to_nothing_before_a_test_asks_for_a_cluster() -> None:
    """pytest loads it in every environment that has the package; `local_cluster` costs a tenth of a second."""
    name = "keras_dist_callbacks"
    code = f"""
import sys, pytest
known = {{*sys.modules}}
import {name}.testing.plugin
print(*sorted({{*sys.modules}} - known))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = ["", ".base", ".base.lazy", ".testing", ".testing.plugin"]
    assert result.stdout.split() == [f"{name}{module}" for module in loaded]


@pytest.mark.process
def test_the_plugin_cleans_up_and_does_not_import_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import sys
from pathlib import Path

def test_it(local_cluster):
    cluster = local_cluster([sys.executable, "-c", "import time; print('hello', flush=True); time.sleep(300)"], 2)
    cluster.start()
    Path("pids").write_text(f"{cluster.pid(0)} {cluster.pid(1)}")
    while "hello" not in cluster.log(0): pass
    assert "tensorflow" not in sys.modules and "keras" not in sys.modules
    assert False, "on purpose"
"""
    )
    plugin = ["-p", "keras_dist_callbacks.testing.plugin", "-p", "no:cacheprovider"]
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "AssertionError: on purpose" in outcome.stdout, outcome.stdout + outcome.stderr
    assert "1 failed" in outcome.stdout
    assert "hello" in outcome.stdout.partition("teardown")[2]
    assert not any(is_alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


# --- faults in real training


def workload(tmp_path: Path, *args: str) -> list[str]:
    paths = ["--count", str(tmp_path / "count"), "--step-log", str(tmp_path / "steps")]
    return [sys.executable, str(WORKLOAD), "--no-backup", "--epochs", "2", *paths, *args]


@pytest.mark.kill
def test_a_kill_strikes_exactly_where_it_was_requested(tmp_path: Path) -> None:
    with worker_processes(workload(tmp_path), 1, tmp_path) as cluster:
        cluster.start(["--kill", "phase=train_batch_begin,epoch=1,batch=4"])
        assert cluster.wait(120) == [-signal.SIGKILL], cluster.log(0)
        assert "KillAt: worker 0 gets SIGKILL at train_batch_begin of epoch 1, batch 4" in cluster.log(0)
        steps = read_steps(tmp_path / "steps-worker0")
        assert [step[1:] for step in steps] == [(0, b) for b in range(9)] + [(1, b) for b in range(4)]
        assert {step.pid for step in steps} == {cluster.pid(0)}
        assert count_calls(tmp_path / "count-worker0") == 13
        cluster.restart()
        assert cluster.wait(120) == [0], cluster.log(0)
        assert count_calls(tmp_path / "count-worker0") == 13 + 18
        assert read_steps(tmp_path / "steps-worker0")[-1] == Step(cluster.pid(0), 1, 8)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.cluster
def test_a_kill_in_validation_of_one_worker_ends_the_other_one(tmp_path: Path) -> None:
    kill = ["--kill", "phase=test_batch_end,epoch=0,batch=1,worker=1"]
    command = workload(tmp_path, "--strategy", "multi_worker", *kill)
    with worker_processes(command, 2, tmp_path, chief=True) as cluster:
        cluster.start()
        codes = cluster.wait(120)
        assert codes[1] == -signal.SIGKILL, cluster.tails()
        assert codes[0] != 0
        assert "KillAt: worker 1 gets SIGKILL at test_batch_end of epoch 0, batch 1" in cluster.log(1)
        assert "KillAt" not in cluster.log(0)
    assert [count_calls(tmp_path / f"count-worker{i}") for i in range(2)] == [9, 9]


@pytest.mark.kill
def test_replicas_of_one_process_count_a_step_once(tmp_path: Path) -> None:
    command = workload(tmp_path, "--strategy", "mirrored", "--record", str(tmp_path / "run"))
    with worker_processes(command, 1, tmp_path) as cluster:
        cluster.start()
        assert cluster.wait(120) == [0], cluster.log(0)
    assert count_calls(tmp_path / "count-worker0") == 18
    assert len((tmp_path / "count-worker0").read_bytes()) == 36
    recorded = json.loads((tmp_path / "run-worker0.json").read_text())
    assert "accuracy/total#0@1" in recorded["variables"]
    assert recorded["epochs"] == [0, 1]


def test_reading_counts_of_nothing_and_of_something_else(tmp_path: Path) -> None:
    assert count_calls(tmp_path / "none") == 0
    assert read_steps(tmp_path / "none") == []
    (tmp_path / "log").write_text("1 0 0\nfoo\n")
    with pytest.raises(ConfigError, match="line 2: 'foo'"):
        read_steps(tmp_path / "log")
