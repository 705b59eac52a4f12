"""SIGKILL of a real process in the middle of an upload over a slow link, at random moments."""

from __future__ import annotations

import collections
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from keras_dist_callbacks.backups.store import BackupStore
from tests.support import tiny
from tests.support.processes import worker_processes
from tests.support.stores.fixtures import REMOTE, Place, Stores
from tests.support.stores.proxy import FaultProxy

BYTES_PER_SECOND = 400_000  # so that the upload of a save lasts about half a second
TOTAL_STEPS = 2 * tiny.STEPS
START_SECONDS, RUN_SECONDS = 90.0, 120.0


def command(place: Place | None, weights: Path) -> list[str]:
    where = ["none", "{}"] if place is None else [place.url, json.dumps(place.options)]
    return [sys.executable, "-m", "tests.support.stores.kill_workload", *where, "--weights", str(weights)]


def run_to_the_end(place: Place | None, weights: Path) -> int:
    """Runs the workload without faults; how many steps it trained."""
    with worker_processes(command(place, weights), 1, weights.with_suffix(".logs")) as cluster:
        cluster.start()
        assert cluster.wait(RUN_SECONDS) == [0], cluster.tails()
        found = re.search(r"TRAINED (\d+)", cluster.log(0))
    assert found is not None
    return int(found[1])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    weights = tmp_path_factory.mktemp("expected") / "state.npz"
    assert run_to_the_end(None, weights) == TOTAL_STEPS
    return dict(np.load(weights))


@pytest.fixture
def networks() -> Iterator[Callable[[Place], FaultProxy]]:
    running: list[FaultProxy] = []

    def start(place: Place) -> FaultProxy:
        assert place.server is not None
        running.append(FaultProxy(place.server.port))
        return running[-1]

    yield start
    for proxy in running:
        proxy.close()


def kill_in_an_upload(place: Place, proxy: FaultProxy, chance: random.Random, logs: Path) -> str:
    """Starts the workload over a slow link and kills it at a random upload; what was continuing then."""
    proxy.bytes_per_second = BYTES_PER_SECOND
    which, moment = chance.randrange(3, 16), chance.uniform(0.0, 0.7)
    with worker_processes(command(place.through(proxy), logs / "state.npz"), 1, logs) as cluster:
        cluster.start()
        deadline = time.monotonic() + START_SECONDS
        while sum(r.is_upload for r in proxy.requests) < which:
            assert cluster.poll() == [None], cluster.tails()
            assert time.monotonic() < deadline, "the uploads did not begin"
            time.sleep(0.002)
        time.sleep(moment)
        while not proxy.uploading and cluster.poll() == [None]:  # between two uploads: the next one will do
            assert time.monotonic() < deadline, "no further upload began"
            time.sleep(0.002)
        busy = proxy.uploading > 0
        cluster.kill(0)
        assert cluster.wait(RUN_SECONDS) == [-9]
    proxy.heal()
    return "in an upload" if busy else "between uploads"


def check_trial(
    place: Place, proxy: FaultProxy, seed: int, directory: Path, expected: dict[str, np.ndarray]
) -> collections.Counter[str]:
    directory.mkdir(exist_ok=True)
    struck = kill_in_an_upload(place, proxy, random.Random(f"{place.kind} {seed}"), directory / "killed")  # noqa: S311
    store = BackupStore(place.open())
    commits = store.commits()
    for commit in commits:
        store.verify(store.manifest(commit))
    steps = run_to_the_end(place, directory / "state.npz")
    assert steps < TOTAL_STEPS if commits else steps == TOTAL_STEPS
    state = dict(np.load(directory / "state.npz"))
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(state[name], value, err_msg=f"{name}, seed {seed}")
    return collections.Counter({struck: 1, "resumed": bool(commits), "steps not trained again": TOTAL_STEPS - steps})


@pytest.mark.in_gate(1)
@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["gs", "s3"])
def test_a_job_killed_in_an_upload_ends_as_if_never_interrupted(
    stores: Stores, tmp_path: Path, kind: str, networks: Callable[[Place], FaultProxy], expected: dict[str, np.ndarray]
) -> None:
    place = stores.place(kind, tmp_path)
    check_trial(place, networks(place), 0, tmp_path / "trial", expected)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", REMOTE)
def test_twenty_kills_in_uploads(
    stores: Stores,
    tmp_path: Path,
    kind: str,
    networks: Callable[[Place], FaultProxy],
    expected: dict[str, np.ndarray],
    count: Callable[[str], None],
) -> None:
    trials = 7 if kind != "az" else 6
    total: collections.Counter[str] = collections.Counter()
    for seed in range(1, trials + 1):
        place = stores.place(kind, tmp_path)
        total += check_trial(place, networks(place), seed, tmp_path / f"trial{seed}", expected)
    figures = ", ".join(f"{number} {what}" for what, number in sorted(total.items()))
    count(f"{trials} kills on {kind}: {figures}; all ended bit-identical")
