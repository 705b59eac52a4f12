"""`kdc show` of a checkpoint: its record, and whether its content is intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_dist_callbacks.checkpoints.files import split_filepath
from tests.support import cli_backups
from tests.support.cli_backups import begin, commit, flip, kdc, kdc_json, publish, rewrite
from tests.support.hostile import EVIL, obeyed_in

url = cli_backups.url


@pytest.fixture
def two(url: str, tmp_path: Path) -> str:
    """A directory with two checkpoints."""
    for epoch in (1, 2):
        fields = {"monitor": "loss", "value": 1 / epoch, "mode": "min", "best_only": True}
        publish(url, f"{epoch}.keras", epoch, tmp_path, template="{epoch}.keras", **fields)
    return url


def test_the_newest_checkpoint_is_shown_with_its_record(two: str) -> None:
    found = kdc_json("show", two)
    row = found["checkpoint"]
    assert (row["name"], row["kind"], row["epoch"], row["step"]) == ("2.keras", "model", 2, 20)
    assert (row["monitor"], row["best_only"], row["value"], row["is_best"]) == ("loss", True, 0.5, True)
    assert (found["state"], found["problem"], row["template"]) == ("intact", None, "{epoch}.keras")
    assert row == kdc_json("ls", two)["checkpoints"][0]
    assert 0 <= found["age_seconds"] < 60
    text = kdc("show", two).stdout
    for said in ("2 epochs finished (step 20)", "intact", "the complete model", "loss 0.5 (best)", "{epoch}.keras"):
        assert said in text


@pytest.mark.parametrize("how", ["commit", "path"])
def test_one_is_shown_by_its_name(url: str, how: str, tmp_path: Path) -> None:
    for epoch in (1, 2):
        publish(url, f"{epoch}.weights.h5", epoch, tmp_path)
    place = f"{url.rstrip('/')}/1.weights.h5"
    found = kdc_json("show", place) if how == "path" else kdc_json("show", url, "--commit", "1.weights.h5")
    assert (found["checkpoint"]["name"], found["checkpoint"]["kind"]) == ("1.weights.h5", "weights")
    assert found["url"] == split_filepath(place)[0]


def test_a_backup_goes_before_and_a_name_before_that(two: str) -> None:
    commit(begin(two), 1)
    assert kdc_json("show", two)["commit"]["commit"] == "1-1"
    assert kdc_json("show", two, "--commit", "2.keras")["checkpoint"]["name"] == "2.keras"


def test_what_is_damaged_is_shown_as_that(two: str) -> None:
    flip(two, "2.keras", 40)
    found = kdc_json("show", two, code=1)
    (verified,) = [one for one in kdc_json("verify", two, code=1)["verdicts"] if one["state"] == "damaged"]
    assert (found["state"], found["problem"]) == ("damaged", verified["problem"])
    assert "differs from the digest" in found["problem"]
    assert "2.keras" in kdc("show", two).stdout
    rewrite(two, "1.keras", None)
    said = kdc("show", two, "--commit", "1.keras")
    assert (said.exit_code, "no checkpoint with a record is named '1.keras'" in said.stderr) == (2, True)


def test_a_damaged_newer_one_is_reported_with_the_one_that_is_shown(two: str) -> None:
    flip(two, "2.keras", -100)
    found = kdc_json("show", two, code=1)
    assert (found["checkpoint"]["name"], found["state"]) == ("1.keras", "intact")
    assert "2.keras does not match its seal" in found["others"][0]["error"]
    assert kdc_json("show", two, "--commit", "1.keras")["others"] == []
    said = kdc("show", two, "--commit", "2.keras")
    assert (said.exit_code, "2.keras does not match its seal" in said.stderr) == (1, True)


def test_a_missing_name_is_reported_with_the_existing_ones(url: str, tmp_path: Path) -> None:
    assert kdc("show", url).exit_code == 2
    rewrite(url, "foreign.keras", b"from elsewhere")
    said = kdc("show", url, "--commit", "foreign.keras")
    assert (said.exit_code, "no checkpoint with a record is named 'foreign.keras'" in said.stderr) == (2, True)
    publish(url, "a.keras", 1, tmp_path)
    assert "the newest: a.keras" in kdc("show", url, "--commit", "foreign.keras").stderr


def test_no_text_in_a_record_is_interpreted_by_the_terminal(tmp_path: Path) -> None:
    publish(tmp_path / "d", "x.keras", 1, tmp_path, monitor=EVIL, value=1.0)
    said = kdc("show", tmp_path / "d")
    assert said.exit_code == 0
    assert "[red]x" in said.stdout
    assert obeyed_in(said.stdout) == []
