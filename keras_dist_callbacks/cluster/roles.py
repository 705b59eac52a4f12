"""TF_CONFIG and what follows from it: the addresses of all workers, and which of the workers this process is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from keras_dist_callbacks.base import terminal, validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.validation import Count

_HOST = re.compile(r"[^\s/\\,@\"'\x00-\x1f]+")
_Task = Annotated[str, Meta(pattern=r"\A(chief|worker|evaluator)\Z", description="'chief', 'worker' or 'evaluator'")]
_Index = Annotated[int, Meta(ge=-1, le=2**63 - 1, description="an integer of -1 or more, below 2**63")]
_Addresses = Annotated[tuple[str, ...], Meta(description="a tuple of host:port")]


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair, in lower case; an IPv6 address without its brackets.

    Raises:
        ConfigError: It is not of that form.
    """
    with contextlib.suppress(ValueError):
        parts = urllib.parse.urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port
        if parts.netloc == address and port and _HOST.fullmatch(host):
            return host, port
    raise ConfigError(
        f"TF_CONFIG: {address!r} is not an address of the form host:port, with a port from 1 to 65535 and an IPv6 "
        "address in brackets, such as [::1]:2222"
    )


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
        first = seen.setdefault(split_address(address), name)
        if first != name:
            raise ConfigError(
                f"TF_CONFIG: {first} and {name} have the same address {address!r}; each worker needs an address of "
                "its own, and a chief is not listed as a worker too"
            )


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


class _ClusterSpec(msgspec.Struct, forbid_unknown_fields=True):
    chief: list[str] = []
    master: list[str] = []
    worker: list[str] = []
    ps: list[str] = []
    evaluator: list[str] = []


class _TaskSpec(msgspec.Struct):
    type: Literal["chief", "master", "worker", "evaluator", "ps"]
    index: Count = 0


class _Config(msgspec.Struct):
    cluster: _ClusterSpec = msgspec.field(default_factory=_ClusterSpec)
    task: _TaskSpec | None = None


def _parse(text: str) -> tuple[str, int, int, tuple[str, ...]]:
    """Returns the fields of a `Role`, in their order."""
    try:
        config: _Config = validation.convert(json.loads(text), _Config, strict=False)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"TF_CONFIG is not valid: {str(error).replace('`$', '`TF_CONFIG')}") from error
    spec = config.cluster
    if config.task is None:
        if spec == _ClusterSpec():
            return "worker", 0, 0, ()
        raise ConfigError("TF_CONFIG['task'] is missing: it gives the index of this worker in TF_CONFIG['cluster']")
    task_type, index = "chief" if config.task.type == "master" else config.task.type, config.task.index
    if task_type == "ps":
        raise ConfigError(
            "TF_CONFIG['task']['type'] is 'ps'; parameter servers do not work with Keras 3's fit(): start tasks of the "
            "types 'chief', 'worker' and 'evaluator' alone"
        )
    chiefs = spec.chief or spec.master
    if len(chiefs) > 1:
        raise ConfigError(f"TF_CONFIG['cluster']['chief'] names {len(chiefs)} addresses; there can be one chief")
    jobs = {"chief": chiefs, "worker": spec.worker}
    check_addresses([(f"{job} {i}", host) for job, hosts in jobs.items() for i, host in enumerate(hosts)])
    addresses = (*chiefs, *spec.worker)
    if task_type == "evaluator":
        return "evaluator", index, -1, addresses
    count = len(jobs[task_type])
    if index >= count:
        raise ConfigError(
            f"TF_CONFIG['task']['index'] is {index}, but TF_CONFIG['cluster'][{task_type!r}] names {count} address(es)"
        )
    return task_type, index, index + (len(chiefs) if task_type == "worker" else 0), addresses


def _prints() -> bool:
    """Returns whether lines of this process are printed: not those of training workers other than the chief."""
    try:
        role = Role.detect()
    except ConfigError:  # reported where the cluster is needed
        return True
    return role.is_chief or role.is_evaluator


terminal.print_only_if(_prints)
