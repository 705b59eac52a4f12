"""TF_CONFIG from what a scheduler puts into the environment of each task.

TensorFlow's own resolvers sort host names as texts, ask an API server, or need GPUs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.roles import tf_config

SCHEDULERS = ("slurm", "indexed")
_PART = re.compile(r"(?:[^,\[\]\s]|\[[0-9,-]+\])+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_TASKS = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
_LARGEST_PORT = 65535
_LARGEST_COUNT = 100_000


def read_scheduler(scheduler: str, environ: Mapping[str, str]) -> str:
    """The TF_CONFIG of this task.

    Args:
        scheduler: One of `SCHEDULERS`.
        environ: The task's environment.

    Raises:
        ConfigError: A variable is missing or wrong, or TF_CONFIG is set already.
    """
    if environ.get("TF_CONFIG", "").strip():
        raise ConfigError(f"TF_CONFIG is set, and so is --cluster {scheduler}: one of them would be ignored; unset one")
    if scheduler == "slurm":
        return _slurm(environ)
    if scheduler == "indexed":
        return _indexed(environ)
    raise ConfigError(f"--cluster must be {' or '.join(SCHEDULERS)}, got {scheduler!r}")


def expand_hosts(nodes: str) -> list[str]:
    """The names in a node list of Slurm, such as `n[009-011],a[1-2]b3`, in its order.

    Raises:
        ConfigError: It is not a node list.
    """
    parts = _PART.findall(nodes)
    if not parts or ",".join(parts) != nodes:
        raise ConfigError(f"{nodes!r} is not a node list such as n[009-011],a1")
    found = []
    for part in parts:
        pieces = re.split(r"\[(.*?)\]", part)
        choices = [_numbers(piece, nodes) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        found += ["".join(chosen) for chosen in itertools.product(*choices)]
    return found


def slurm_job_end(environ: Mapping[str, str]) -> float | None:
    """Returns when Slurm is going to end this job, in seconds since 1970; None where it does not say that.

    Args:
        environ: The environment of the job, or of one of its tasks.
    """
    text = environ.get("SLURM_JOB_END_TIME", "").strip()
    return float(text) if re.fullmatch("0*[1-9][0-9]{0,11}", text) else None


def _numbers(ranges: str, nodes: str) -> list[str]:
    found = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ConfigError(f"{nodes!r} is not a node list: [{ranges}] is not a list of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= _LARGEST_COUNT:
            raise ConfigError(f"{nodes!r} names too many nodes")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found


def _slurm(environ: Mapping[str, str]) -> str:
    hint = "start the tasks with srun"
    nodes = expand_hosts(_variable(environ, "SLURM_STEP_NODELIST", hint))
    tasks = _tasks_per_node(_variable(environ, "SLURM_STEP_TASKS_PER_NODE", hint))
    if len(nodes) != len(tasks):
        raise ConfigError(f"SLURM_STEP_NODELIST names {len(nodes)} nodes, SLURM_STEP_TASKS_PER_NODE {len(tasks)}")
    base = 20_000 + _number(environ, "SLURM_JOB_ID", hint) % 10_000 if "KDC_PORT" not in environ else _port(environ)
    places = [(node, task) for node, count in zip(nodes, tasks, strict=True) for task in range(count)]
    rank = _number(environ, "SLURM_PROCID", hint)
    _check_index("SLURM_PROCID", rank, places)
    here = environ.get("SLURMD_NODENAME", "")
    if here and places[rank][0] != here:
        raise ConfigError(
            f"task {rank} runs on {here}, but with tasks placed in blocks it would run on {places[rank][0]}: "
            "use --distribution=block"
        )
    return tf_config([f"{node}:{base + task}" for node, task in places], rank)


def _indexed(environ: Mapping[str, str]) -> str:
    hint = "see examples/kubernetes"
    host = _variable(environ, "KDC_WORKER_HOST", hint)
    count = _number(environ, "KDC_NUM_WORKERS", hint)
    if not 0 < count <= _LARGEST_COUNT:
        raise ConfigError(f"KDC_NUM_WORKERS must be a number of workers of 1 or more, got {count}")
    if "{index}" not in host and count > 1:
        raise ConfigError(
            f"KDC_WORKER_HOST must contain {{index}}, such as train-worker-0-{{index}}.train, got {host!r}"
        )
    port = _port(environ) if "KDC_PORT" in environ else 2222
    addresses = [f"{host.replace('{index}', str(index))}:{port}" for index in range(count)]
    index = _number(environ, "JOB_COMPLETION_INDEX", hint)
    _check_index("JOB_COMPLETION_INDEX", index, addresses)
    return tf_config(addresses, index)


def _tasks_per_node(text: str) -> list[int]:
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None or int(match[2] or 1) > _LARGEST_COUNT:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not a list such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _check_index(name: str, index: int, places: Sequence[object]) -> None:
    if index >= len(places):
        raise ConfigError(f"{name} is {index}, but there are only {len(places)} workers")


def _port(environ: Mapping[str, str]) -> int:
    port = _number(environ, "KDC_PORT", "")
    if not 0 < port <= _LARGEST_PORT:
        raise ConfigError(f"KDC_PORT must be a port from 1 to {_LARGEST_PORT}, got {port}")
    return port


def _number(environ: Mapping[str, str], name: str, hint: str) -> int:
    text = _variable(environ, name, hint)
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ConfigError(f"{name} must be an integer of 0 or more, got {text!r}")
    return int(text)


def _variable(environ: Mapping[str, str], name: str, hint: str) -> str:
    text = environ.get(name, "").strip()
    if not text:
        raise ConfigError(f"{name} is not set: {hint}")
    return text
