"""`kdc rehearse` on real scripts, each with one thing in it that is to be found, and on every example with a fit()."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, SUPPORT, files
from tests.support.stores.fixtures import Place

pytestmark = [pytest.mark.chaos, pytest.mark.kill, pytest.mark.timeout(1800)]
JOB = SUPPORT / "rehearsal_job.py"


def rehearse(place: Path, code: int, *words: object, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """What `kdc rehearse --json` prints, in a directory of its own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "KDC_STORAGE_OPTIONS": json.dumps(options or {})}
    command = [sys.executable, "-m", "keras_dist_callbacks.cli", "rehearse", "--json", *map(str, words)]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=1700)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(done.stdout)
    return found


def of_job(place: Path, code: int, case: str, *options: object) -> dict[str, Any]:
    return rehearse(place, code, "--steps", 8, *options, JOB, "real", "--case", case)


def verdicts(found: dict[str, Any]) -> list[str]:
    return [resume["verdict"] for resume in found["resumes"]]


def test_a_plain_script_is_exact_at_all_four_kills(tmp_path: Path) -> None:
    found = of_job(tmp_path, 0, "validation", "--kills", 4)
    assert verdicts(found) == ["exact"] * 4
    assert [resume["killed"].split()[0] for resume in found["resumes"]] == ["right", "two", "during", "before"]
    assert list(tmp_path.iterdir()) == []


def test_all_fits_of_a_script_are_compared(tmp_path: Path) -> None:
    found = of_job(tmp_path, 0, "two-fits")
    assert len(found["fits"]) == 2


def test_a_script_without_a_seed_is_told_to_set_one(tmp_path: Path) -> None:
    found = of_job(tmp_path, 3, "no-seed")
    assert found["difference"]["step"] == 2
    assert ["set_random_seed" in advice for advice in found["advice"]] == [True]


def test_a_map_without_an_order_is_named(tmp_path: Path) -> None:
    found = of_job(tmp_path, 3, "unordered")
    advice = " ".join(found["advice"])
    assert "Dataset.map(_delayed, rehearsal_job.py:" in advice
    assert "with deterministic=False" in advice


def test_a_hidden_counter_is_the_condition_that_does_not_hold(tmp_path: Path) -> None:
    found = of_job(tmp_path, 1, "counter")
    assert set(verdicts(found)) == {"exact if"}
    (advice,) = found["advice"]
    assert advice.startswith("this condition does not hold")
    assert "Hidden" in advice
    assert {variable["kind"] for variable in found["difference"]["variables"]} == {"variable"}


def test_a_generator_with_a_state_of_its_own_is_the_condition_that_does_not_hold(tmp_path: Path) -> None:
    found = of_job(tmp_path, 1, "generator")
    assert set(verdicts(found)) == {"exact if"}
    assert any("from_generator" in advice for advice in found["advice"])


def test_noise_of_tensorflows_own_is_not_exact_and_named(tmp_path: Path) -> None:
    found = of_job(tmp_path, 1, "noise")
    assert set(verdicts(found)) == {"not exact"}
    assert any("RandomStandardNormal" in advice for advice in found["advice"])


@pytest.mark.cluster
def test_two_workers_with_op_determinism_are_exact(tmp_path: Path) -> None:
    found = of_job(tmp_path, 0, "deterministic", "--workers", 2, "--kills", 4)
    assert len(found["resumes"]) == 3
    assert "not exact" not in verdicts(found)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("no-backup", "no fit() with BackupAndRestore took part"),
        ("loop", "loops with Checkpointer are not rehearsed"),
        ("fails", "the script fails by itself"),
        ("hangs", "it still ran after"),
    ],
)
def test_a_script_of_which_nothing_can_be_shown_is_code_2(tmp_path: Path, case: str, why: str) -> None:
    found = of_job(tmp_path, 2, case, "--timeout", 60 if case == "hangs" else 600)
    assert why in found["summary"]


def test_the_real_directories_on_a_local_disk_stay_as_they_are(tmp_path: Path) -> None:
    train = [sys.executable, str(JOB), "real", "--log", "real/log.txt"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(train, cwd=tmp_path, env=env, check=True, timeout=600)
    before = {**files(tmp_path), **_times(tmp_path)}
    rehearse(tmp_path, 0, "--steps", 8, JOB, "real", "--log", "real/log.txt")
    assert {**files(tmp_path), **_times(tmp_path)} == before


def _times(directory: Path) -> dict[str, Any]:
    return {f"{path} was changed": path.stat().st_mtime_ns for path in directory.rglob("*")}


@pytest.mark.parametrize("remote", ["s3"], indirect=True)
def test_the_real_directories_in_a_store_stay_as_they_are_and_scratch_may_be_there(
    tmp_path: Path, remote: Place
) -> None:
    real, scratch, options = remote.sub("real"), remote.sub("scratch"), json.dumps(remote.options)
    words = [JOB, real.url, "--storage-options", options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *map(str, words)]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=600)
    before = _objects(real)
    assert before
    rehearse(tmp_path, 0, "--steps", 8, *words)
    assert _objects(real) == before
    found = rehearse(tmp_path, 0, "--steps", 8, "--scratch", scratch.url, *words, options=remote.options)
    assert _objects(real) == before
    assert [place.startswith(scratch.url) for place in found["kept"]] == [True]
    assert _objects(scratch)


def _objects(place: Place) -> dict[str, Any]:
    """All objects below a directory: content and time."""
    import fsspec

    fs, root = fsspec.core.url_to_fs(place.url, use_listings_cache=False, **place.options)
    return {name: (fs.cat_file(name), str(fs.modified(name))) for name in fs.find(root)}


EXAMPLES = {
    "train_digits.py": ["runs/digits"],
    "mirrored_keras.py": ["runs/mirrored"],
    "frozen_backbone.py": ["runs/frozen"],
    "cross_validation.py": ["runs/folds"],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_with_a_fit_of_its_own_resumes_exactly(tmp_path: Path, name: str) -> None:
    found = rehearse(tmp_path, 0, ROOT / "examples" / name, *EXAMPLES[name])
    assert "not exact" not in verdicts(found)
