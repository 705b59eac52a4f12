"""URLs that lack a slash, a colon or a bucket are refused, and no local directory is made of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage.redaction import reject_credentials
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.cli_backups import kdc as run_kdc

MISTYPED = {
    "s3:/bucket/x": "use 's3://bucket/x'",
    "S3:/bucket/x": "use 's3://bucket/x'",
    "gs:/bucket": "use 'gs://bucket'",
    "gs//bucket/x": "use 'gs://bucket/x'",
    "s3:bucket/x": "use 's3://bucket/x'",
    "az:container/x": "use 'az://container/x'",
    "simplecache::s3:/bucket/x": "use 'simplecache::s3://bucket/x'",
    "memory:/x": "use 'memory://x'",
    "file:/tmp/x": "use 'file:///tmp/x'",
    "hdfs:/name/x": "use 'hdfs://name/x'",
    "s3://": "names no bucket: use 's3://bucket/path'",
    "az://": "names no container: use 'az://container/path'",
    "s3:///bucket/x": "names no bucket: use 's3://bucket/x'",
    "s3:/": "use 's3://'",
}
ORDINARY = ["C:/backups/x", "c:\\x", "run:3/x", "a:b", "s3", "s3/x", "gs/x", "./s3:/x", "/s3:/x", "memory:x", "s3x://b"]
PLACES: dict[str, Callable[[Any], Any]] = {
    "BackupAndRestore": kdc.BackupAndRestore,
    "ModelCheckpoint": lambda place: kdc.ModelCheckpoint(f"{os.fspath(place)}/m.keras"),
    "TensorBoard": kdc.TensorBoard,
    "TensorBoard's worker_log_dir": lambda place: kdc.TensorBoard("logs", worker_log_dir=place),
    "Checkpointer": lambda place: kdc.Checkpointer(place, model=tiny.model()),
    "make_or_restore_model": lambda place: kdc.make_or_restore_model(tiny.model, place),
    "latest_checkpoint": kdc.latest_checkpoint,
    "load_backup": kdc.load_backup,
    "SidecarEvaluator": lambda place: kdc.SidecarEvaluator(tiny.model(), tiny.shuffled(), place),
    "SidecarEvaluator's log_dir": lambda place: kdc.SidecarEvaluator(tiny.model(), tiny.shuffled(), "x", log_dir=place),
}


@pytest.mark.parametrize("url", MISTYPED)
def test_a_mistyped_url_is_refused_with_the_likely_one(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reject_credentials(url)
    assert MISTYPED[url] in str(refused.value)


@pytest.mark.parametrize("path", ORDINARY)
def test_ordinary_names_with_colons_are_local_paths(path: str) -> None:
    reject_credentials(path)


def test_a_name_with_a_colon_is_written_locally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Storage.open("run:3/x").create("f", [b"1"])
    assert (tmp_path / "run:3" / "x" / "f").read_bytes() == b"1"


@pytest.mark.parametrize("url", ["s3:/key:hidden@bucket/x", "gs//key:hidden@bucket/x", "s3:/bucket/x?sig=hidden"])
def test_the_suggested_url_shows_no_credentials(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reject_credentials(url)
    assert "hidden" not in str(refused.value)
    assert "bucket/x" in str(refused.value)


@pytest.mark.parametrize("public", PLACES)
def test_every_public_path_refuses_mistyped_urls(public: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("s3:/bucket/x", "gs//bucket/x", Path("s3://bucket/x")):
        with pytest.raises(ConfigError, match=r"use '(s3|gs)://bucket/x"):
            PLACES[public](place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["ls", "show", "verify", "prune --keep 1", "doctor", "export"])
def test_every_command_refuses_mistyped_urls(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = command.split()
    result = run_kdc(name, "s3:/bucket/x", *options, *(["out.safetensors"] if name == "export" else []))
    assert result.exit_code == 2
    assert "use 's3://bucket/x'" in result.stderr
    assert list(tmp_path.iterdir()) == []
