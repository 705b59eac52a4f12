"""Keras' loader of whole models, with `safe_mode` in force for each file format."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HDF5 = (".h5", ".hdf5")


def load_model(path: Path, custom_objects: Mapping[str, Any], *, compile: bool) -> Any:
    """Loads a whole model without running code that the file holds, such as that of a Lambda layer."""
    import keras
    from keras.src.saving.serialization_lib import SafeModeScope

    # Keras 3.8 ignores `safe_mode` for HDF5 files; newer versions open this scope themselves.
    with SafeModeScope(True) if path.suffix in _HDF5 else contextlib.nullcontext():
        return keras.models.load_model(path, custom_objects=custom_objects, compile=compile, safe_mode=True)
