"""The manifests are valid, agree with themselves, and do what they say under a scheduler that is not real.

None of them was run on a real cluster.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import keras_dist_callbacks as kdc
from keras_dist_callbacks.cluster.roles import Role
from keras_dist_callbacks.cluster.schedulers import read_scheduler
from keras_dist_callbacks.launch.processes import free_ports
from tests.support import ROOT
from tests.support.manifests import validate

KUBERNETES = ROOT / "examples" / "kubernetes"
SBATCH = ROOT / "examples" / "slurm" / "train.sbatch"
LEAST_GRACE = kdc.ShutdownOptions().grace_period + 20


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def job_set(name: str) -> dict[str, Any]:
    """The specification of the JobSet that a manifest leads to."""
    found = documents(name)[0]["spec"]
    spec: dict[str, Any] = found["template"]["spec"] if "template" in found else found
    return spec


def job_manifest(name: str) -> dict[str, Any]:
    """The specification of the Job that runs the workers."""
    found = documents(name)[1] if name == "indexed-job.yaml" else job_set(name)["replicatedJobs"][0]["template"]
    spec: dict[str, Any] = found["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    """The worker's container, with what a TrainJob adds."""
    found = dict(job_manifest(name)["template"]["spec"]["containers"][0])
    return {**found, **documents(name)[1]["spec"]["trainer"]} if name == "trainjob.yaml" else found


def environment(name: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(name)["env"] if "value" in each}


NAMES = sorted(path.name for path in KUBERNETES.iterdir())


def test_there_are_the_three_that_the_documentation_names() -> None:
    assert NAMES == ["indexed-job.yaml", "jobset.yaml", "trainjob.yaml"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:kubernetes_validate", "ignore::DeprecationWarning:jsonschema")
@pytest.mark.parametrize("name", NAMES)
def test_each_field_is_known(name: str) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job_manifest(name)}
    for document in [*documents(name), job]:
        validate(document)
        with pytest.raises((AssertionError, kubernetes_validate.ValidationError)):
            validate({**document, "unknown": 1})
    job["spec"] = copy.deepcopy(job["spec"])
    job["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(job)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_names_agree(name: str) -> None:
    spec, env = job_manifest(name), environment(name)
    count = int(env["KDC_NUM_WORKERS"])
    assert spec["completions"] == spec["parallelism"] == count
    assert spec["completionMode"] == "Indexed"
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= LEAST_GRACE
    fail = next(rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "FailJob")["onExitCodes"]
    assert (fail["operator"], fail["values"]) == ("NotIn", [137, 138, 143])
    assert fail["containerName"] == spec["template"]["spec"]["containers"][0]["name"]
    hosts = [env["KDC_WORKER_HOST"].replace("{index}", str(index)) for index in range(count)]
    assert hosts == list(expected_hosts(name, count))
    if name != "indexed-job.yaml":
        policy = job_set(name)["failurePolicy"]
        assert policy["restartStrategy"] == "BlockingRecreate"
        assert policy["rules"][0]["action"] == "FailJobSet"
        assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]


def expected_hosts(name: str, count: int) -> Iterator[str]:
    """The host names that Kubernetes gives to the pods."""
    found = documents(name)
    for index in range(count):
        if name == "indexed-job.yaml":
            service, own = found[0], found[1]
            assert service["spec"]["clusterIP"] == "None"
            assert service["spec"]["publishNotReadyAddresses"] is True
            assert own["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
            yield f"{own['metadata']['name']}-{index}.{service['metadata']['name']}"
        else:
            spec, owner = job_set(name), found[-1]["metadata"]["name"]
            yield f"{owner}-{spec['replicatedJobs'][0]['name']}-0-{index}.{spec['network']['subdomain']}"


def test_vertex_restarts_all_workers() -> None:
    job = yaml.safe_load((ROOT / "examples" / "vertex" / "job.yaml").read_text())
    assert job["scheduling"]["restartJobOnWorkerRestart"] is True
    assert [pool["replicaCount"] for pool in job["workerPoolSpecs"]] == [1, 3]
    assert "AIP_CHECKPOINT_DIR" in (ROOT / "examples" / "multi_worker.py").read_text()


# --- a scheduler that is not real

# A worker that meets the others, loses one if that is planned, and exits as `kdc run` lets a training exit.
STUB = """
import os, socket, sys, time
from pathlib import Path
from keras_dist_callbacks.cluster.roles import Role, split_address
from keras_dist_callbacks.base.errors import PeerLostError
role = Role.detect()
attempt = len(list(Path().glob(f"start-{role.worker_index}-*")))
Path(f"start-{role.worker_index}-{attempt}").write_text(" ".join([*role.addresses, *sys.argv[1:]]))
server = socket.create_server(split_address(role.addresses[role.worker_index]))
def meet(address):
    for _ in range(2000):
        try:
            return socket.create_connection(split_address(address))
        except OSError:
            time.sleep(0.01)
    raise TimeoutError(address)
others = [meet(address) for address in role.addresses]
ours = [server.accept()[0] for _ in role.addresses]
fault = os.environ.get(f"FAULT_{role.worker_index}_{attempt}")
if fault:
    exec(fault)
for end in ours:  # all say that they are done, and nobody is lost
    end.sendall(b"x")
for other in others:
    if other.recv(1) != b"x":
        raise PeerLostError("another worker is gone")
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the stub, and `kdc`, `srun` and `scontrol` on the path."""
    (tmp_path / "multi_worker.py").write_text(STUB)
    (tmp_path / "bin").mkdir()
    homes = {
        "kdc": "keras_dist_callbacks.cli",
        "srun": "tests.support.fake_srun",
        "scontrol": "tests.support.fake_srun",
    }
    for name, home in homes.items():
        file = tmp_path / "bin" / name
        file.write_text(f"#!{sys.executable}\nimport sys\nfrom {home} import main\nsys.exit(main())\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started_workers(place: Path) -> list[str]:
    return sorted(path.name.removeprefix("start-") for path in place.glob("start-*"))


def run_batch(place: Path, env: dict[str, str]) -> tuple[int, int]:
    """Submits the batch script, and runs it again as often as it asks for that: the last code, and how often it ran."""
    for run in range(6):
        slurm = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(run), "KDC_RUN": "the-run", **env}
        ended = subprocess.run(["bash", str(SBATCH)], env={**os.environ, **slurm}, timeout=120)
        if not (place / "requeued").exists():
            return ended.returncode, run + 1
        (place / "requeued").unlink()
    raise AssertionError("it is requeued forever")


@pytest.mark.in_gate(1)
@pytest.mark.kill
@pytest.mark.parametrize(
    ("faults", "code", "runs"),
    [
        ({}, 0, 1),
        ({"FAULT_1_0": "os.kill(os.getpid(), 9)", "FAULT_2_1": "os.kill(os.getpid(), 15)"}, 0, 3),
        ({"FAULT_0_0": "sys.exit(138)"}, 0, 2),
        ({"FAULT_0_0": "raise SystemExit(1)", "FAULT_1_0": "sys.exit(1)", "FAULT_2_0": "sys.exit(1)"}, 1, 1),
    ],
)
def test_the_batch_script_requeues_the_job(workplace: Path, faults: dict[str, str], code: int, runs: int) -> None:
    port = free_ports(1)[0]
    nodes = {"FAKE_NODES": "127.0.0.[8-9]", "FAKE_TASKS_PER_NODE": "2,1", "KDC_PORT": str(port)}
    assert run_batch(workplace, {**faults, **nodes}) == (code, runs)
    assert started_workers(workplace) == sorted(f"{worker}-{run}" for worker in range(3) for run in range(runs))
    expected = f"127.0.0.8:{port} 127.0.0.8:{port + 1} 127.0.0.9:{port} --backup the-run/backup"
    assert (workplace / "start-2-0").read_text().startswith(expected)


def test_the_batch_scripts_numbers_are_large_enough() -> None:
    text = SBATCH.read_text()
    assert int(re.findall(r"--signal=TERM@([0-9]+)", text)[0]) >= LEAST_GRACE
    assert all(f"#SBATCH --{option}" in text for option in ("requeue", "open-mode=append"))


def run_pods(name: str, env: dict[str, str], port: int) -> list[subprocess.Popen[bytes]]:
    """Starts the pods of a manifest, on addresses of the loopback interface instead of its host names."""
    wanted = container(name)
    given = {**environment(name), **env, "KDC_PORT": str(port)}
    pods = []
    for index in range(int(given["KDC_NUM_WORKERS"])):
        own = {**given, "JOB_COMPLETION_INDEX": str(index)}
        assert Role.detect({"TF_CONFIG": read_scheduler("indexed", own)}).worker_index == index
        local = {**os.environ, **own, "KDC_WORKER_HOST": "127.0.0.2{index}"}
        pods.append(subprocess.Popen([*wanted["command"], *wanted["args"]], env=local))
    return pods


def job_result(name: str, pods: list[subprocess.Popen[bytes]]) -> str:
    """What a Job controller makes of its pods: complete, failed, or failed by the pod failure policy."""
    permanent = next(rule for rule in job_manifest(name)["podFailurePolicy"]["rules"] if rule["action"] == "FailJob")
    while None in (codes := [pod.poll() for pod in pods]) and not any(codes):
        time.sleep(0.02)
    for pod in pods:
        pod.terminate()  # as when the Job is deleted
    has_failed = any(codes)
    ended = [pod.wait(60) for pod in pods]
    if not has_failed:
        return "complete"
    shell = [code if code >= 0 else 128 - code for code in ended if code]
    return "failed" if all(code in permanent["onExitCodes"]["values"] for code in shell) else "PodFailurePolicy"


@pytest.mark.in_gate(1)
@pytest.mark.kill
@pytest.mark.parametrize("name", ["jobset.yaml", "trainjob.yaml"])
def test_a_jobset_recreates_all_workers_unless_the_error_would_come_again(workplace: Path, name: str) -> None:
    faults = {"FAULT_1_0": "os.kill(os.getpid(), 9)", "FAULT_3_1": "sys.exit(138)"}
    faults |= {f"FAULT_{worker}_3": "sys.exit(1)" for worker in range(4)}  # an error of the script comes in all of them
    results = [job_result(name, run_pods(name, faults, free_ports(1)[0])) for _ in range(4)]
    assert results == ["failed", "failed", "complete", "PodFailurePolicy"]
    assert job_set(name)["failurePolicy"]["rules"][0]["onJobFailureReasons"] == results[-1:]
