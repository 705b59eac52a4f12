"""TF_CONFIG and what follows from it: the addresses of all workers, and which of the workers this process is."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from msgspec import Meta

from keras_dist_callbacks import terminal
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.validation import Count

_T = TypeVar("_T")
_TRAINING_TASKS = ("chief", "worker")
_DROPPED_TASKS = ("ps", "evaluator")
_INDEX = re.compile(r"[0-9]{1,5}")
_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[^\s/\\:,@\[\]\"'\x00-\x1f]+")
_Task = Annotated[str, Meta(pattern=r"\A(chief|worker|evaluator)\Z", description="'chief', 'worker' or 'evaluator'")]
_Index = Annotated[int, Meta(ge=-1, le=2**63 - 1, description="a whole number of -1 or more, below 2**63")]
_Addresses = Annotated[tuple[str, ...], Meta(description="a tuple of host:port")]


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair; an IPv6 address without its brackets.

    Raises:
        ConfigError: It is not of that form; the message says why.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not _PORT.fullmatch(port):
        raise _malformed(address)
    if not 0 < int(port) < 65536:
        raise _malformed(address, "; a port is a number from 1 to 65535")
    if "://" in address:
        raise _malformed(address, f"; leave {address.partition('://')[0]}:// out")
    if any(character.isspace() for character in address):
        raise _malformed(address, "; there is a space in it")
    if host[0] == "[" and host[-1] == "]":
        return _version_6(host[1:-1], address), int(port)
    if ":" in host:
        raise _malformed(address, "; an IPv6 address stands in brackets, such as [::1]:2222")
    if not _HOST.fullmatch(host):
        raise _malformed(address)
    return host, int(port)


def tf_config(addresses: Sequence[str], index: int, *, has_chief: bool = False) -> str:
    """The TF_CONFIG of one training worker.

    Args:
        addresses: `host:port` of all workers.
        index: Which of them it is.
        has_chief: Whether the first one has the role `chief` instead of `worker` 0.
    """
    chiefs, workers = list(addresses[:has_chief]), list(addresses[has_chief:])
    job, place = ("chief", 0) if index < len(chiefs) else ("worker", index - len(chiefs))
    cluster = {"chief": chiefs, "worker": workers} if chiefs else {"worker": workers}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": place}})


def check_addresses(named: Sequence[tuple[str, str]]) -> None:
    """Checks the addresses of all training workers.

    Args:
        named: Where each stands in TF_CONFIG, and the address.

    Raises:
        ConfigError: One is malformed, or two are the same; the message names them.
    """
    seen: dict[tuple[str, int], str] = {}
    for name, address in named:
        host, port = split_address(address)
        first = seen.setdefault((_same(host), port), name)
        if first != name:
            raise ConfigError(
                f"TF_CONFIG: {first} and {name} have the same address {address!r}; each worker needs an address of "
                "its own, and a chief is not listed as a worker too"
            )


def _version_6(host: str, address: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise _malformed(address, f"; {host!r} is not an IPv6 address") from None
    return host


def _same(host: str) -> str:
    return str(ipaddress.IPv6Address(host)) if ":" in host else host.lower()


def _malformed(address: str, why: str = "") -> ConfigError:
    return ConfigError(f"TF_CONFIG: {address!r} is not an address of the form host:port{why}")


@dataclass(frozen=True)
class Role:
    """The place of this process in its cluster.

    Attributes:
        task_type: `"chief"`, `"worker"` or `"evaluator"`; `"worker"` without TF_CONFIG.
        task_id: The index within the task type.
        worker_index: The place among all training workers, the chief at 0; -1 for an evaluator.
        addresses: `host:port` of all training workers, the chief first; empty without TF_CONFIG.
    """

    task_type: _Task = "worker"
    task_id: Count = 0
    worker_index: _Index = 0
    addresses: _Addresses = ()

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Reads TF_CONFIG.

        Args:
            environ: Where to look. Defaults to `os.environ`.

        Raises:
            ConfigError: TF_CONFIG is malformed; the message names the field.
        """
        text = (os.environ if environ is None else environ).get("TF_CONFIG", "").strip()
        return cls(*_parse(text)) if text else cls()

    @property
    def num_workers(self) -> int:
        """Number of training workers, the chief included; at least 1."""
        return max(1, len(self.addresses))

    @property
    def workers_on_host(self) -> int:
        """Number of training workers whose address names the same host as this one's, itself included."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        return max(1, hosts.count(hosts[self.worker_index])) if hosts else 1

    @property
    def is_evaluator(self) -> bool:
        """Whether this process only evaluates."""
        return self.task_type == "evaluator"

    @property
    def is_chief(self) -> bool:
        """Whether this process writes backups and checkpoints: the first training worker."""
        return self.worker_index == 0

    @property
    def name(self) -> str:
        """How messages call this process, such as `worker 1`."""
        return self.task_type if self.is_evaluator or self.task_type == "chief" else f"worker {self.worker_index}"

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The addresses of each training job, as TensorFlow wants them."""
        has_chief = self.task_type == "chief" or self.worker_index != self.task_id
        if not has_chief:
            return {"worker": list(self.addresses)}
        return {"chief": [self.addresses[0]], "worker": list(self.addresses[1:])}


def _parse(text: str) -> tuple[str, int, int, tuple[str, ...]]:
    """The fields of a `Role`, in their order."""
    try:
        config = json.loads(text)
    except RecursionError:
        raise ConfigError("TF_CONFIG is not valid: brackets within brackets, too deep to be read") from None
    except ValueError as error:
        raise ConfigError(f"TF_CONFIG is not valid JSON: {error}") from error
    spec = _field(config, "cluster", dict, "TF_CONFIG") if "cluster" in _mapping(config) else {}
    task = _field(config, "task", dict, "TF_CONFIG") if "task" in config or spec else {}
    if not spec and not task:
        return "worker", 0, 0, ()
    task_type = _field(task, "type", str, "TF_CONFIG['task']")
    index = _index(task)
    if task_type == "master":
        task_type = "chief"
    if "master" in spec:
        spec = {("chief" if job == "master" else job): hosts for job, hosts in spec.items()}
    _check_jobs(spec, task_type)
    chiefs, workers = list(spec.get("chief", [])), list(spec.get("worker", []))
    if len(chiefs) > 1:
        raise ConfigError(f"TF_CONFIG['cluster']['chief'] names {len(chiefs)} addresses; there can be one chief")
    addresses = tuple(chiefs + workers)
    check_addresses([(f"{job} {i}", host) for job in _TRAINING_TASKS for i, host in enumerate(spec.get(job, []))])
    if task_type == "evaluator":
        return "evaluator", index, -1, addresses
    count = len(spec.get(task_type, []))
    if index >= count:
        raise ConfigError(
            f"TF_CONFIG['task']['index'] is {index}, but TF_CONFIG['cluster'][{task_type!r}] names {count} address(es)"
        )
    return task_type, index, index + (len(chiefs) if task_type == "worker" else 0), addresses


def _check_jobs(spec: dict[str, Any], task_type: str) -> None:
    known = (*_TRAINING_TASKS, *_DROPPED_TASKS)
    for job, hosts in spec.items():
        if job not in known:
            raise ConfigError(f"TF_CONFIG['cluster'] has the unknown job {job!r}; known ones are {', '.join(known)}")
        if not isinstance(hosts, list) or not all(isinstance(h, str) for h in hosts):
            raise ConfigError(f"TF_CONFIG['cluster'][{job!r}] must be a list of 'host:port' strings, got {hosts!r}")
    if task_type == "ps":
        raise ConfigError("TF_CONFIG['task']['type'] is 'ps'; parameter servers do not work with Keras 3's fit()")
    if task_type not in known:
        raise ConfigError(f"TF_CONFIG['task']['type'] is {task_type!r}; known ones are {', '.join(known)}")


def _index(task: dict[str, Any]) -> int:
    index = task.get("index", 0)
    if isinstance(index, str) and _INDEX.fullmatch(index):
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ConfigError(f"TF_CONFIG['task']['index'] must be an integer of 0 or more, got {task.get('index')!r}")
    return index


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"TF_CONFIG must be a JSON object, got {type(value).__name__}")
    return value


def _field(mapping: Any, name: str, kind: type[_T], where: str) -> _T:
    value = _mapping(mapping).get(name)
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a string"
        raise ConfigError(f"{where}[{name!r}] must be {wanted}, got {value!r}")
    return value


def _prints() -> bool:
    """Whether lines of this process are printed: not those of training workers other than the chief."""
    try:
        role = Role.detect()
    except ConfigError:  # reported where the cluster is needed
        return True
    return role.is_chief or role.is_evaluator


terminal.print_only_if(_prints)
