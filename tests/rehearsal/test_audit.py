"""What a script changes outside of the copy of its working directory: refused or named. In processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Plan, published
from keras_dist_callbacks.rehearsal.write_lock import restrict_writing
from tests.support import ROOT

pytestmark = pytest.mark.process
BEGIN = "import keras_dist_callbacks.rehearsal.scratch as s; s.place_of('real')\n"
TEMPDIR = "import tempfile; tempfile.tempdir = '../tmp'\n"  # the directory of the test is in the usual one


def changed(tmp_path: Path, code: str, event: str, *, copy: str = "") -> list[str]:
    """What a process that runs this code records, with the paths relative to its directory."""
    place, directory = tmp_path / "records", tmp_path / "work"
    for made in (place, directory, tmp_path / "tmp", tmp_path / "elsewhere"):
        made.mkdir()
    for file in ("elsewhere/old", "elsewhere/other", "tmp/old"):
        (tmp_path / file).write_text("of the user")
    began = time.time()
    time.sleep(0.05)
    env = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(tmp_path / "plan.json")}
    plan = Plan(str(tmp_path / "scratch"), str(place), copy and str(tmp_path / copy), 4, 2, 1, began)
    with published(tmp_path / "plan.json", plan):
        run = [sys.executable, "-c", TEMPDIR + BEGIN + code]
        ended = subprocess.run(run, cwd=directory, env=env, check=False, timeout=60, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, bool(ended.stderr)) == ((1, True) if event == "refused" else (0, False)), ended.stderr
    assert event != "refused" or "--in-place" in ended.stderr
    (process,) = records.read(place)
    return [os.path.relpath(r["path"], directory) for r in process if r["event"] == event]


WRITES = {
    "open('a', 'w').close()": ["a"],
    "open('a', 'ab').close()": ["a"],
    "open('a', 'x').close()": ["a"],
    "open('a', 'w').close(); open('a', 'r+').close()": ["a"],
    "from pathlib import Path; Path('a').write_text('x')": ["a"],
    "import os; os.close(os.open('a', os.O_WRONLY | os.O_CREAT))": ["a"],
    "import sqlite3; sqlite3.connect('a.db').close()": ["a.db"],
    "import atexit; atexit.register(lambda: open('a', 'w').close())": ["a"],
    "import os; os.remove('../elsewhere/old')": ["../elsewhere/old"],
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
    "a new directory": "import os; os.makedirs('deep/er')",
    "a database in memory": "import sqlite3; sqlite3.connect(':memory:').close()",
    "what is opened while modules are torn down": (
        "import json, sys, keras_dist_callbacks.rehearsal.audit as audit\n"
        "class Late:\n def __del__(self, open=open): open('/etc/hostname').close()\n"
        "json.late, sys.kept = Late(), [json, audit]"  # audit was imported later, and is torn down before json
    ),
    "compiled code": "import os; os.makedirs('__pycache__'); open('__pycache__/a.pyc', 'wb').close()",
}
REFUSED = {
    "open('../elsewhere/old', 'a')": "../elsewhere/old",
    "open('../elsewhere/new', 'w')": "../elsewhere/new",
    "import os; os.symlink('../elsewhere', 'link'); open('link/old', 'w')": "../elsewhere/old",
    "import os; os.remove('../elsewhere/old')": "../elsewhere/old",
    "import os; os.replace('../elsewhere/old', 'a')": "../elsewhere/old",
    "import os; open('a', 'w').close(); os.replace('a', '../elsewhere/old')": "../elsewhere/old",
    "import os; os.truncate('../elsewhere/old', 0)": "../elsewhere/old",
    "import os; os.mkdir('../elsewhere/new')": "../elsewhere/new",
    "import os; os.rmdir('../elsewhere')": "../elsewhere",
    "import shutil; shutil.rmtree('../elsewhere')": "../elsewhere",
    "import os; os.symlink('a', '../elsewhere/new')": "../elsewhere/new",
    "open('../tmp/old', 'w')": "../tmp/old",
}
ALLOWED = {
    "a file of the copy": "open('a', 'w').close()",
    "a link of the copy": "import os; os.symlink('../elsewhere/old', 'a'); os.remove('a'); open('a', 'w').close()",
    "deleting in the copy": "import os, shutil; os.makedirs('a/b'); shutil.rmtree('a')",
}


@pytest.mark.parametrize("code", WRITES)
def test_a_file_that_is_changed_is_recorded_once(tmp_path: Path, code: str) -> None:
    assert changed(tmp_path, code, "file") == WRITES[code]


@pytest.mark.parametrize("case", NOT_NAMED)
def test_what_is_no_result_of_the_script_is_not_named(tmp_path: Path, case: str) -> None:
    assert changed(tmp_path, NOT_NAMED[case], "file") == []


@pytest.mark.parametrize("code", REFUSED)
def test_beside_a_copy_nothing_outside_of_it_is_changed(tmp_path: Path, code: str) -> None:
    assert changed(tmp_path, code, "refused", copy="work") == [REFUSED[code]]
    for file in ("elsewhere/old", "elsewhere/other", "tmp/old"):
        assert (tmp_path / file).read_text() == "of the user"
    assert not (tmp_path / "elsewhere/new").exists()


@pytest.mark.parametrize("case", ALLOWED)
def test_the_copy_is_the_scripts(tmp_path: Path, case: str) -> None:
    assert changed(tmp_path, ALLOWED[case], "file", copy="work") == []
    assert (tmp_path / "elsewhere/old").read_text() == "of the user"


def test_a_new_temporary_file_with_a_name_of_the_scripts_is_named(tmp_path: Path) -> None:
    code = "open('../tmp/new', 'w').close(); open('../tmp/new', 'a').close()"
    assert changed(tmp_path, code, "file", copy="work") == ["../tmp/new"]


def _restricted(tmp_path: Path, code: str) -> str:
    begin = "import sys; from keras_dist_callbacks.rehearsal.write_lock import restrict_writing\n"
    begin += f"if not restrict_writing([{str(tmp_path / 'mine')!r}, '/nowhere']): print('no Landlock'); sys.exit()\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "weights.h5").write_text("of the user")
    run = [sys.executable, "-c", begin + code]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(run, cwd=tmp_path, env=env, check=False, timeout=60, capture_output=True, text=True)
    if "no Landlock" in ended.stdout:
        pytest.skip("this kernel has no Landlock that keeps files from being truncated")
    return ended.stdout + ended.stderr


def test_a_library_that_asks_nobody_is_refused_by_the_kernel(tmp_path: Path) -> None:
    code = "import h5py; h5py.File('mine/new.h5', 'w').close(); print('written'); h5py.File('weights.h5', 'w')"
    said = _restricted(tmp_path, code)
    assert said.startswith("written\n")
    assert "PermissionError" in said
    assert (tmp_path / "weights.h5").read_text() == "of the user"


def test_what_a_restricted_process_starts_is_restricted_too(tmp_path: Path) -> None:
    said = _restricted(tmp_path, "import subprocess; subprocess.run(['rm', 'weights.h5'])")
    assert "ermission denied" in said
    assert (tmp_path / "weights.h5").exists()


def test_a_system_without_landlock_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def syscall(self, *arguments: object) -> int:
            return -1

    monkeypatch.setattr("keras_dist_callbacks.rehearsal.write_lock.ctypes.CDLL", lambda *a, **options: Libc())
    assert not restrict_writing(["/"])


def test_no_other_system_is_asked_by_the_numbers_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a system call of Linux")

    monkeypatch.setattr("keras_dist_callbacks.rehearsal.write_lock.ctypes.CDLL", asked)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not restrict_writing(["/"])
