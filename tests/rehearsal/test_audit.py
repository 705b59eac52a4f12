"""Which files of a script are named: those that it opens for writing by itself. In processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Plan, published
from tests.support import ROOT

pytestmark = pytest.mark.process
BEGIN = "import keras_dist_callbacks.rehearsal.scratch as s; s.place_of('real')\n"


def opened(tmp_path: Path, code: str) -> list[str]:
    """What a process that runs this code records, with the paths relative to its directory."""
    place, directory = tmp_path / "records", tmp_path / "work"
    place.mkdir()
    directory.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(tmp_path / "plan.json")}
    plan = Plan(str(tmp_path / "scratch"), str(place), str(tmp_path / "out"), 4, 2, 1)
    with published(tmp_path / "plan.json", plan):
        run = [sys.executable, "-c", BEGIN + code]
        ended = subprocess.run(run, cwd=directory, env=env, check=True, timeout=60, stderr=subprocess.PIPE, text=True)
    assert not ended.stderr
    (process,) = records.read(place)
    return [os.path.relpath(r["path"], directory) for r in process if r["event"] == "file"]


WRITES = {
    "open('a', 'w').close()": ["a"],
    "open('a', 'ab').close()": ["a"],
    "open('a', 'x').close()": ["a"],
    "open('a', 'w').close(); open('a', 'r+').close()": ["a"],
    "from pathlib import Path; Path('a').write_text('x')": ["a"],
    "import os; os.close(os.open('a', os.O_WRONLY | os.O_CREAT))": ["a"],
    "import sqlite3; sqlite3.connect('a.db').close()": ["a.db"],
    "import atexit; atexit.register(lambda: open('a', 'w').close())": ["a"],
    "import csv; f = open('log.csv', 'w'); csv.writer(f).writerow([1]); f.close(); open('b', 'w').close()": [
        "log.csv", "b",
    ],
}  # fmt: skip
NOT_NAMED = {
    "reading": "open('/etc/hostname').read()",
    "a descriptor": "import os; r, w = os.pipe(); os.fdopen(w, 'wb').close()",
    "a device": "open('/dev/null', 'w').close()",
    "a temporary file": "import tempfile; tempfile.NamedTemporaryFile(prefix='other').write(b'x')",
    "one without a name": "import tempfile; tempfile.TemporaryFile().write(b'x')",
    "a temporary directory": (
        "import tempfile; from pathlib import Path; d = tempfile.mkdtemp(prefix='other'); (Path(d) / 'a').touch(); "
        "(Path(d) / 'b').write_text('')"
    ),
    "the scratch directory": "import os; os.makedirs('../scratch'); open('../scratch/a', 'w').close()",
    "{out}": "import os; os.makedirs('../out/deep'); open('../out/deep/a', 'w').close()",
    "a database in memory": "import sqlite3; sqlite3.connect(':memory:').close()",
    "what is opened while modules are torn down": (
        "import json, sys, keras_dist_callbacks.rehearsal.audit as audit\n"
        "class Late:\n def __del__(self, open=open): open('/etc/hostname').close()\n"
        "json.late, sys.kept = Late(), [json, audit]"  # audit was imported later, and is torn down before json
    ),
    "compiled code": "import os; os.makedirs('__pycache__'); open('__pycache__/a.pyc', 'wb').close()",
}


@pytest.mark.parametrize("code", WRITES)
def test_a_file_that_is_opened_for_writing_is_recorded_once(tmp_path: Path, code: str) -> None:
    assert opened(tmp_path, code) == WRITES[code]


@pytest.mark.parametrize("case", NOT_NAMED)
def test_what_is_no_result_of_the_script_is_not_named(tmp_path: Path, case: str) -> None:
    assert opened(tmp_path, NOT_NAMED[case]) == []
