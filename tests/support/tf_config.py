"""Descriptions of clusters."""

from __future__ import annotations

import json
from typing import Any

from keras_dist_callbacks.cluster.cluster import Cluster


def detect(config: Any) -> Cluster:
    return Cluster.detect({"TF_CONFIG": config if isinstance(config, str) else json.dumps(config)})


def config(cluster: dict[str, list[str]], task_type: str = "worker", index: Any = 0) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": task_type, "index": index}}


WORKERS = {"worker": ["a:1", "b:2", "c:3"]}
WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
