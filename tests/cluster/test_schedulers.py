"""TF_CONFIG follows from the environment of Slurm's tasks and of indexed jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.roles import Role
from keras_dist_callbacks.cluster.schedulers import expand_hosts, read_scheduler
from tests.support import ROOT

SLURM = {
    "SLURM_STEP_NODELIST": "n[009-011],a[1-2]b3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1,3,1",
    "SLURM_PROCID": "4",
    "SLURM_JOB_ID": "1234567",
}
INDEXED = {"KDC_WORKER_HOST": "train-worker-0-{index}.train", "KDC_NUM_WORKERS": "3", "JOB_COMPLETION_INDEX": "2"}


def role(scheduler: str, environ: dict[str, str]) -> Role:
    return Role.detect({"TF_CONFIG": read_scheduler(scheduler, environ)})


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("n1", "n1"),
        ("n10,n9,n1", "n10 n9 n1"),
        ("n[009-011],a[1-2]b3", "n009 n010 n011 a1b3 a2b3"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[3,1,07-08]-x", "n3-x n1-x n07-x n08-x"),
        ("r[1-2]c[3-4]", "r1c3 r1c4 r2c3 r2c4"),
        ("gpu-node.cluster.local,b[099-101].x", "gpu-node.cluster.local b099.x b100.x b101.x"),
    ],
)
def test_node_lists_keep_their_order_and_leading_zeros(nodes: str, hosts: str) -> None:
    assert expand_hosts(nodes) == hosts.split()


@pytest.mark.parametrize("nodes", ["", ",", "n1,", "n[1", "n1]", "n[]", "n[a-b]", "n[1-]", "n 1", "n[0-9999999999]"])
def test_what_is_no_node_list_is_an_error(nodes: str) -> None:
    with pytest.raises(ConfigError, match="node"):
        expand_hosts(nodes)


def test_slurm_gives_each_task_its_node_and_a_port_by_its_place_there() -> None:
    found = role("slurm", SLURM)
    assert (found.task_type, found.worker_index) == ("worker", 4)
    assert found.addresses == (
        *("n009:24567", "n009:24568", "n010:24567", "n010:24568", "n011:24567"),
        *("a1b3:24567", "a1b3:24568", "a1b3:24569", "a2b3:24567"),
    )
    assert role("slurm", {**SLURM, "KDC_PORT": "3000"}).addresses[-2] == "a1b3:3002"


def test_another_distribution_of_tasks_is_an_error() -> None:
    assert role("slurm", {**SLURM, "SLURMD_NODENAME": "n011"}).worker_index == 4
    with pytest.raises(ConfigError, match=r"task 4 runs on n010.*it would run on n011: use --distribution=block"):
        role("slurm", {**SLURM, "SLURMD_NODENAME": "n010"})


def test_an_indexed_job_gives_each_pod_its_host() -> None:
    found = role("indexed", INDEXED)
    assert found.worker_index == 2
    assert found.addresses == tuple(f"train-worker-0-{index}.train:2222" for index in range(3))
    assert role("indexed", {**INDEXED, "KDC_PORT": "99"}).addresses[0] == "train-worker-0-0.train:99"


@pytest.mark.parametrize(
    ("scheduler", "change", "message"),
    [
        ("slurm", {"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not set: start the tasks with srun"),
        ("slurm", {"SLURM_PROCID": "9"}, "SLURM_PROCID is 9, but there are only 9"),
        ("slurm", {"SLURM_PROCID": "-1"}, "integer"),
        ("slurm", {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "names 5 nodes, SLURM_STEP_TASKS_PER_NODE 2"),
        ("slurm", {"SLURM_STEP_TASKS_PER_NODE": "2x2"}, "is not a list such as"),
        ("slurm", {"KDC_PORT": "70000"}, "a port from 1 to 65535"),
        ("slurm", {"TF_CONFIG": "{}"}, "TF_CONFIG is set, and so is --cluster slurm"),
        ("indexed", {"KDC_WORKER_HOST": "train"}, "must contain {index}"),
        ("indexed", {"KDC_NUM_WORKERS": "0"}, "1 or more"),
        ("indexed", {"JOB_COMPLETION_INDEX": "3"}, "there are only 3 workers"),
        ("indexed", {"JOB_COMPLETION_INDEX": ""}, "JOB_COMPLETION_INDEX is not set"),
        ("indexed", {"TF_CONFIG": "{}"}, "TF_CONFIG is set"),
        ("pbs", {}, "must be slurm or indexed, got 'pbs'"),
    ],
)
def test_what_is_missing_or_wrong_is_named(scheduler: str, change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_scheduler(scheduler, {**SLURM, **INDEXED, **change})


@pytest.mark.process
@pytest.mark.parametrize("way", ["option", "variable"])
def test_kdc_run_sets_tf_config_before_the_script_runs(tmp_path: Path, way: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['TF_CONFIG'])")
    option = ["--cluster", "indexed"] if way == "option" else []
    env = {**os.environ, **INDEXED, "PYTHONPATH": str(ROOT), **({} if option else {"KDC_CLUSTER": "indexed"})}
    command = [sys.executable, "-m", "keras_dist_callbacks.cli", "run", *option, str(script)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert Role.detect({"TF_CONFIG": ended.stdout}).worker_index == 2
    wrong = subprocess.run(command, env={**env, "KDC_PORT": "x"}, capture_output=True, text=True, timeout=60)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "kdc: KDC_PORT must be an integer of 0 or more, got 'x'\n"
