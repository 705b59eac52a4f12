"""Where the threads of a test process were as it crashed, at the end of the run: such a crash may not come again."""

from __future__ import annotations

import faulthandler
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_DIRECTORY = "KDC_TESTS_CRASHES"  # for the processes of pytest-xdist, which inherit it
_LINES = 150


@pytest.hookimpl(trylast=True)  # pytest has it written to stderr, where it is lost among dots
def pytest_sessionstart(session: pytest.Session) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        os.environ[_DIRECTORY] = tempfile.mkdtemp(prefix="kdc-crashes-")
    else:
        session.config.add_cleanup(faulthandler.disable)
        faulthandler.enable((Path(os.environ[_DIRECTORY]) / worker).open("w", encoding="utf-8"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    directory = Path(os.environ.pop(_DIRECTORY))
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for file in sorted(directory.iterdir()):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        if lines and reporter is not None:
            reporter.section(f"a crash of {file.name}")
            reporter.write("\n".join([*lines[:_LINES], ""]))
    shutil.rmtree(directory)
