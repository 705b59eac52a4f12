"""Loaders of torch and torchdata continue exactly where they were, or are labelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError
from keras_dist_callbacks.state.own_values import from_json, to_json
from tests.support import tiny

torch_inputs = pytest.importorskip("tests.support.torch_inputs", exc_type=ImportError)
torch = torch_inputs.torch
pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*shuffle.*:UserWarning"),
]


def fit(loader: Any, directory: Path | None, *callbacks: Any) -> tuple[keras.Model, Any, Any]:
    model = tiny.model()
    torch.manual_seed(11)
    backup = [] if directory is None else [_backup(directory)]
    history = model.fit(loader, epochs=4, verbose=0, callbacks=[*callbacks, *backup])
    return model, history.history, backup[0].restored if backup else None


def _backup(directory: Path) -> Any:
    return kdc.BackupAndRestore(
        directory,
        save_freq=1,
        write_options=kdc.WriteOptions(when_busy="wait"),
        shutdown_options=kdc.ShutdownOptions(save_on_exception=False),
    )


@pytest.mark.parametrize("name", torch_inputs.LOADERS)
def test_a_loader_continues_exactly_where_it_was(tmp_path: Path, name: str) -> None:
    make = torch_inputs.LOADERS[name]
    reference, expected, _ = fit(make(), None)
    for where in ((0, 3), (2, 2), (3, 0)):
        directory = tmp_path / str(where)
        with pytest.raises(tiny.Stop):
            fit(make(), directory, tiny.StopAt(*where))
        model, history, restored = fit(make(), directory)
        assert restored.verdict == "exact if", "its dataset is Python code"
        assert history == expected, where
        tiny.assert_same(model, reference)


def test_a_dataset_with_a_state_of_its_own_is_labelled_in_the_epoch_that_keras_has_looked_into(tmp_path: Path) -> None:
    def make() -> Any:
        return torch_inputs.stateful(torch_inputs.Counting())

    with pytest.raises(tiny.Stop):
        fit(make(), tmp_path, tiny.StopAt(0, 3))
    with pytest.warns(RuntimeWarning, match="when Keras had read its first batches"):
        fit(make(), tmp_path)


def test_another_number_of_generators_is_an_error_before_training(tmp_path: Path) -> None:
    loaders = torch_inputs.LOADERS
    with pytest.raises(tiny.Stop):
        fit(loaders["DataLoader with a generator"](), tmp_path, tiny.StopAt(1, 2))
    two = torch_inputs.plain(torch_inputs.rows(), sampler=torch_inputs.weighted(), generator=torch_inputs.generator())
    with pytest.raises(BackupMismatchError, match="random generators of the torch DataLoader differ"):
        fit(two, tmp_path)


def test_tensors_of_torch_come_back_as_such() -> None:
    tensors: dict[str, Any] = {}
    given = {"generator": torch.get_rng_state(), "weights": torch.ones(2, 3, requires_grad=True), "array": np.ones(2)}
    found = from_json(to_json(given, "input", tensors), {name: held.array() for name, held in tensors.items()})
    assert torch.equal(found["generator"], given["generator"])
    assert torch.equal(found["weights"], given["weights"])
    assert isinstance(found["array"], np.ndarray)


def test_a_tensor_that_no_array_can_hold_is_refused_when_it_is_saved() -> None:
    with pytest.raises(BackupError, match="input/x: a Tensor cannot be stored"):
        to_json({"x": torch.ones(3, dtype=torch.bfloat16)}, "input", {})
