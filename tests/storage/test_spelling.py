"""Names that cannot be meant are refused where a path is given, and what is there already may be called as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage.storage import Storage
from tests.storage.test_mistyped_urls import PLACES
from tests.support.cli_backups import kdc as run_kdc

NAMES = {
    "runs\\bk": r"write 'runs/bk",
    "C:\\runs\\bk": r"write 'C:/runs/bk",
    "memory://runs\\bk": r"write 'memory://runs/bk",
    "runs/1\n": r"'runs/1\\n.*line break or another control character",
    "memory://runs\t/1": "line break or another control character",
    "n" * 256: r"too long: 256 bytes, but the file system has room for 255",
    "é" * 128: r"too long: 256 bytes, but the file system has room for 255",
    "/".join(["n" * 200] * 21): "too long",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("public", PLACES)
def test_every_public_path_refuses_names_that_cannot_be_meant(
    public: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=NAMES[name]):
        PLACES[public](name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["ls", "doctor", "export"])
def test_commands_refuse_them_too(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_kdc(command, "runs\\bk", *(["out.safetensors"] if command == "export" else []))
    assert result.exit_code == 2
    assert "write 'runs/bk'" in result.stderr


@pytest.mark.parametrize("name", ["DOMAIN\\user", "a\nb", "n" * 255])
def test_a_directory_that_is_there_already_is_called_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for place in (tmp_path / name, tmp_path / name / "run"):
        Storage.open(place).create("x", [b"content"])
        assert (place / "x").read_bytes() == b"content"
    with pytest.raises(ConfigError, match="backslash"):
        Storage.open(tmp_path / name / "run\\1")


def test_a_password_may_have_every_character() -> None:
    Storage.open("memory://user:pass\\word@host/x")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("runs\\m-{epoch}.keras", r"write 'runs/m-\{epoch\}\.keras'"),
        ("runs/m\n-{epoch}.keras", "line break"),
        ("memory://runs/m\\{epoch}.keras", "backslash"),
        ("runs/" + "n" * 212 + ".keras", "too long: 218 bytes, but the file system has room for 217"),
        ("n" * 208 + "{epoch:04d}.keras", "too long: 218 bytes"),
        ("m-{epochs}.keras", r"unknown placeholder \{epochs\}: did you mean \{epoch\}"),
        ("m-{Epoch:02d}.keras", r"did you mean \{epoch\}"),
        ("m-{batchs}.keras", r"did you mean \{batch\}"),
        ("m-{batch}.keras", r"\{batch\} has a value only where save_freq is a number of batches"),
        ("m-{epoch:.2d}.keras", r"no value can be written as \{epoch:.2d\}: Precision not allowed"),
        ("m-{epoch!x}.keras", r"no value can be written as \{epoch!x\}"),
        ("m-{epoch[0]}.keras", r"no value can be written as \{epoch\[0\]\}"),
        ("m-{val_loss:2.f}.keras", r"no value can be written as \{val_loss:2\.f\}"),
        ("m-{:04d}.keras", "need names"),
        ("m-{0.real}.keras", "need names"),
    ],
)
def test_a_file_name_that_cannot_be_written_is_refused_at_once(
    template: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        kdc.ModelCheckpoint(template)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "template",
    [
        "m-{epoch:04d}-{val_loss:.2f}-{my metric:.3g}.keras",
        "m-{match}-{batch_acc}-{epoch_time:.1f}-{patch}.keras",
        "m-{tag:>10}-{tag!r}-{step:06d}-{loss.real:.2f}-{confusion[0]}.keras",
        "m-{epoch:{width}d}-{{epochs}}-{epoch:.1f}.keras",
        "n" * 207 + "{epoch:04d}.keras",
        "memory://runs/" + "n" * 300 + "/" + "n" * 300 + ".keras",
    ],
)
def test_a_placeholder_that_training_may_know_later_is_taken(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kdc.ModelCheckpoint(template)
    kdc.ModelCheckpoint("m-{epoch}-{batch:06d}.keras", save_freq=3)


def test_other_files_are_refused_by_name_before_there_is_anything_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support import tiny

    monkeypatch.chdir(tmp_path)
    for name in ("best\\m.keras", "n" * 300 + ".keras"):
        with pytest.raises(ConfigError, match=r"backslash|too long"):
            kdc.SidecarEvaluator(tiny.model(), tiny.shuffled(), "checkpoints", export_best=name)
    for reads in (kdc.latest_checkpoint, lambda place: kdc.SidecarEvaluator(tiny.model(), tiny.shuffled(), place)):
        with pytest.raises(ConfigError, match="backslash"):
            reads("runs\\m-{epoch}.keras")
