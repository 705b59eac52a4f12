"""SidecarEvaluator on backups, which stay those of their run, and on every store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.callback_helpers import ignore_keras_warnings, scalars
from tests.support.cli_backups import begin, commit
from tests.support.stores.fixtures import Place

pytestmark = [pytest.mark.slow, ignore_keras_warnings]

QUICK = {"verbose": 0, "poll_seconds": 0.01, "rerun_seconds": 0}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The backups of a training that has ended and keeps them."""
    tiny.fit(tiny.model(), tmp_path / "backup", save_freq=2, options={"delete_checkpoint": False})
    return tmp_path / "backup"


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_backups_are_evaluated_up_to_that_of_the_end_and_stay_as_they_are(kept: Path, tmp_path: Path) -> None:
    before = everything(kept)
    model, log = tiny.model(), tmp_path / "tb"
    results = kdc.SidecarEvaluator(model, tiny.data(), kept, log_dir=log, **QUICK).start()
    assert [one.step for one in results] == [14, 15]
    assert results[-1].metrics == pytest.approx(
        kdc.load_backup(kept, tiny.model(clear=False)).evaluate(*tiny.data(), verbose=0, return_dict=True)
    )
    assert [step for step, _ in scalars(log / "evaluator")["evaluation_loss_vs_iterations"]] == [14, 15]
    assert everything(kept) == before


def test_it_continues_while_the_newest_backup_is_not_that_of_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.interrupt(tmp_path / "backup", 1, 2)
    options = {**QUICK, "timeout": 0.05, "verbose": 1}
    results = kdc.SidecarEvaluator(tiny.model(), tiny.data(), tmp_path / "backup", **options).start()
    assert results[-1].step == 7
    assert "no new checkpoint within 0.05 s" in capsys.readouterr().out


def test_it_ends_when_the_backups_are_gone_and_so_does_one_that_is_started_then(kept: Path) -> None:
    class Delete(keras.callbacks.Callback):
        def on_test_end(self, logs: Any = None) -> None:
            shutil.rmtree(kept, ignore_errors=True)

    first = kdc.SidecarEvaluator(tiny.model(), tiny.data(), kept, callbacks=[Delete()], **QUICK).start()
    assert [one.step for one in first] == [14]
    assert kdc.SidecarEvaluator(tiny.model(), tiny.data(), kept, **QUICK).start() == first


def test_a_damaged_backup_is_skipped_with_a_warning(kept: Path) -> None:
    blob = next(path for path in sorted((kept / "blobs").rglob("*")) if path.is_file())
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.warns(UserWarning, match=r"damaged checkpoint is skipped: .*differs from"):
        results = kdc.SidecarEvaluator(tiny.model(), tiny.data(), kept, **QUICK).start()
    assert len(results) <= 1


def test_without_a_model_the_architecture_of_the_backup_is_taken(kept: Path, tmp_path: Path) -> None:
    wanted = kdc.SidecarEvaluator(tiny.model(), tiny.data(), kept, state_dir=tmp_path / "with", **QUICK).start()
    found = kdc.SidecarEvaluator(None, tiny.data(), kept, state_dir=tmp_path / "without", **QUICK).start()
    assert [(one.step, one.metrics) for one in found] == [(one.step, one.metrics) for one in wanted]
    assert len(found) == 2


def test_a_backup_without_an_architecture_needs_a_model(tmp_path: Path) -> None:
    commit(begin(tmp_path / "backup"), 1)
    with pytest.raises(ConfigError, match=r"holds no architecture: .*\. Give SidecarEvaluator a compiled model"):
        kdc.SidecarEvaluator(None, tiny.data(), tmp_path / "backup", **QUICK).start()


@pytest.mark.in_gate(2)
def test_checkpoints_in_any_store_are_evaluated_and_logged_there(place: Place, tmp_path: Path) -> None:
    saving = kdc.ModelCheckpoint(f"{place.url}/ckpt/{{epoch}}.keras", max_to_keep=2, storage_options=place.options)
    tiny.fit(tiny.model(), None, [saving])
    options = {"log_dir": f"{place.url}/tb", "export_best": f"{place.url}/best/model.keras", **QUICK}
    directory = f"{place.url}/ckpt"
    before = [(file.name, file.size) for file in place.sub("ckpt").open().files()]
    results = kdc.SidecarEvaluator(None, tiny.data(), directory, storage_options=place.options, **options).start()
    assert [one.step for one in results] == [10, 15]
    assert [(file.name, file.size) for file in place.sub("ckpt").open().files()] == before
    logs = Storage.open(f"{place.url}/tb/evaluator", place.options)
    for file in logs.files():
        logs.download(file.name, tmp_path / file.name)
    assert [step for step, _ in scalars(tmp_path)["evaluation_loss_vs_iterations"]] == [10, 15]
    assert kdc.latest_checkpoint(f"{place.url}/best", storage_options=place.options) == f"{place.url}/best/model.keras"
