"""One process for all in-process tests: CPU only, and no test leaves anything global."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import pytest

from tests.support.busy_machine import share_processors
from tests.support.counts import count, pytest_terminal_summary  # noqa: F401 - fixtures and hooks
from tests.support.crashes import pytest_sessionfinish, pytest_sessionstart  # noqa: F401 - hooks
from tests.support.finds import the_package_finds_what_a_mark_says  # noqa: F401 - for all tests
from tests.support.launching import kill_running
from tests.support.stores.fixtures import place, proxy, remote, stores  # noqa: F401 - fixtures for all tests
from tests.support.stress_selection import (  # noqa: F401 - hooks
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
)


@pytest.fixture(autouse=True, scope="session")
def collections_leave_the_imports_alone() -> None:
    """Millions of objects that TensorFlow's import made and no one frees; each collection would look at them again."""
    gc.collect()
    gc.freeze()


# A fork must not delete what earlier tests have left of TensorFlow's objects: it lacks their threads, and crashes.
os.register_at_fork(after_in_child=gc.freeze)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """A shell has it ignored in what it starts in the background, and that is inherited."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def hangups_are_heard() -> None:
    """`nohup` has them ignored, which what tests start inherits."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def processors_are_shared() -> None:
    share_processors()


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_CONFIG", "KDC_CLUSTER_TOKEN", "KDC_CLUSTER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def unmarked_tests_start_no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that `make quick` stays quick; tests of the fixtures of stores are marked where they are collected."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError(
            "this test starts a process: mark it `process`, or `cluster` or `kill` if that fits better"
        )

    if not any(request.node.get_closest_marker(name) for name in ("process", "cluster", "kill")):
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(autouse=True)
def no_launcher_stays() -> Iterator[None]:
    yield
    kill_running()


@pytest.fixture(autouse=True)
def no_watchdog_ends_the_process_of_all_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from keras_dist_callbacks.run.shutdown.watchdog import Watchdog

    started: list[Watchdog] = []
    original = Watchdog.start

    def start(self: Watchdog, seconds: float | None = None) -> None:
        started.append(self)
        original(self, seconds)

    monkeypatch.setattr(Watchdog, "start", start)
    yield
    running = [dog for dog in started if not dog._cancelled.is_set()]
    assert all(dog.left > 1e5 for dog in running), "give this test grace_period=FOREVER of tests.support.early_exits"


@pytest.fixture(autouse=True)
def nothing_runs_on_in_the_background() -> Iterator[None]:
    from keras_dist_callbacks.base.process import shared
    from keras_dist_callbacks.cluster import peer_monitor
    from keras_dist_callbacks.run.engine.writer import shared_writer
    from keras_dist_callbacks.run.shutdown import controller
    from tests.support import forget_runs

    yield
    forget_runs()
    while shared(controller.StoppableRuns).open:
        shared(controller.StoppableRuns).open.pop().close()  # a loop that was never closed, as the next one would
    assert shared_writer().wait(30), "a test left a write running"
    assert shared(peer_monitor.PeerMonitor).count == 0, (
        "a test left other workers watched: a later one may end with them"
    )


@pytest.fixture(scope="session")
def uninterrupted() -> tuple[Any, dict[str, list[float]]]:
    """The tiny model after a run that was never interrupted, and its History."""
    from tests.support import tiny

    model = tiny.model()
    return model, tiny.fit(model, None).history


@pytest.fixture(scope="session")
def uninterrupted_rich() -> tuple[Any, dict[str, list[float]]]:
    """The same for the model with every kind of variable."""
    from tests.support import tiny

    model = tiny.rich_model()
    return model, tiny.fit(model, None).history


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts an empty file system of that many MiB."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        directory = tmp_path / f"disk{len(mounted)}"
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}M", "none", str(directory)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this account must not mount")
        mounted.append(directory)
        return directory

    yield mount
    for directory in mounted:
        subprocess.run(["umount", str(directory)], check=True)
