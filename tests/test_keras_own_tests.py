"""Keras' own tests of ModelCheckpoint and TensorBoard, taken from the installed Keras and run on our classes."""

import importlib
import unittest
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from tests.callback_helpers import ignore_keras_warnings

# What Keras warns about there is Keras' own business.
pytestmark = [ignore_keras_warnings, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.mark.parametrize(
    ("name", "module", "case"),
    [
        ("ModelCheckpoint", "keras.src.callbacks.model_checkpoint_test", "ModelCheckpointTest"),
        ("TensorBoard", "keras.src.callbacks.tensorboard_test", "TestTensorBoardV2"),
    ],
)
def test_what_keras_tests_of_its_own_callback_holds_for_ours(
    name: str, module: str, case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.config.addinivalue_line("markers", "requires_trainable_backend: used by Keras' tests")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        pytest.skip("this Keras ships without its tests")
    monkeypatch.setattr(found.callbacks, name, getattr(kdc, name))
    result = unittest.TestResult()
    result.buffer = True
    unittest.TestLoader().loadTestsFromTestCase(getattr(found, case)).run(result)
    keras.config.enable_traceback_filtering()  # Keras' tests switch it off for good
    assert result.testsRun >= 2
    assert [trace for _, trace in [*result.failures, *result.errors]] == []
