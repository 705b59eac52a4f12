"""`kdc export` writes a backup's variables into a file that other tools read."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.backups.select_backup import find_backup
from keras_dist_callbacks.backups.snapshot import CommitId
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support import cli_backups
from tests.support.cli_backups import begin, commit, everything, flip, kdc, kdc_json

url = cli_backups.url
TENSORS = {
    "variables/dense/kernel@0": np.arange(6, dtype="float32").reshape(2, 3),
    "variables/dense/kernel@1": np.arange(6, dtype="float32").reshape(2, 3),
    "variables/mean/total@0": np.array(1.0, "float32"),
    "variables/mean/total@1": np.array(2.0, "float32"),
    "variables/half@0": np.array([1, 2], ml_dtypes.bfloat16),
    "variables/seed@0": np.array([7, 8], "uint32"),
    "hidden/0": np.array([9], "int64"),
}


def test_a_backup_becomes_a_file_of_safetensors(url: str, tmp_path: Path) -> None:
    store = begin(url)
    commit(store, 1, TENSORS)
    commit(store, 2)
    before = everything(url)
    out = tmp_path / "weights.safetensors"
    told = kdc_json("export", url, out, "--commit", "1-1")
    assert (told["commit"], told["tensors"], told["bytes"]) == ("1-1", 5, out.stat().st_size)
    found = load_file(out)
    assert sorted(found) == ["dense/kernel", "half", "mean/total@0", "mean/total@1", "seed"]
    for name, value in found.items():
        expected = TENSORS[f"variables/{name}" if "@" in name else f"variables/{name}@0"]
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)
    with safe_open(out, "np") as file:
        assert file.metadata() == {"format": "np", "position": "epoch 1, batch 1 (step 1)", "commit": "1-1"}
    assert everything(url) == before


def test_the_newest_is_written_to_any_store(tmp_path: Path, url: str) -> None:
    commit(begin(tmp_path), 3)
    result = kdc("export", tmp_path, f"{url}/out/weights.safetensors")
    assert result.exit_code == 0, result.output
    assert "1 variables of 1-3 (epoch 1, batch 3 (step 3))" in result.stdout


@pytest.fixture
def saves(url: str) -> Callable[[int], None]:
    """Lets a run save so many backups more; each deletes all but the two newest."""
    store, sequences = begin(url), itertools.count(1)

    def save(count: int) -> None:
        for sequence in itertools.islice(sequences, count):
            commit(store, sequence, {"variables/w@0": np.full(1000, sequence, "float32")})
            store.prune(Rules(max_to_keep=2))

    save(1)
    return save


def test_beside_a_run_that_saves_all_the_time_a_whole_backup_is_written(
    url: str, tmp_path: Path, saves: Callable[[int], None]
) -> None:
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(0.02):
            saves(1)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            for number in range(20):
                out = tmp_path / f"{number}.safetensors"
                told = kdc_json("export", url, out)
                (value,) = load_file(out).values()
                assert value.tolist() == [int(told["commit"].removeprefix("1-"))] * 1000
        finally:
            is_over.set()
        running.result()


def test_where_all_that_were_listed_are_deleted_the_newer_ones_are_found(
    url: str, tmp_path: Path, saves: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_late(self: BackupStore) -> list[CommitId]:
        found = real(self)
        monkeypatch.setattr(BackupStore, "commits", real)
        saves(3)
        return found

    real = BackupStore.commits
    for command, *out in (("ls",), ("verify",), ("show",), ("export", tmp_path / "w.safetensors")):
        monkeypatch.setattr(BackupStore, "commits", list_late)
        kdc_json(command, url, *out)


def test_which_backup_is_the_newest_is_found_out_by_the_process_that_reads_it(
    url: str, tmp_path: Path, saves: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: object, *, input: str, **options: object) -> object:
        saves(20)  # while Keras is imported
        request = json.loads(input)
        found, saved = find_backup(BackupStore(Storage.open(request["directory"])), request["commit"], 1)
        Path(request["out"]).write_bytes(b"model")
        report = {"commit": found.label, "position": str(saved.position), "tensors": 1}
        Path(request["report"]).write_text(json.dumps(report), encoding="utf-8")
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert kdc_json("export", url, tmp_path / "m.keras")["commit"] == "1-21"
    assert kdc("export", url, tmp_path / "n.keras", "--commit", "1-1").exit_code == 2  # that one is gone


@pytest.mark.parametrize(
    ("out", "match"),
    [
        ("weights.h5", "must end with .safetensors, .keras or .weights.h5"),
        (".safetensors", "must end with .safetensors"),
    ],
)
def test_other_endings_are_refused(tmp_path: Path, out: str, match: str) -> None:
    commit(begin(tmp_path), 1)
    result = kdc("export", tmp_path, tmp_path / out)
    assert result.exit_code == 2
    assert match in result.stderr
    assert not (tmp_path / out).exists()


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    commit(begin(tmp_path / "d"), 1)
    (tmp_path / "mine.safetensors").write_bytes(b"mine")
    result = kdc("export", tmp_path / "d", tmp_path / "mine.safetensors")
    assert result.exit_code == 2
    assert "exists: give another name" in result.stderr
    assert (tmp_path / "mine.safetensors").read_bytes() == b"mine"


def test_a_damaged_backup_is_not_written(tmp_path: Path) -> None:
    manifest = commit(begin(tmp_path / "d"), 1)
    flip(tmp_path / "d", manifest.blobs[0].path)
    result = kdc("export", tmp_path / "d", tmp_path / "out.safetensors")
    assert result.exit_code == 1
    assert "differs from its hash" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
