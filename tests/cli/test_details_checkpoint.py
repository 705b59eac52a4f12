"""`kdc show` of a checkpoint: what its record and the file itself contain."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import h5py
import keras
import pytest

from keras_dist_callbacks import ModelCheckpoint
from keras_dist_callbacks.checkpoints.files import split_filepath
from tests.support import cli_backups, tiny
from tests.support.callback_helpers import ignore_keras_warnings
from tests.support.cli_backups import begin, commit, flip, kdc, kdc_json, publish, rewrite
from tests.support.hostile import EVIL, obeyed_in

pytestmark = [pytest.mark.slow, ignore_keras_warnings]
url = cli_backups.url


def train(directory: str, **options: object) -> keras.Model:
    suffix = ".weights.h5" if options.get("save_weights_only") else ".keras"
    model = tiny.model()
    tiny.fit(model, None, [ModelCheckpoint(f"{directory}/{{epoch}}{suffix}", monitor="loss", **options)], epochs=2)
    return model


def test_the_newest_checkpoint_is_shown_with_its_record(url: str) -> None:
    model = train(url, save_best_only=True)
    found = kdc_json("show", url)
    row = found["checkpoint"]
    assert (row["name"], row["kind"], row["epoch"], row["step"]) == ("2.keras", "model", 2, 2 * tiny.STEPS)
    assert (row["monitor"], row["best_only"], row["value"] > 0) == ("loss", True, True)
    assert (found["state"], found["problem"], found["template"]) == ("intact", None, "{epoch}.keras")
    assert found["saved_by"]["keras_version"] == keras.__version__
    assert 0 <= found["age_seconds"] < 60
    shapes = sorted(tuple(tensor["shape"]) for tensor in found["tensors"] if tensor["kind"] == "variable")
    assert shapes == sorted(tuple(variable.shape) for variable in model.weights)
    kept = [tuple(variable.shape) for variable in model.optimizer.variables]
    assert sorted(tuple(t["shape"]) for t in found["tensors"] if t["kind"] == "optimizer") == sorted(kept)
    assert found["tensor_bytes"] == sum(tensor["bytes"] for tensor in found["tensors"])
    text = kdc("show", url, "--all").stdout
    for said in ("2 epochs finished (step 10)", "intact", "the complete model", "loss ", "(best)", "{epoch}.keras"):
        assert said in text
    assert all(tensor["name"] in text for tensor in found["tensors"])


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("how", ["commit", "path"])
def test_one_is_shown_by_its_name(url: str, how: str) -> None:
    train(url, save_weights_only=True)
    place = f"{url.rstrip('/')}/1.weights.h5"
    found = kdc_json("show", place) if how == "path" else kdc_json("show", url, "--commit", "1.weights.h5")
    assert (found["checkpoint"]["name"], found["checkpoint"]["epoch"], found["saved_by"]) == ("1.weights.h5", 1, {})
    assert found["url"] == split_filepath(place)[0]
    assert {tensor["kind"] for tensor in found["tensors"]} == {"variable", "optimizer"}


def test_a_backup_goes_before_and_a_name_before_that(tmp_path: Path) -> None:
    commit(begin(tmp_path / "d"), 1)
    train(str(tmp_path / "d"))
    assert kdc_json("show", tmp_path / "d")["commit"]["commit"] == "1-1"
    assert kdc_json("show", tmp_path / "d", "--commit", "2.keras")["checkpoint"]["name"] == "2.keras"


def test_what_is_damaged_is_shown_as_that(url: str) -> None:
    train(url)
    flip(url, "2.keras", 40)
    found = kdc_json("show", url, code=1)
    assert (found["state"], found["tensors"]) == ("damaged", [])
    assert "differs from the digest" in found["problem"]
    assert "2.keras" in kdc("show", url).stdout
    rewrite(url, "1.keras", None)
    said = kdc("show", url, "--commit", "1.keras")
    assert (said.exit_code, "no checkpoint with a record is named '1.keras'" in said.stderr) == (2, True)


def test_a_damaged_newer_one_is_reported_with_the_one_that_is_shown(url: str) -> None:
    train(url)
    flip(url, "2.keras", -100)
    found = kdc_json("show", url, code=1)
    assert (found["checkpoint"]["name"], found["state"]) == ("1.keras", "intact")
    assert "2.keras does not match its seal" in found["others"][0]["error"]
    said = kdc("show", url, "--commit", "2.keras")
    assert (said.exit_code, "2.keras does not match its seal" in said.stderr) == (1, True)


def test_a_missing_name_is_reported_with_the_existing_ones(url: str, tmp_path: Path) -> None:
    assert kdc("show", url).exit_code == 2
    rewrite(url, "foreign.keras", b"from elsewhere")
    said = kdc("show", url, "--commit", "foreign.keras")
    assert (said.exit_code, "no checkpoint with a record is named 'foreign.keras'" in said.stderr) == (2, True)
    publish(url, "a.keras", 1, tmp_path)
    assert "the newest: a.keras" in kdc("show", url, "--commit", "foreign.keras").stderr


def archive(path: Path, metadata: bytes, weights: bytes) -> bytes:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("metadata.json", metadata)
        file.writestr("model.weights.h5", weights)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("metadata", "weights", "said"),
    [(b"{}", b"no HDF5", "is not a file as Keras writes it"), (b"[" * 10**5, b"", "metadata.json")],
)
def test_a_file_that_keras_does_not_write_is_damaged_whatever_its_record_says(
    tmp_path: Path, metadata: bytes, weights: bytes, said: str
) -> None:
    content = archive(tmp_path / "a.zip", metadata, weights)
    cli_backups.publish(tmp_path / "d", "x.keras", 1, tmp_path, content=content)
    found = kdc_json("show", tmp_path / "d", code=1)
    assert said in found["problem"]


def test_no_text_in_a_checkpoint_is_interpreted_by_the_terminal(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset(EVIL.replace("/", "").replace("\0", ""), data=[1.0])
    content = archive(tmp_path / "a.zip", json.dumps({EVIL: EVIL}).encode(), (tmp_path / "w.h5").read_bytes())
    cli_backups.publish(tmp_path / "d", "x.keras", 1, tmp_path, content=content, monitor=EVIL, value=1.0)
    said = kdc("show", tmp_path / "d")
    assert said.exit_code == 0
    assert "[red]x" in said.stdout
    assert obeyed_in(said.stdout) == []
