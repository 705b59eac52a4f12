"""SidecarEvaluator in this process: the best model, other models and data, and where results may be put."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError
from keras_dist_callbacks.cluster.cluster import Cluster
from tests.support import tiny
from tests.support.callback_helpers import ignore_keras_warnings
from tests.support.checkpoints import listed, note_path
from tests.support.evaluator_runs import DATA, evaluator
from tests.support.stores.fixtures import Place

pytestmark = [pytest.mark.slow, ignore_keras_warnings]


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer:UserWarning")  # it may be another one
@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_the_best_is_exported_with_its_value_in_the_record(run: Path, name: str) -> None:
    options = {"export_best": run / "export" / name, "monitor": "val_loss"}
    results = evaluator(run, **options).start()
    best = min(results, key=lambda one: one.metrics["loss"])
    (found,) = listed(run / "export").checkpoints
    assert (found.name, found.record.step, found.record.monitor) == (name, best.step, "loss")
    assert found.record.value == best.metrics["loss"]
    model = tiny.model()
    model.load_weights(run / "export" / name)
    assert model.evaluate(*DATA, verbose=0, return_dict=True) == pytest.approx(best.metrics)


def test_a_worse_one_does_not_replace_the_best(run: Path) -> None:
    options = {"export_best": run / "export" / "best.keras", "monitor": "accuracy", "mode": "min"}
    evaluator(run, **options).start()
    (found,) = listed(run / "export").checkpoints
    results = evaluator(run, **options).start()
    assert found.record.value == min(one.metrics["accuracy"] for one in results)
    shutil.rmtree(run / "tb")  # all are evaluated again
    evaluator(run, **options).start()
    assert listed(run / "export").checkpoints == (found,)


def test_an_unknown_metric_is_named(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"monitor='f1' is not a metric of the model; its metrics are .*accuracy"):
        evaluator(run, export_best=run / "best.keras", monitor="val_f1").start()


def test_a_strategy_of_its_own_evaluates_to_the_same(run: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        own, given = evaluator(run, None), evaluator(run, tiny.model(clear=False), log_dir=run / "given")
        results = own.start()
    expected = [pytest.approx(one.metrics) for one in evaluator(run, log_dir=run / "other").start()]
    assert [one.metrics for one in results] == expected
    assert [one.metrics for one in given.start()] == expected


def test_weights_of_another_model_are_an_error_that_names_the_file(run: Path) -> None:
    with pytest.raises(BackupMismatchError, match=r"weights of .*1\.keras do not fit the model of SidecarEvaluator"):
        evaluator(run, tiny.model(units=3)).start()


def test_weights_alone_need_a_model(tmp_path: Path) -> None:
    name = tmp_path / "ckpt" / "w.weights.h5"
    tiny.fit(tiny.model(), None, [kdc.ModelCheckpoint(name, save_weights_only=True)], epochs=1)
    with pytest.raises(ConfigError, match="holds only weights: give SidecarEvaluator a compiled model"):
        evaluator(tmp_path, None).start()
    other = tiny.model(optimizer="sgd")  # another optimizer, which is not built
    assert [one.step for one in evaluator(tmp_path, other).start()] == [5]


def test_data_may_be_a_dataset_and_steps_a_part_of_it(run: Path) -> None:
    dataset = tf.data.Dataset.from_tensor_slices(DATA).batch(4)
    whole = evaluator(run, data=dataset).start()
    part = evaluator(run, data=dataset, steps=1, log_dir=run / "part").start()
    assert [one.metrics["loss"] for one in whole] != [one.metrics["loss"] for one in part]


def test_an_evaluator_task_evaluates_and_a_worker_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = Cluster("evaluator", 0, -1, ("localhost:1", "localhost:2"))
    monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: role))
    assert len(evaluator(run).start()) == 3
    role = Cluster("worker", 1, 1, ("localhost:1", "localhost:2"))
    with pytest.raises(ConfigError, match=r"this process is worker 1, which trains: run SidecarEvaluator in a task"):
        evaluator(run).start()


def test_a_generator_is_data_with_steps_alone(run: Path) -> None:
    def batches() -> Any:
        while True:
            yield DATA

    with pytest.raises(ConfigError, match=r"data can be iterated only once, but is needed for every checkpoint"):
        evaluator(run, data=batches())
    evaluator(run, data=batches(), steps=1)


def test_damaged_notes_are_reported(run: Path) -> None:
    note_path(run / "ckpt").write_bytes(b"junk")
    with pytest.warns(UserWarning, match="skipped: .*training-end"):
        evaluator(run, timeout=0.2).start()


@pytest.mark.parametrize("name", ["log_dir", "state_dir", "export_best"])
def test_a_place_within_the_checkpoints_is_refused(run: Path, name: str) -> None:
    (run / "link").symlink_to(run / "ckpt")
    for place in (run / "ckpt", run / "ckpt" / "sub", run / "link"):
        given = place / "best.keras" if name == "export_best" else place
        with pytest.raises(ConfigError, match=rf"^{name}=.*where only the training writes"):
            evaluator(run, **{name: given})


def test_without_logs_results_are_kept_next_to_the_checkpoints(run: Path) -> None:
    evaluator(run, log_dir=None).start()
    assert len(list((run / "ckpt-evaluator" / "evaluations").iterdir())) == 3
    assert list(run.rglob("events*")) == []


def test_a_bucket_has_nothing_next_to_it() -> None:
    with pytest.raises(ConfigError, match="has nothing next to it: give log_dir or state_dir"):
        kdc.SidecarEvaluator(None, DATA, "s3://bucket/")


@pytest.mark.in_gate(1)
def test_checkpoints_in_a_store_are_evaluated_and_logged_there(remote: Place, tmp_path: Path) -> None:
    """The best goes there too, in a second process' place."""
    checkpoint = kdc.ModelCheckpoint(f"{remote.url}/ckpt/{{epoch}}.keras", storage_options=remote.options)
    tiny.fit(tiny.model(), None, [checkpoint], epochs=2)
    where = {"log_dir": f"{remote.url}/tb", "storage_options": remote.options}
    for _ in range(2):  # a restarted one finds its own results
        found = evaluator(
            tmp_path, None, checkpoint_dir=f"{remote.url}/ckpt", export_best=f"{remote.url}/out/best.keras", **where
        ).start()
        assert [(one.name, one.step) for one in found] == [("1.keras", tiny.STEPS), ("2.keras", 2 * tiny.STEPS)]
    assert [info.name for info in remote.sub("ckpt").open().files()] == ["1.keras", "2.keras"]
    assert [info.name for info in remote.sub("out").open().files()] == ["best.keras"]
    events = [info.name for info in remote.sub("tb/evaluator").open().files()]
    assert len([name for name in events if name.startswith("events.out.tfevents")]) == 1
