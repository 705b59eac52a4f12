"""Records are checked in several threads at once, before any of them was checked in this process."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support import ROOT

THREADS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor

sys.setswitchinterval(1e-6)
from keras_dist_callbacks.backups import owner_records, record_io
from keras_dist_callbacks.checkpoints import record
from keras_dist_callbacks.base.errors import DamagedBackupError

together = threading.Barrier(8)

def check(_):
    together.wait()
    values = {record.CheckpointRecord: {"template": 1}, owner_records.OwnerRecord: {"claimed": []}}
    for kind, value in values.items():
        try:
            record_io.checked(value, kind, "a record")
        except DamagedBackupError as error:
            assert "a record is not valid in a backup" in str(error)
        else:
            raise AssertionError("it was taken")

with ThreadPoolExecutor(8) as pool:
    list(pool.map(check, range(8)))
"""


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.slow
def test_threads_that_check_their_first_record_together_end_no_process() -> None:
    """One of five processes ended with SIGSEGV, on two cores, when each thread asked msgspec by itself."""
    for _ in range(20):
        done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


def test_nothing_asks_msgspec_to_convert_by_itself() -> None:
    callers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "keras_dist_callbacks").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"msgspec.convert", "msgspec.json.decode"}
    ]
    assert callers == ["keras_dist_callbacks/base/validation.py"]
