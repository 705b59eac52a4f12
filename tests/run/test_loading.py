"""A backup can be read next to the run that writes it: as arrays or into a model, and nothing is changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError, DamagedBackupError
from tests.run.test_checkpointer import loop
from tests.state.test_resharding import recorded, run
from tests.stress.test_kill_matrix import STRATEGIES
from tests.support import files, tiny
from tests.support.processes import worker_processes

pytestmark = pytest.mark.slow  # complete fits


@pytest.fixture
def trained(tmp_path: Path) -> keras.Model:
    """A model whose last state is in `tmp_path / "backup"`, as is the one a step before."""
    model = tiny.rich_model()
    tiny.fit(model, tmp_path / "backup", epochs=2, options={"delete_checkpoint": False})
    return model


def test_without_a_model_it_is_a_dict_of_arrays_by_path(trained: keras.Model, tmp_path: Path) -> None:
    before = files(tmp_path)
    found = kdc.load_backup(tmp_path / "backup")
    tiny.assert_same(found, tiny.state(trained))
    assert not any(value.flags.writeable for value in found.values())
    assert files(tmp_path) == before


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("numbered", [False, True])
def test_a_model_gets_weights_optimizer_and_metrics(trained: keras.Model, tmp_path: Path, numbered: bool) -> None:
    model = tiny.rich_model()
    if numbered:  # its layers have other numbers in their names than there were
        layers = [type(layer).from_config({**layer.get_config(), "name": None}) for layer in model.layers]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy", "AUC"])
        assert model.variables[0].path != trained.variables[0].path
    assert kdc.load_backup(str(tmp_path / "backup"), model) is model
    np.testing.assert_array_equal(model.optimizer.iterations.numpy(), 2 * tiny.STEPS)
    for ours, theirs in ((model, trained), (model.optimizer, trained.optimizer)):
        tiny.assert_same([v.numpy() for v in ours.variables], [v.numpy() for v in theirs.variables])
    assert model.evaluate(*tiny.data(), verbose=0) == trained.evaluate(*tiny.data(), verbose=0)


def test_a_quantized_model_that_was_made_again_has_its_variables_in_another_order(tmp_path: Path) -> None:
    trained = tiny.model(optimizer="adam")
    trained.layers[0].quantize("float8")
    trained.compile("adam", "binary_crossentropy")
    tiny.fit(trained, tmp_path, epochs=2, options={"delete_checkpoint": False})
    model = keras.models.model_from_json(trained.to_json())
    assert [v.path for v in model.variables] != [v.path for v in trained.variables]
    kdc.load_backup(tmp_path, model)
    named = ([{Path(v.path).name: v.numpy() for v in layer.variables} for layer in m.layers] for m in (model, trained))
    tiny.assert_same(*named)
    np.testing.assert_array_equal(model.optimizer.iterations.numpy(), 2 * tiny.STEPS)
    tiny.assert_same(*([v.numpy() for v in one.optimizer.variables] for one in (model, trained)))


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("optimizer", [None, keras.optimizers.Lion(0.1)], ids=["not compiled", "another optimizer"])
def test_a_model_that_only_evaluates_gets_the_weights(trained: keras.Model, tmp_path: Path, optimizer: Any) -> None:
    model = keras.models.clone_model(trained)
    if optimizer is not None:
        model.compile(optimizer, "mse")
    kdc.load_backup(tmp_path / "backup", model)
    tiny.assert_same([v.numpy() for v in model.variables], [v.numpy() for v in trained.variables])


def test_an_older_backup_can_be_named(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 2, built=tiny.rich_model())
    older, newer = sorted(path.name for path in (tmp_path / "commits").iterdir())
    label = "-".join(str(int(number)) for number in newer.split("-")[:2])
    found = [kdc.load_backup(tmp_path, commit=name) for name in (older, label, None)]
    assert [int(tensors["adam/iteration"]) for tensors in found] == [tiny.STEPS + 1, tiny.STEPS + 2, tiny.STEPS + 2]
    with pytest.raises(ConfigError, match=f"no backup is named commit='7-7'; the newest: {label}, "):
        kdc.load_backup(tmp_path, commit="7-7")


def test_a_damaged_backup_is_skipped_and_left_where_it_is(trained: keras.Model, tmp_path: Path) -> None:
    [older, newer] = sorted((tmp_path / "backup" / "commits").iterdir())
    newer.write_bytes(newer.read_bytes()[:-1])
    before = files(tmp_path)
    with pytest.warns(RuntimeWarning, match=f"a damaged backup was skipped: .*{newer.name}"):
        kdc.load_backup(tmp_path / "backup", tiny.rich_model())
    with pytest.raises(DamagedBackupError, match=newer.name):
        kdc.load_backup(tmp_path / "backup", commit=newer.name)
    older.write_bytes(b"{}")
    before[str(older.relative_to(tmp_path))] = b"{}"
    with pytest.raises(DamagedBackupError, match="none of the 2 backups"):
        kdc.load_backup(tmp_path / "backup")
    assert files(tmp_path) == before


def test_what_cannot_be_read_is_reported(trained: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none holds no backup"):
        kdc.load_backup(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    other = tiny.rich_model(8)
    before = tiny.state(other)
    with pytest.raises(BackupMismatchError, match=r"does not match the backup: .*kernel .* is float32.6, 8. now"):
        kdc.load_backup(tmp_path / "backup", other)
    larger = keras.Sequential([keras.Input((6,)), *[keras.layers.Dense(6) for _ in range(9)]])
    with pytest.raises(BackupMismatchError, match=r"does not match the backup: .* is not in it"):
        kdc.load_backup(tmp_path / "backup", larger)
    after = tiny.state(other)
    tiny.assert_same({name: after[name] for name in before}, before)
    with pytest.raises(ConfigError, match=r"not built .*Input"):
        kdc.load_backup(tmp_path / "backup", keras.Sequential([keras.layers.Dense(1)]))


class ReadBeside(keras.callbacks.Callback):
    """Reads after each batch; what it read, and what training had at each step."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory, self.read, self.had = directory, [], {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        self.had[step] = [variable.numpy() for variable in self.model.variables]
        if any((self.directory / "commits").glob("*.json")):  # not one that is being written
            self.read.append(kdc.load_backup(self.directory))


kdc.advanced.register_callback_state(ReadBeside, None)


def test_a_reader_next_to_a_training_disturbs_nothing_and_reads_what_training_had(tmp_path: Path) -> None:
    reader, model = ReadBeside(tmp_path), tiny.rich_model()
    tiny.fit(model, tmp_path, [reader], epochs=4)
    reference = tiny.rich_model()
    tiny.fit(reference, None, epochs=4)
    tiny.assert_same(model, reference)
    assert len(reader.read) > 10
    for found in reader.read:
        had = reader.had[int(found["adam/iteration"])]
        tiny.assert_same([found[variable.path] for variable in model.variables], had)


def test_the_backup_of_a_loop_is_read_alike(tmp_path: Path) -> None:
    model, *_ = loop(tmp_path, delete_checkpoint=False)
    found = kdc.load_backup(tmp_path, tiny.model())
    tiny.assert_same([v.numpy() for v in found.variables], [v.numpy() for v in model.variables])


def test_a_loop_does_not_continue_from_a_fit_nor_a_fit_from_a_loop(tmp_path: Path) -> None:
    model = tiny.model()
    tiny.fit(model, tmp_path / "fit", epochs=1, options={"delete_checkpoint": False})
    loop(tmp_path / "loop", delete_checkpoint=False)
    before = files(tmp_path)
    with pytest.raises(BackupMismatchError, match=r"is that of a fit\(\) with BackupAndRestore, .* load_backup"):
        kdc.Checkpointer(tmp_path / "fit", model=tiny.model()).restore()
    with pytest.raises(BackupMismatchError, match=r"is that of a loop with Checkpointer, .* load_backup"):
        tiny.fit(tiny.model(), tmp_path / "loop", epochs=4)
    assert files(tmp_path) == before


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("written", "read"), [("multi-worker-2", "mirrored-2"), ("mirrored-2", "multi-worker-2")])
def test_a_backup_is_read_under_another_strategy(tmp_path: Path, written: str, read: str) -> None:
    run(tmp_path, written, "first", "--epochs", "1")
    saved, before = recorded(tmp_path / "first"), files(tmp_path / "backup")
    for name, value in kdc.load_backup(tmp_path / "backup").items():
        path, _, replica = name.partition("@")
        np.testing.assert_array_equal(value, saved[f"{path}#0@{replica or 0}"], err_msg=name)
    kind, workers = STRATEGIES[read]
    command = [sys.executable, "-m", "tests.support.reader_job", kind, str(tmp_path / "backup"), str(tmp_path / "read")]
    with worker_processes(command, workers, tmp_path / "logs") as cluster:
        cluster.start()
        assert cluster.wait(200) == [0] * workers, cluster.tails()
    for worker in range(workers):
        told = json.loads((tmp_path / f"read-worker{worker}.json").read_text())
        assert told["iterations"] == 9
        for name, value in told["weights"].items():
            np.testing.assert_array_equal(np.array(value, "float32"), saved[f"{name}#0@0"], err_msg=name)
    assert files(tmp_path / "backup") == before
