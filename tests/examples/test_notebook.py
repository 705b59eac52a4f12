"""Notebooks in a real kernel: the tutorial's as it is; the example's, interrupted as the button does it, and killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.pages import is_shown, without_numbers

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SIGNAL = """
import os, signal, keras
import keras_dist_callbacks as kdc
class Signal(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.count = getattr(self, "count", 0) + 1
        if self.count == 20:
            os.kill(os.getpid(), signal.{name})
kdc.advanced.register_callback_state(Signal, None)
more_callbacks = [Signal()]
"""


class Session:
    """A kernel with the notebook, of which cells are run one by one."""

    def __init__(self, directory: Path, name: str = "examples/interrupted_notebook.ipynb") -> None:
        self.book = nbformat.read(ROOT / name, as_version=4)
        # as Jupyter starts a kernel: it listens to the button even if this process was started in the background
        environment = {
            **os.environ,
            "RUN_DIRECTORY": str(directory),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        place = {"metadata": {"path": str(directory.parent)}}
        self.client = nbclient.NotebookClient(self.book, timeout=300, kernel_name="python3", resources=place)
        self.kernel = self.client.setup_kernel(env=environment)

    def run(self, name: str, source: str | None = None) -> str:
        """Runs a cell, or another text in its place; returns what it printed."""
        number = next(i for i, cell in enumerate(self.book.cells) if cell.id == name)
        cell: Any = self.book.cells[number]
        before = cell.source
        cell.source = before if source is None else source
        try:
            self.client.execute_cell(cell, number)
        finally:
            cell.source = before
        return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.timeout(900)
def test_a_notebook_continues_after_an_interrupt_and_after_the_death_of_its_kernel(tmp_path: Path) -> None:
    uninterrupted = Session(tmp_path / "uninterrupted")
    with uninterrupted.kernel:
        for name in ("settings", "training"):
            uninterrupted.run(name)
        expected = uninterrupted.run("losses")
    assert expected.count("loss") == 4
    for name, error in (("SIGINT", nbclient.exceptions.CellExecutionError), ("SIGKILL", RuntimeError)):
        session = Session(tmp_path / name)
        with session.kernel:
            session.run("settings")
            session.run("settings", SIGNAL.format(name=name))
            with pytest.raises(error, match=r"KeyboardInterrupt|[Kk]ernel died"):
                session.run("training")
            if name == "SIGINT":
                session.run("settings", "more_callbacks = []")
                assert ": exact" in session.run("training")
                assert session.run("losses") == expected
        if name == "SIGKILL":
            again = Session(tmp_path / name)
            with again.kernel:
                again.run("settings")
                assert ": exact" in again.run("training")
                assert again.run("losses") == expected


@pytest.mark.timeout(900)
def test_the_tutorials_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    session = Session(tmp_path / "run", "docs/tutorial.ipynb")
    cells = [cell for cell in session.book.cells if cell.cell_type == "code"]
    assert cells.pop(0).source.startswith("%pip install ")  # what it installs is here already
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    with session.kernel:
        for cell in cells:
            shown = [line for output in cell.outputs for line in output.text.splitlines()]
            printed = without_numbers(session.run(cell.id))
            for line in without_numbers("\n".join(shown)):
                assert any(is_shown(line, each) for each in printed), (line, printed)
            if cell.source.startswith("%%writefile"):
                name, code = cell.source.removeprefix("%%writefile ").split("\n", 1)
                assert f"```python\n# {name}\n{code}\n```" in page
