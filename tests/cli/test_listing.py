"""`kdc ls` and `kdc show`: everything that manifests and records contain."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from keras_dist_callbacks.backups import manifest as manifest_format
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.cli.app import app
from keras_dist_callbacks.storage.storage import Storage
from tests.support import cli_backups
from tests.support.cli_backups import DAY, begin, commit, flip, kdc, kdc_json, publish, rewrite

url = cli_backups.url
UNSEEDED = [["unseeded-large", "input", ["Dataset.shuffle(9)", "Dataset.shuffle(9, seed=1)"], ""]]


# --- ls


def test_backups_are_listed_newest_first_with_place_age_and_size(url: str) -> None:
    store = begin(url)
    frozen = {"variables/frozen@0": np.arange(1000.0)}
    first = commit(
        store, 1, {**frozen, "variables/w@0": np.zeros(9)}, age=2 * DAY, position=Position("between", 2, 0, 20)
    )
    second = commit(
        store, 2, {**frozen, "variables/w@0": np.ones(9)}, known=first, position=Position("within", 2, 3, 23)
    )
    found = kdc_json("ls", url)
    newest, oldest = found["commits"]
    assert [newest["commit"], oldest["commit"]] == ["1-2", "1-1"]
    assert (newest["name"], newest["generation"], newest["state"]) == (second.id.name, 1, "ok")
    assert (newest["position"], oldest["position"]) == ("epoch 3, batch 3", "after epoch 2")
    assert [newest[key] for key in ("kind", "epoch", "batch", "step", "done")] == ["within", 3, 3, 23, False]
    assert newest["age_seconds"] == pytest.approx(DAY, abs=60)
    assert oldest["age_seconds"] == pytest.approx(2 * DAY, abs=60)
    shared = {blob.path for blob in first.blobs} & {blob.path for blob in second.blobs}
    assert shared
    for row, manifest in ((oldest, first), (newest, second)):
        assert row["freed_bytes"] == sum(blob.size for blob in manifest.blobs if blob.path not in shared)
        assert row["bytes"] > 8000
    assert (newest["verdict"], newest["inexact_reasons"]) == ("exact", [])
    assert found["bytes"] == sum(blob.size for blob in {*first.blobs, *second.blobs})


def test_what_two_backups_share_is_freed_with_none_of_them(tmp_path: Path) -> None:
    store = begin(tmp_path)
    same = {"variables/w@0": np.arange(50)}
    commit(store, 2, same, known=commit(store, 1, same))
    newest, oldest = kdc_json("ls", tmp_path)["commits"]
    assert newest["freed_bytes"] == oldest["freed_bytes"] == 0 < newest["bytes"]


def test_what_keeps_a_backup_is_what_the_newest_one_says(tmp_path: Path) -> None:
    store = begin(tmp_path)
    commit(store, 1, position=Position("between", 1, 0, 9))
    commit(store, 2, position=Position("between", 2, 0, 18), kept={"max_to_keep": 9})
    commit(store, 3, position=Position("between", 3, 0, 27), kept={"max_to_keep": 1, "keep_every": 2})
    rows = kdc_json("ls", tmp_path)["commits"]
    assert [row["kept_by"] for row in rows] == [["max_to_keep"], ["keep_every"], []]


def test_the_table_is_made_for_people(tmp_path: Path) -> None:
    store = begin(tmp_path)
    commit(store, 1, age=3 * 3600)
    commit(store, 2, age=90 * 60, position=Position("end", 3, 0, 1234))
    result = kdc("ls", tmp_path)
    heading, _, newest, oldest = result.stdout.rstrip().splitlines()
    assert heading.startswith(f"{tmp_path}: 2 backups, ")
    assert " ".join(newest.split()).startswith("1-2 end, after epoch 3 1,234 1.5 h ")
    assert newest.split()[-3:] == ["exact", "-", "done"]
    assert " ".join(oldest.split()).startswith("1-1 epoch 1, batch 1 1 3.0 h ")
    assert newest.index("1.5 h") + len("1.5 h") == oldest.index("3.0 h") + len("3.0 h")


def test_damaged_manifests_are_shown_as_damaged_next_to_intact_ones(url: str) -> None:
    store = begin(url)
    bad, lost, _good = (commit(store, sequence) for sequence in (1, 2, 3))
    rewrite(url, bad.id.name, b'{"digest":')
    rewrite(url, lost.blobs[0].path, None)
    rows = kdc_json("ls", url, code=1)["commits"]
    assert [row["state"] for row in rows] == ["ok", "damaged", "damaged"]
    assert lost.blobs[0].path in rows[1]["problem"]
    assert rows[1]["position"] == "epoch 1, batch 2"
    assert bad.id.name in rows[2]["problem"]
    result = kdc("ls", url)
    assert result.exit_code == 1
    assert [line.split()[-1] for line in result.stdout.splitlines()[2:5]] == ["-", "damaged", "damaged"]


def test_a_backup_of_a_newer_version_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = begin(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(manifest_format, "MANIFEST", dataclasses.replace(manifest_format.MANIFEST, version=99))
        commit(store, 1)
    (row,) = kdc_json("ls", tmp_path)["commits"]
    assert row["state"] == "too new"
    assert "Install a newer" in row["problem"]
    result = kdc("show", tmp_path)
    assert "Install a newer" in result.stderr


def test_what_makes_a_resume_inexact_is_reported(tmp_path: Path) -> None:
    store = begin(tmp_path)
    two = [{"variables/w@0": np.zeros(3)}, {"variables/w@0": np.ones(3)}]
    not_saved = {"unsaved/findings": [["variables-not-saved", "", ["mine/x"], ""]]}
    commit(store, 1, two, states=(not_saved, {"engine/findings": [["local-state", "worker 1", [], ""]]}))
    commit(store, 2, states=({"input/findings": UNSEEDED},))
    unseeded, dropped = kdc_json("ls", tmp_path)["commits"]
    assert (unseeded["verdict"], dropped["verdict"]) == ("not exact", "not exact")
    assert any("shuffle(9)" in reason for reason in unseeded["inexact_reasons"])
    assert any("mine/x" in reason for reason in dropped["inexact_reasons"])
    assert any("worker 1's local state was too large" in reason for reason in dropped["inexact_reasons"])
    text = kdc("ls", tmp_path).stdout
    assert "not exact" in text
    assert "  1-2: Dataset.shuffle(9) of the input has no seed" in text


def test_a_finding_that_is_not_known_makes_a_resume_not_exact(tmp_path: Path) -> None:
    commit(begin(tmp_path), 1, states=({"input/findings": [["mood", "input", ["bad"], ""]]},))
    (row,) = kdc_json("ls", tmp_path)["commits"]
    assert row["verdict"] == "not exact"
    assert row["inexact_reasons"] == [
        "a newer version of keras-dist-callbacks found what this one does not know (mood); install that version"
    ]


def test_a_finding_of_another_form_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedBackupError, match="input/findings"):  # what is written is checked as what is read
        commit(begin(tmp_path), 1, states=({"input/findings": [["unseeded-large", "input"]]},))


def test_what_several_backups_have_in_common_is_said_once(tmp_path: Path) -> None:
    store = begin(tmp_path)
    for step in range(1, 6):
        commit(store, step, states=({"input/findings": UNSEEDED},))
    commit(store, 6)
    text = kdc("ls", tmp_path).stdout
    assert text.count("has no seed") == 1
    assert "  1-5, 1-4, 1-3, 1-2, and 1 more: Dataset.shuffle(9) of the input has no seed" in text


def test_checkpoints_are_listed_by_their_records(url: str, tmp_path: Path) -> None:
    publish(url, "a-01.keras", 1, tmp_path, monitor="loss", value=0.5)
    publish(url, "b-02.weights.h5", 2, tmp_path, monitor="auc", value=0.75, mode="max", max_to_keep=1)
    rewrite(url, "foreign.keras", b"from elsewhere")
    found = kdc_json("ls", url)
    assert [(row["name"], row["kind"], row["epoch"], row["step"]) for row in found["checkpoints"]] == [
        ("b-02.weights.h5", "weights", 2, 20),
        ("a-01.keras", "model", 1, 10),
    ]
    assert [(row["monitor"], row["value"], row["is_best"], row["kept_by"]) for row in found["checkpoints"]] == [
        ("auc", 0.75, True, ["max_to_keep"]),
        ("loss", 0.5, False, ["all"]),
    ]
    assert found["checkpoints"][0]["bytes"] == Storage.open(url).size("b-02.weights.h5")
    assert found["without_record"] == ["foreign.keras"]
    text = kdc("ls", url).stdout
    assert "auc 0.75 (best)" in text
    assert "max_to_keep" in text
    assert "foreign.keras without a record: another program wrote or rewrote it" in text


def test_backups_and_checkpoints_in_one_directory_are_both_listed(tmp_path: Path) -> None:
    commit(begin(tmp_path / "d"), 1)
    publish(tmp_path / "d", "a.keras", 1, tmp_path)
    flip(tmp_path / "d", "a.keras", -100)
    found = kdc_json("ls", tmp_path / "d", code=1)
    assert len(found["commits"]) == 1
    (problem,) = found["checkpoint_problems"]
    assert (problem["name"], problem["kind"]) == ("a.keras", "damaged")
    assert "a.keras does not match its seal" in problem["error"]


def test_what_a_run_did_that_left_no_backup_is_shown(tmp_path: Path) -> None:
    store = begin(tmp_path)
    said = kdc("ls", tmp_path)
    assert (said.exit_code, said.stdout) == (0, f"{tmp_path}: a run started here, but committed no backup\n")
    rewrite(tmp_path, commit(store, 1).id.name, None)
    assert "a run has committed here, but no manifest is left" in kdc("ls", tmp_path).stdout


# --- show


def test_everything_a_manifest_holds_is_shown(url: str) -> None:
    store = begin(url)
    chief = {
        "variables/dense/kernel@0": np.zeros((2, 3), "float32"),
        "variables/dense/kernel@1": np.ones((2, 3), "float32"),
        "variables/half@0": np.zeros(4, ml_dtypes.bfloat16),
        "callbacks/Swap/0": np.zeros(5),
    }
    state = {
        "callbacks/EarlyStopping(monitor=loss)": {"wait": 1},
        "progress/fit": {"number": 0, "first": 0, "epochs": 5, "initial_epoch": 0},
        "progress/stop_training": False,
        "objects/changed": {"callback Watcher()/losses": [[0.5], ""], "callback Watcher()/cuts": [1, ""]},
    }
    workers = [chief, {"variables/half@0": np.ones(4, ml_dtypes.bfloat16)}]
    commit(store, 1, workers, states=(state, {}), strategy="_MultiWorker")
    found = kdc_json("show", url)
    assert found["commit"]["commit"] == "1-1"
    assert found["versions"] == {"python": "3.11", "keras": "3.15", "tensorflow": "2.21"}
    assert found["run"]["strategy"] == "_MultiWorker"
    assert found["callbacks"] == ["EarlyStopping(monitor=loss)"]
    assert found["python_state"] == ["callback Watcher()"]
    rows = [(r["name"], r["kind"], r["dtype"], r["shape"], r["bytes"], r["values"]) for r in found["tensors"]]
    assert rows == [
        ("dense/kernel", "variables", "float32", [2, 3], 24, 2),
        ("half", "variables", "bfloat16", [4], 8, 2),
        ("callbacks/Swap/0", "callbacks", "float64", [5], 40, 1),
    ]
    text = " ".join(kdc("show", url).stdout.split())
    assert "dense/kernel float32 2 x 3 24 B 2 half bfloat16 4 8 B 2" in text


def test_a_backup_is_chosen_by_its_short_or_full_name(tmp_path: Path) -> None:
    store = begin(tmp_path)
    first, second = commit(store, 1), commit(store, 2)
    names = {"latest": second, "1-1": first, first.id.name: first, first.id.name[8:-5]: first, "1-2": second}
    for name, wanted in names.items():
        assert kdc_json("show", tmp_path, "--commit", name)["commit"]["name"] == wanted.id.name
    assert kdc_json("show", tmp_path)["commit"]["name"] == second.id.name
    result = kdc("show", tmp_path, "--commit", "9-9")
    assert result.exit_code == 2
    assert "'9-9'; the newest: 1-2, 1-1" in result.stderr


def test_a_damaged_backup_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    manifest = commit(begin(tmp_path), 1)
    rewrite(tmp_path, manifest.id.name, b"not json")
    result = kdc("show", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert manifest.id.name in result.stderr


def test_thousands_of_tensors_are_cut_unless_all_are_wanted(tmp_path: Path) -> None:
    commit(begin(tmp_path), 1, {f"variables/v{i}@0": np.array(i) for i in range(1042)})
    text = kdc("show", tmp_path).stdout
    assert "and 1,002 more: add --all" in text
    assert " v1041 " not in text
    assert " v1041 " in kdc("show", tmp_path, "--all").stdout


# --- narrow terminals, damaged checkpoints, places that hold nothing


def narrow_kdc(*arguments: object, columns: int = 40) -> list[str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), prog_name="kdc", env={"COLUMNS": str(columns)})
    return result.stdout.splitlines()


def test_on_a_narrow_terminal_every_result_stays_readable(tmp_path: Path) -> None:
    store = begin(tmp_path)
    bad = commit(store, 1)
    commit(store, 2)
    rewrite(tmp_path, bad.blobs[0].path, None)
    publish(tmp_path, "model-0001.keras", 1, tmp_path)
    verified = narrow_kdc("verify", tmp_path)
    assert [line.split()[1] for line in verified if line.startswith(("  commits/0 ", "  model"))] == [
        "intact", "damaged", "intact",
    ]  # fmt: skip
    listed = narrow_kdc("ls", tmp_path)
    assert any("1-2" in line and "exact" in line for line in listed)
    assert any("1-1" in line and "exact" in line and "damaged" in line for line in listed)
    assert any("model-0001.keras" in line for line in listed)


def test_a_truncated_checkpoint_is_reported(url: str, tmp_path: Path) -> None:
    for epoch in (1, 2):
        publish(url, f"m-{epoch}.keras", epoch, tmp_path, template="m-{epoch}.keras")
    rewrite(url, "m-1.keras", b"model")
    found = kdc_json("ls", url, code=1)
    assert [row["name"] for row in found["checkpoints"]] == ["m-2.keras"]
    (problem,) = found["checkpoint_problems"]
    assert (problem["name"], problem["kind"], found["without_record"]) == ("m-1.keras", "incomplete", [])
    result = kdc("ls", url)
    assert result.exit_code == 1
    assert "m-1.keras has no record: it is incomplete" in " ".join(result.stdout.split())


def test_a_copy_is_listed_with_the_name_that_it_was_published_under(tmp_path: Path) -> None:
    publish(tmp_path / "d", "a.keras", 1, tmp_path)
    shutil.copy(tmp_path / "d" / "a.keras", tmp_path / "d" / "release.keras")
    found = kdc_json("ls", tmp_path / "d")["checkpoints"]
    assert [row["name"] for row in found] == ["a.keras", "release.keras"]
    assert {row["published_name"] for row in found} == {"a.keras"}
    assert "release.keras: a copy of a.keras" in kdc("ls", tmp_path / "d").stdout


@pytest.mark.parametrize("command", [("ls",), ("show",), ("verify",), ("prune", "--keep", "1")], ids=lambda c: c[0])
def test_a_place_that_holds_nothing_is_explained(command: tuple[str, ...], tmp_path: Path) -> None:
    commit(begin(tmp_path / "run" / "backup"), 1)
    publish(tmp_path / "run" / "checkpoints", "m.keras", 1, tmp_path)
    (tmp_path / "empty").mkdir()
    file = tmp_path / "run" / "checkpoints" / "m.keras"

    def error(place: Path) -> str:
        result = kdc(command[0], place, *command[1:])
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        return str(line)

    assert "this directory does not exist" in error(tmp_path / "missing")
    assert "give the backup_dir or the directory of checkpoints" in error(tmp_path / "empty")
    assert f"use {tmp_path}/run/backup, {tmp_path}/run/checkpoints" in error(tmp_path / "run")
    if command[0] != "show":
        assert f"is a file: give its directory, {file.parent}; `kdc show {file}`" in error(file)


def test_the_usual_directories_are_looked_for_in_a_store(url: str) -> None:
    commit(begin(f"{url}/backup"), 1)
    assert "a directory below it: use " in kdc("ls", url).stderr
