"""Keras 3 under MultiWorkerMirroredStrategy: what plain Keras cannot do, and what it can with our help."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import CompatError
from tests.support import SUPPORT
from tests.support.processes import worker_processes

PROBE = SUPPORT / "probe_multi_worker.py"


def probe(directory: Path, mode: str, workers: int) -> list[dict[str, Any]]:
    with worker_processes([sys.executable, str(PROBE), mode], workers, directory) as cluster:
        cluster.start()
        if any(cluster.wait(180)):
            raise RuntimeError(cluster.tails())  # no AssertionError: it must not count as an expected failure
        lines = [line for i in range(workers) for line in cluster.log(i).splitlines() if line.startswith("RESULTS ")]
    return [json.loads(line.removeprefix("RESULTS ")) for line in lines]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return probe(tmp_path_factory.mktemp("plain"), "plain", 2)[0]


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["fit", "evaluate", "train_on_batch", "numpy"])
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="plain Keras 3 cannot do it (keras issue 20585); passing means: repaired upstream",
)
def test_plain_keras_works_under_multi_worker_mirrored(plain: dict[str, Any], name: str) -> None:
    assert not isinstance(plain[name], str), plain[name]


@pytest.mark.cluster
def test_plain_keras_predicts_so_that_the_probe_itself_works(plain: dict[str, Any]) -> None:
    assert plain["predict"] == [24, 1]


@pytest.mark.cluster
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.chaos)])
def test_every_way_works_and_gives_all_workers_the_same_numbers(tmp_path: Path, workers: int) -> None:
    results = probe(tmp_path, "enabled", workers)
    assert len(results) == workers
    assert all(result == results[0] for result in results)
    assert results[0]["predict"] == [24, 1]
    for name in ("fit", "evaluate", "train_on_batch", "numpy"):
        assert isinstance(results[0][name], list), results[0][name]
    assert results[0]["fit"][1] < results[0]["fit"][0]


def test_enabling_is_idempotent_and_can_be_undone() -> None:
    from keras.src.backend.tensorflow import trainer

    kdc.advanced.enable_multi_worker_fit()()  # a callback that another test made may have done it
    build, reduce = trainer.TensorFlowTrainer._maybe_symbolic_build, trainer.reduce_per_replica
    undo = kdc.advanced.enable_multi_worker_fit()
    once = trainer.TensorFlowTrainer._maybe_symbolic_build, trainer.reduce_per_replica
    assert once[0] is not build
    assert once[1] is not reduce
    kdc.advanced.enable_multi_worker_fit()
    assert (trainer.TensorFlowTrainer._maybe_symbolic_build, trainer.reduce_per_replica) == once
    undo()
    undo()
    assert trainer.TensorFlowTrainer._maybe_symbolic_build is build
    assert trainer.reduce_per_replica is reduce


@pytest.mark.slow
def test_training_in_one_process_is_the_same_when_enabled() -> None:
    from tests.support import tiny

    reference, model = tiny.model(), None
    tiny.fit(reference, None)
    undo = kdc.advanced.enable_multi_worker_fit()
    try:
        model = tiny.model()
        tiny.fit(model, None)
    finally:
        undo()
    tiny.assert_same(model, reference)


def test_an_unknown_signature_is_refused_and_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from keras.src.backend.tensorflow import trainer

    def reduce_per_replica(values: Any, strategy: Any, reduction: str, axis: int) -> None:
        raise AssertionError

    monkeypatch.setattr(trainer, "reduce_per_replica", reduce_per_replica)
    build = trainer.TensorFlowTrainer._maybe_symbolic_build
    with pytest.raises(CompatError, match="reduce_per_replica is not as expected"):
        kdc.advanced.enable_multi_worker_fit()
    assert trainer.TensorFlowTrainer._maybe_symbolic_build is build


@pytest.mark.process
def test_importing_the_package_imports_neither_tensorflow_nor_keras() -> None:
    import subprocess

    code = "import sys, keras_dist_callbacks.advanced; assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
