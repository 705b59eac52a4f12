"""What happens to backups when files, stores or other runs misbehave."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupError, DamagedBackupError, FencedError
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits


def _newest_blob(backup: Path) -> Path:
    return max(backup.glob("blobs/*/*.safetensors"), key=lambda p: p.stat().st_mtime_ns)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_damaged_newest_backup_is_quarantined_and_the_one_before_taken(
    tmp_path: Path, uninterrupted: Any, damage: str
) -> None:
    tiny.interrupt(tmp_path, 1, 3)
    blob = _newest_blob(tmp_path)
    content = bytearray(blob.read_bytes())
    if damage == "flip":
        content[-5] ^= 1
        blob.write_bytes(content)
    elif damage == "truncate":
        blob.write_bytes(content[: len(content) // 2])
    else:
        blob.unlink()
    model, steps = tiny.model(), tiny.CountSteps()
    with pytest.warns(RuntimeWarning, match=f"damaged backup was quarantined.*{blob.name}"):
        tiny.fit(model, tmp_path, [steps])
    assert steps.trained[0] == (1, 2)
    tiny.assert_same(model, uninterrupted[0])


def test_without_any_intact_backup_there_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 3)
    for manifest in tmp_path.glob("commits/*.json"):
        manifest.write_bytes(manifest.read_bytes()[:-20])
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(DamagedBackupError, match="none of the 2 backups"):
        tiny.fit(tiny.model(), tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_an_earlier_run_that_committed_nothing_means_a_fresh_start(
    tmp_path: Path, uninterrupted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.interrupt(tmp_path, 0, 0)
    model = tiny.model()
    tiny.fit(model, tmp_path)
    assert "committed no backup; starting from the beginning" in capsys.readouterr().out
    tiny.assert_same(model, uninterrupted[0])


def test_a_newer_run_on_the_directory_ends_the_older_one(tmp_path: Path) -> None:
    class StartAnother(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                from keras_dist_callbacks.backups.store import BackupStore
                from keras_dist_callbacks.storage.storage import Storage

                BackupStore(Storage.open(tmp_path)).claim({})

    with pytest.raises(FencedError, match="taken over by a newer run") as caught:
        tiny.fit(tiny.model(), tmp_path, [StartAnother()], epochs=10)
    assert not any("a restart" in note for note in caught.value.__notes__), "that is up to the newer run"


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_a_backup_directory_that_vanishes_ends_the_run_and_no_backup_is_promised(tmp_path: Path, how: str) -> None:
    class Vanish(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                shared_writer().wait()
                (tmp_path / "backup").rename(tmp_path / "other")
                if how == "deleted":
                    shutil.rmtree(tmp_path / "other")

    with pytest.raises(FencedError, match="backup was deleted or renamed during the run") as caught:
        tiny.fit(tiny.model(), tmp_path / "backup", [Vanish()], epochs=10)
    (cost,) = [note for note in caught.value.__notes__ if "a restart" in note]
    assert cost == "no backup was committed; a restart starts from the beginning"
    assert "newer run (" not in str(caught.value)


def test_weights_in_a_backup_load_with_plain_safetensors(tmp_path: Path) -> None:
    keep = {"delete_checkpoint": False}
    model = tiny.model()
    tiny.fit(model, tmp_path, options=keep)
    blobs = sorted(tmp_path.glob("blobs/*/*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    found = {k: v for path in blobs for k, v in load_file(path).items()}
    kernel = model.layers[0].kernel
    np.testing.assert_array_equal(found[f"variables/{kernel.path}@0"], kernel.numpy())


def test_unchanged_tensors_are_not_written_again(tmp_path: Path) -> None:
    def model() -> keras.Model:
        built = tiny.model(units=5000)
        built.layers[0].trainable = False
        built.compile(keras.optimizers.SGD(0.01), "binary_crossentropy")
        return built

    tiny.interrupt(tmp_path, 1, 0, built=model())
    sizes = sorted(p.stat().st_size for p in tmp_path.glob("blobs/*/*.safetensors"))
    assert len(sizes) == 3, "the first save's blob and those of the two kept commits"
    frozen = 6 * 5000 * 4 + 5000 * 4
    assert sizes[-1] > frozen
    assert sizes[0] < sizes[-1] - frozen + 1000


def test_double_checkpoint_lets_successive_backups_share_no_file(tmp_path: Path) -> None:
    from keras_dist_callbacks.backups.store import BackupStore
    from keras_dist_callbacks.storage.storage import Storage

    tiny.interrupt(tmp_path, 1, 3, options={"double_checkpoint": True})
    store = BackupStore(Storage.open(tmp_path))
    older, newer = (store.manifest(commit) for commit in store.commits())
    assert {b.path for b in older.blobs}.isdisjoint({b.path for b in newer.blobs})


def test_bfloat16_and_other_types_survive(tmp_path: Path) -> None:
    class Typed(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            for dtype in ("bfloat16", "float16", "int8", "bool", "int64"):
                self.add_weight(name=dtype, shape=(3,), dtype=dtype, initializer="ones", trainable=False)
            self.scale = self.add_weight(name="scale", shape=(), dtype="float32", initializer="ones")

        def call(self, x: Any) -> Any:
            return x * self.scale

    def make() -> keras.Model:
        return tiny.compiled(lambda: tiny.sequential(Typed(), keras.layers.Dense(1)))

    tiny.resumes(tmp_path, make, at=(1, 3), expects=None)


def test_a_failed_backup_warns_and_training_continues(tmp_path: Path, uninterrupted: Any) -> None:
    backup = tmp_path / "backup"

    class BreakTheStore(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            blobs = backup / "blobs"
            shared_writer().wait()
            if epoch == 1:
                blobs.rename(tmp_path / "aside")
                blobs.write_text("in the way")
            if epoch == 2:
                blobs.unlink()
                (tmp_path / "aside").rename(blobs)

    model = tiny.model()
    with pytest.warns(RuntimeWarning, match=r"the backup at .* failed and training continues: cannot create .*blobs"):
        tiny.fit(model, backup, [BreakTheStore()], options={"delete_checkpoint": False})
    tiny.assert_same(model, uninterrupted[0])
    store = BackupStore(Storage.open(backup))
    info = store.manifest(store.commits()[-1]).info
    assert [one["text"][:10] for one in info["warnings"]] == ["the backup"] * 3, (
        "the last ones are known to `kdc watch`"
    )
    assert 0 < info["seconds"] < time.time() - info["begun"] + 60


def test_backups_that_keep_failing_end_training_with_the_reason(tmp_path: Path) -> None:
    backup = tmp_path / "backup"

    class BreakTheStore(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            shared_writer().wait()
            if epoch == 1:
                (backup / "blobs").rename(tmp_path / "aside")
                (backup / "blobs").write_text("in the way")

    with (
        pytest.warns(RuntimeWarning, match="training continues"),
        pytest.raises(BackupError, match="3 backups failed in a row, the last one: cannot create"),
    ):
        tiny.fit(tiny.model(), backup, [BreakTheStore()], options={"max_failed_saves": 3})


def test_a_backup_for_which_there_is_no_memory_fails_and_training_continues(
    tmp_path: Path, uninterrupted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keras_dist_callbacks.run.engine import committer

    real, calls = committer.fingerprints, []

    def run_out(tensors: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("no memory")
        return real(tensors)

    monkeypatch.setattr(committer, "fingerprints", run_out)
    model = tiny.model()
    with pytest.warns(RuntimeWarning, match="failed and training continues: no memory"):
        tiny.fit(model, tmp_path)
    tiny.assert_same(model, uninterrupted[0])


def test_two_successive_backups_share_no_file_also_after_one_whose_fate_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keras_dist_callbacks.backups.store import BackupStore
    from keras_dist_callbacks.base.errors import StorageError
    from keras_dist_callbacks.run.engine.committer import EngineOptions
    from keras_dist_callbacks.storage.storage import Storage
    from tests.support.recording import RecordingStore, Run

    monkeypatch.setattr("keras_dist_callbacks.backups.packing._WORTH_KEEPING", 0.0)  # any blob is referred to
    run = Run(RecordingStore(), options=EngineOptions(double_checkpoint=True))
    run.begin()
    run.save(3)
    real = Storage.read

    def fail(storage: Storage, name: str, *span: Any) -> bytes:
        found = real(storage, name, *span)
        if name.startswith("commits/"):
            raise StorageError("no answer")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "read", fail)
        with pytest.warns(RuntimeWarning, match="training continues"):
            run.save()
    run.save()
    store = BackupStore(run.store.storage())
    blobs = [{blob.path for blob in store.manifest(commit).blobs} for commit in store.commits()]
    assert len(blobs) >= 2
    assert all(one.isdisjoint(two) for one, two in itertools.pairwise(blobs))
