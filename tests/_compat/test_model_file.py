"""`safe_mode` is in force whatever the file's format, also where Keras ignores it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
from keras.src.saving import serialization_lib

from keras_dist_callbacks._compat.model_file import load_model


@pytest.mark.parametrize(("name", "scope"), [("a.h5", True), ("a.hdf5", True), ("a.keras", None)])
def test_hdf5_files_are_loaded_within_keras_safe_mode_scope(
    monkeypatch: pytest.MonkeyPatch, name: str, scope: bool | None
) -> None:
    seen = []

    def load(path: Path, **options: Any) -> None:
        """That of Keras 3.8, which does not open the scope for HDF5 files."""
        seen.append((serialization_lib.in_safe_mode(), options["safe_mode"]))

    monkeypatch.setattr(keras.models, "load_model", load)
    load_model(Path(name), {}, compile=True)
    assert seen == [(scope, True)]
    assert serialization_lib.in_safe_mode() is None
