"""A `.keras` file: what it says about its model, and its state loaded into a model that other code built."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
from keras.src.saving import saving_lib

from keras_dist_callbacks._compat import describe_model
from keras_dist_callbacks.texts import first_few


def read_config(path: Path) -> dict[str, Any] | None:
    """The configuration in a `.keras` file; None for a file of another kind."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        config: dict[str, Any] = json.loads(archive.read("config.json"))
        return config


def prepare(model: Any, config: Mapping[str, Any], custom_objects: Mapping[str, Any], *, compile: bool) -> None:
    """Builds and compiles a model as the file's is where the code that made it did not; builds its optimizer."""
    with keras.saving.custom_object_scope(dict(custom_objects)):
        if not model.built and config.get("build_config"):
            model.build_from_config(config["build_config"])
        if compile and not model.compiled and config.get("compile_config"):
            model.compile_from_config(config["compile_config"])
    optimizer = getattr(model, "optimizer", None)
    if model.built and optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def differences(model: Any, config: Mapping[str, Any], *, compiled: bool) -> list[str]:
    """What differs between the model of a file and a model, one sentence each with both values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own, as when it saves
            now = json.loads(saving_lib._serialize_model_as_json(model)[0])
    except Exception as error:  # noqa: BLE001 - get_config of the user's classes
        return [f"the configuration cannot be compared ({type(error).__name__}: {error})"]
    before, after = (describe_model.file_facts(item, compiled=compiled) for item in (config, now))
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return first_few(
        [f"{name} was {before.get(name, 'absent')} and is {after.get(name, 'absent')} now" for name in names]
    )


def load_state(model: Any, path: Path) -> None:
    """Loads weights, optimizer variables, seed generators and assets.

    Raises:
        ValueError: They do not fit the model.
    """
    with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
        warnings.filterwarnings("error", message="Skipping variable loading for optimizer")
        weights = saving_lib.H5IOStore("model.weights.h5", archive=archive, mode="r")
        has_assets = any(name.startswith("assets/") for name in archive.namelist())
        assets = saving_lib.DiskIOStore("assets", archive=archive, mode="r") if has_assets else None
        failed: set[int] = set()
        messages: dict[int, Any] = {}
        try:
            saving_lib._load_state(
                model,
                weights_store=weights,
                assets_store=assets,
                inner_path="",
                visited_saveables=set(),
                failed_saveables=failed,
                error_msgs=messages,
            )
        except UserWarning as warning:
            raise ValueError(str(warning)) from warning
        finally:
            weights.close()
            if assets is not None:
                assets.close()
        if failed:
            saving_lib._raise_loading_failure(messages)
