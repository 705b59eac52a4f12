"""`kdc watch` on object stores: beside a run that writes to one, while one does not answer, and what it asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.stores import fixtures
from tests.support.stores.proxy import FaultProxy, Request

pytestmark = [pytest.mark.chaos, pytest.mark.process, pytest.mark.timeout(600)]
stores, remote, proxy = fixtures.stores, fixtures.remote, fixtures.proxy


@contextmanager
def process(place: fixtures.Place, log: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that knows the options of a store; its standard error goes to a file."""
    options = {"KDC_STORAGE_OPTIONS": json.dumps(place.options)}
    with (
        log.open("w") as file,
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **options, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as running,
    ):
        try:
            yield running
        finally:
            running.kill()


def line_with(running: subprocess.Popen[str], found: Callable[[str], bool]) -> str:
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if found(line):
            print(line)
            return line
    raise AssertionError(f"it has ended: {lines}")


def test_a_run_is_followed_over_an_outage_to_its_end_and_nothing_is_written(
    remote: fixtures.Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    seen = remote.through(proxy)
    command = ("-m", "keras_dist_callbacks.cli", "watch", remote.url)
    with (
        process(seen, tmp_path / "watch", *command, "--every", "0.5") as watch,
        process(remote, tmp_path / "run", "-m", "tests.support.slow_training", remote.url, "0.5", "24"),
    ):
        assert line_with(watch, lambda line: True).startswith("state nothing")
        line_with(watch, lambda line: line.startswith("state running;"))
        calm = len(proxy.requests)
        line_with(watch, lambda line: line.startswith("state running;"))
        print(f"{len(proxy.requests) - calm} requests from one line to the next")
        proxy.take_down()
        began = time.monotonic()
        blind = line_with(
            watch, lambda line: line.startswith("state running ") and " ago;" in line.partition(";")[0] + ";"
        )
        print(f"seen after {time.monotonic() - began:.1f} s")
        assert "cannot list" in blind
        with process(seen, tmp_path / "once", *command, "--once") as once:
            assert once.wait(120) == 2
        print((tmp_path / "once").read_text())
        assert "cannot list" in (tmp_path / "once").read_text()
        proxy.heal()
        line_with(watch, lambda line: line.startswith("state running;"))
        line_with(watch, lambda line: line.startswith("state finished;"))
        assert watch.wait(60) == 0
    asked = {request.method for request in proxy.requests}
    assert asked <= {"GET", "HEAD"}, asked


def test_a_look_takes_three_operations_and_one_more_for_a_new_backup(remote: fixtures.Place, proxy: FaultProxy) -> None:
    from keras_dist_callbacks.backups.store import BackupStore
    from keras_dist_callbacks.cli.watching import Watch
    from tests.support.cli_backups import begin, commit

    for _ in range(3):
        store = begin(remote.url, options=remote.options)
    commit(store, 1)
    watch = Watch(BackupStore(remote.through(proxy).open()))

    def look() -> list[Request]:
        before = len(proxy.requests)
        watch.look(time.time())
        return proxy.requests[before:]

    look()
    calm = 5 if remote.kind == "az" else 3  # its client lists a directory by two requests
    assert [request.method for request in look()] == ["GET"] * calm
    commit(store, 2)
    assert [request.method for request in look()] == ["GET"] * (calm + 1)
