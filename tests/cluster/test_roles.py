"""TF_CONFIG and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.cluster import Cluster
from tests.support.tf_config import WITH_CHIEF, WORKERS, config, detect


def test_without_tf_config_the_process_is_the_chief_of_one_worker() -> None:
    for environ in ({}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}):
        cluster = Cluster.detect(environ)
        assert (cluster.num_workers, cluster.is_chief, cluster.is_evaluator) == (1, True, False)


@pytest.mark.parametrize(
    ("cluster", "task_type", "index", "worker_index", "is_chief"),
    [
        (WORKERS, "worker", 0, 0, True),
        (WORKERS, "worker", 2, 2, False),
        (WORKERS, "worker", "1", 1, False),
        (WITH_CHIEF, "chief", 0, 0, True),
        (WITH_CHIEF, "worker", 0, 1, False),
        (WITH_CHIEF, "worker", 1, 2, False),
        ({**WITH_CHIEF, "ps": ["p:1"], "evaluator": ["e:1"]}, "worker", 1, 2, False),
        ({"master": ["a:1"], "worker": ["b:2", "c:3"]}, "master", 0, 0, True),
        ({"master": ["a:1"], "worker": ["b:2", "c:3"]}, "worker", 1, 2, False),
    ],
)
def test_roles_and_ranks(
    cluster: dict[str, list[str]], task_type: str, index: Any, worker_index: int, is_chief: bool
) -> None:
    found = detect(config(cluster, task_type, index))
    assert found.addresses == ("a:1", "b:2", "c:3")
    assert (found.num_workers, found.worker_index, found.is_chief) == (3, worker_index, is_chief)


def test_addresses_may_be_of_any_kind() -> None:
    written = ["10.0.0.1:1", "[::1]:2", "[fe80::1%eth0]:3", "a_b.c-d.svc:65535", "köln:1"]
    assert detect(config({"worker": written})).addresses == tuple(written)


@pytest.mark.parametrize("cluster", [WORKERS, {**WORKERS, "evaluator": ["e:1"]}])
def test_an_evaluator_is_neither_chief_nor_worker(cluster: dict[str, list[str]]) -> None:
    found = detect(config(cluster, "evaluator"))
    assert (found.is_evaluator, found.is_chief, found.worker_index) == (True, False, -1)


def test_a_cluster_of_one_worker_is_a_chief() -> None:
    found = detect(config({"worker": ["a:1"]}))
    assert (found.num_workers, found.is_chief) == (1, True)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{not json", "TF_CONFIG is not valid: Expecting property name"),
        ("[]", "Expected `object`, got `array`"),
        ({"cluster": [], "task": {}}, "got `array` - at `TF_CONFIG.cluster`"),
        ({"cluster": WORKERS}, r"TF_CONFIG\['task'\] is missing"),
        ({"cluster": WORKERS, "task": {"index": 0}}, "missing required field `type` - at `TF_CONFIG.task`"),
        (config(WORKERS, index=-1), "Expected `int` >= 0 - at `TF_CONFIG.task.index`"),
        (config(WORKERS, index="one"), "Expected `int`, got `str` - at `TF_CONFIG.task.index`"),
        (config(WORKERS, index=3), r"\['index'\] is 3, but TF_CONFIG\['cluster'\]\['worker'\] names 3"),
        (config(WORKERS, "chief"), r"\['cluster'\]\['chief'\] names 0"),
        (config(WORKERS, "boss"), "'boss' - at `TF_CONFIG.task.type`"),
        (config({"worker": "a:1"}), "got `str` - at `TF_CONFIG.cluster.worker`"),  # type: ignore[dict-item]
        (config({"worker": ["a"]}), "'a' is not an address of the form host:port"),
        (config({"worker": ["a:99999"]}), "not an address .*a port from 1 to 65535"),
        (config({"worker": ["a:0"]}), "a port from 1 to 65535"),
        (config({"worker": ["a:²"]}), "'a:²' is not an address of the form host:port"),
        (config({"worker": ["a:٣"]}), "'a:٣' is not an address"),
        (config({"worker": ["grpc://a:1"]}), "'grpc://a:1' is not an address of the form host:port"),
        (config({"worker": ["a b:1"]}), "'a b:1' is not an address of the form host:port"),
        (config({"worker": [" a:1"]}), "not an address"),
        (config({"worker": ["a:1 "]}), "not an address"),
        (config({"worker": ["a/b:1"]}), "not an address"),
        (config({"worker": ["a,b:1"]}), "not an address"),
        (config({"worker": ["::1:1"]}), "an IPv6 address in brackets"),
        (config({"worker": ["[::x]:1"]}), "not an address"),
        (config({"worker": ["a:1", "b:1", "a:1"]}), "worker 0 and worker 2 have the same address 'a:1'"),
        (config({"worker": ["a:1", "A:01"]}), "worker 0 and worker 1 have the same address 'A:01'"),
        (config({"chief": ["a:1"], "worker": ["a:1", "b:1"]}), "chief 0 and worker 0 have the same address 'a:1'"),
        (config(WORKERS, index="²"), "Expected `int`, got `str` - at `TF_CONFIG.task.index`"),
        ("[" * 100_000, "maximum recursion depth"),
        (config({"chief": ["a:1", "b:1"]}, "chief"), "there can be one chief"),
        (config({"workers": ["a:1"]}), "unknown field `workers` - at `TF_CONFIG.cluster`"),
        (config({**WORKERS, "ps": ["p:1"]}, "ps"), "parameter servers do not work"),
    ],
)
def test_a_malformed_tf_config_names_the_field(text: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        detect(text)
