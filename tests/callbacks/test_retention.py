"""The rules of ModelCheckpoint: which files are written, kept and deleted, after kills too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks import ModelCheckpoint, best_checkpoint
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError, StorageError
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.callback_helpers import SetLoss, fit, ignore_keras_warnings, memory_url, tiny_model
from tests.support.checkpoints import listed
from tests.support.retention_table import ALL, TABLE, VALUES, Given

pytestmark = [
    ignore_keras_warnings,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:ModelCheckpoint saves nothing:UserWarning"),
]


class Values(keras.callbacks.Callback):
    """Replaces what each epoch reports by given values."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        logs.clear()
        if VALUES[epoch] is not None:
            logs["loss"] = VALUES[epoch]


kdc.advanced.register_callback_state(Values, None)


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written to and deleted from any store, as `+1.keras` and `-1.keras`."""
    done: list[str] = []
    replace, delete = Storage.replace, Storage.delete

    def noted_replace(self: Storage, name: str, source: Path) -> None:
        replace(self, name, source)
        if name.endswith(".keras"):
            done.append(f"+{name}")

    def noted_delete(self: Storage, name: str) -> None:
        delete(self, name)
        if name.endswith(".keras"):
            done.append(f"-{name}")

    monkeypatch.setattr(Storage, "replace", noted_replace)
    monkeypatch.setattr(Storage, "delete", noted_delete)
    return done


def saving(directory: Path | str, given: Given) -> ModelCheckpoint:
    rules = dict(zip(("max_to_keep", "keep_best", "keep_every"), given, strict=True))
    return ModelCheckpoint(f"{directory}/{{epoch}}.keras", monitor="loss", **rules)


def epochs_there(directory: Path | str) -> list[int]:
    return sorted(one.record.epoch for one in listed(directory).checkpoints)


def of_epochs(operations: list[str], sign: str) -> list[int]:
    return [int(one[1:].partition(".")[0]) for one in operations if one.startswith(sign)]


@pytest.mark.in_gate(4)
@pytest.mark.parametrize("given", list(TABLE))
def test_which_files_are_written_kept_and_deleted_in_twelve_epochs(given: Given, operations: list[str]) -> None:
    url, (written, kept) = memory_url(), TABLE[given]
    checkpoint = saving(url, given)
    fit(tiny_model(), Values(), checkpoint, epochs=12)
    assert of_epochs(operations, "+") == written
    assert epochs_there(url) == kept
    assert sorted(of_epochs(operations, "-")) == sorted(set(written) - set(kept))
    assert operations[:1] == [f"+{written[0]}.keras"], "deletion comes after a newer file is in place"
    best = min(kept, key=lambda epoch: VALUES[epoch - 1] or math.inf)
    assert checkpoint.best_path == f"{url}/{best}.keras"
    assert best_checkpoint(url, monitor="loss", mode="min") == f"{url}/{best}.keras"


@pytest.mark.in_gate(3)
@pytest.mark.parametrize("epoch", ALL[:-1])
@pytest.mark.parametrize("given", list(TABLE))
def test_a_kill_in_any_epoch_changes_nothing_of_it(
    tmp_path: Path, given: Given, epoch: int, operations: list[str]
) -> None:
    url, (written, kept) = memory_url(), TABLE[given]
    backup = kdc.BackupAndRestore(tmp_path, delete_checkpoint=False, verbose=0)
    tiny.stopped(fit, tiny_model(), Values(), saving(url, given), backup, tiny.StopAt(epoch, 1), epochs=12)
    shared_writer().wait()
    backup = kdc.BackupAndRestore(tmp_path, delete_checkpoint=False, verbose=0)
    fit(tiny_model(), Values(), saving(url, given), backup, epochs=12)
    assert sorted(set(of_epochs(operations, "+"))) == written
    assert epochs_there(url) == kept


def test_start_from_epoch_saves_nothing_before_it(tmp_path: Path) -> None:
    url = memory_url()
    checkpoint = ModelCheckpoint(f"{url}/{{epoch}}.keras", monitor="loss", save_best_only=True, start_from_epoch=2)
    fit(tiny_model(), SetLoss(1.0, 2.0, 5.0, 4.0, 6.0), checkpoint, epochs=5)
    assert epochs_there(url) == [3, 4]
    assert checkpoint.best == 4.0
    fit(tiny_model(), ModelCheckpoint(f"{url}/b-{{epoch}}-{{batch}}.keras", save_freq=2, start_from_epoch=1), epochs=2)
    assert [one.name for one in listed(url).checkpoints if one.name.startswith("b-")] == ["b-2-3.keras", "b-2-1.keras"]


def test_the_best_of_an_earlier_run_are_not_forgotten_and_nothing_worse_is_written(operations: list[str]) -> None:
    url = memory_url()
    fit(tiny_model(), SetLoss(3.0, 1.0), ModelCheckpoint(f"{url}/a-{{epoch}}.keras", "loss", keep_best=1), epochs=2)
    again = ModelCheckpoint(f"{url}/a-{{epoch}}.keras", "loss", keep_best=1)
    with pytest.warns(RuntimeWarning, match="saved nothing in this fit.* give each training a directory of its own"):
        fit(tiny_model(), SetLoss(3.0, 2.0), again, epochs=2)
    assert operations == ["+a-1.keras", "+a-2.keras", "-a-1.keras"]
    fit(tiny_model(), SetLoss(3.0, 2.0, 0.5), again, epochs=3)
    assert operations[3:] == ["+a-3.keras", "-a-2.keras"]


def test_one_name_holds_the_best_of_all_epochs() -> None:
    url = memory_url()
    fit(tiny_model(), SetLoss(3.0, 1.0, 2.0), ModelCheckpoint(f"{url}/best.keras", "loss", keep_best=1), epochs=3)
    assert epochs_there(url) == [2]


def test_what_could_not_be_deleted_is_one_warning_and_is_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    url, delete, refused = memory_url(), Storage.delete, []

    def refuse_at_first(self: Storage, name: str) -> None:
        if name == "1.keras" and len(refused) < 2:
            refused.append(name)
            raise StorageError("it is locked")
        delete(self, name)

    monkeypatch.setattr(Storage, "delete", refuse_at_first)
    with pytest.warns(RuntimeWarning, match="old files cannot be deleted.*it is locked") as caught:
        fit(tiny_model(), ModelCheckpoint(f"{url}/{{epoch}}.keras", max_to_keep=1), epochs=4)
    assert len([one for one in caught if "deleted" in str(one.message)]) == 1
    assert epochs_there(url) == [4]


def test_a_fit_with_no_epoch_left_deletes_what_a_killed_one_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    url = memory_url()

    def run(**arguments: Any) -> None:
        model = tiny_model()
        model.compile("sgd", "mse", metrics=["mae"])
        fit(model, ModelCheckpoint(f"{url}/{{epoch}}.keras", "mae", max_to_keep=2), epochs=4, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", lambda self, name: None)
        run()
    assert epochs_there(url) == [1, 2, 3, 4]
    run(initial_epoch=4)
    assert epochs_there(url) == [3, 4]


@pytest.mark.parametrize(
    ("template", "rules", "missing"),
    [
        ("m.keras", {"max_to_keep": 2}, "epoch"),
        ("m.keras", {"max_to_keep": 1, "keep_best": 1}, "epoch"),
        ("m.keras", {"keep_every": 5}, "epoch"),
        ("{val_loss:.2f}.keras", {"keep_best": 2}, "epoch"),
        ("{epoch:.0e}.keras", {"keep_best": 2}, "epoch"),
        ("{epoch}.keras", {"keep_best": 2, "save_freq": 10}, "batch"),
        ("{batch}.keras", {"keep_best": 2, "save_freq": 10}, "epoch"),
        ("m.keras", {}, None),
        ("m.keras", {"keep_best": 1}, None),
        ("m.keras", {"max_to_keep": 1}, None),
        ("{epoch:03d}.keras", {"max_to_keep": 1, "keep_best": 1, "keep_every": 2}, None),
        ("{epoch}-{batch}.keras", {"keep_every": 2, "save_freq": 10}, None),
    ],
)
def test_a_template_that_may_give_two_kept_files_one_name_is_an_error(
    template: str, rules: dict[str, Any], missing: str | None
) -> None:
    if missing is None:
        ModelCheckpoint(template, **rules)
        return
    with pytest.raises(ConfigError, match=rf"one name: add \{{{missing}:04d\}}"):
        ModelCheckpoint(template, **rules)


def test_the_best_checkpoint_is_an_intact_one(tmp_path: Path) -> None:
    def best(mode: Any = "min", monitor: str = "loss", place: str = "") -> str | None:
        return best_checkpoint(tmp_path / place, monitor=monitor, mode=mode)

    assert best() is None
    fit(tiny_model(), SetLoss(3.0, 1.0, 1.0), ModelCheckpoint(tmp_path / "{epoch}.keras", "loss"), epochs=3)
    fit(tiny_model(), SetLoss(0.5), ModelCheckpoint(tmp_path / "other.keras", "loss"))
    assert (best(), best("max")) == (str(tmp_path / "other.keras"), str(tmp_path / "1.keras"))
    assert best(place="{epoch}.keras") == str(tmp_path / "2.keras"), "of equal values the earlier one"
    for name in ("other.keras", "2.keras"):
        content = bytearray((tmp_path / name).read_bytes())
        content[200] ^= 1
        (tmp_path / name).write_bytes(bytes(content))
    with pytest.warns(UserWarning, match=r"2.keras.*content differs.*3.keras is used"):
        assert best() == str(tmp_path / "3.keras")
    with pytest.raises(ConfigError, match="monitor='val_loss'; they have 'loss'"):
        best(monitor="val_loss")
    with pytest.raises(ConfigError, match="mode must be 'min' or 'max'"):
        best("auto")
    with pytest.raises(DamagedBackupError, match=r"no checkpoint .* is intact"):
        best(place="other.keras")
