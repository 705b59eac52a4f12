"""The pytest plugin: clusters of real processes that are gone when the test is.

pytest imports this module in every environment that has the package: what a test needs is imported when it asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from keras_dist_callbacks.testing.local_cluster import LocalCluster


class ClusterFactory(Protocol):
    """Makes a `LocalCluster` whose logs are in the test's temporary directory."""

    def __call__(self, command: Sequence[str], num_workers: int = 2, **options: Any) -> LocalCluster:
        """The arguments are those of `LocalCluster`, without `log_dir`."""


@pytest.fixture
def local_cluster(tmp_path: Path) -> Iterator[ClusterFactory]:
    """A factory of `LocalCluster`.

    Whatever still runs when the test ends is killed. pytest shows the ends of the logs if the test failed.
    """
    from keras_dist_callbacks.testing.local_cluster import LocalCluster

    clusters: list[LocalCluster] = []

    def make(command: Sequence[str], num_workers: int = 2, **options: Any) -> LocalCluster:
        cluster = LocalCluster(command, num_workers, tmp_path / f"cluster-{len(clusters)}", **options)
        clusters.append(cluster)
        return cluster

    try:
        yield make
    finally:
        for cluster in clusters:
            cluster.close()
    for cluster in clusters:
        print(cluster.tails())
