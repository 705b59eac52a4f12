"""Keras' and TensorFlow's model files: what is in them, and how they are loaded."""

from __future__ import annotations

import contextlib
import json
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.saving import saving_lib
from tensorflow.core.protobuf import trackable_object_graph_pb2 as graphs

from keras_dist_callbacks._compat import model_config
from keras_dist_callbacks.terminal import first_few


def read_config(path: Path) -> dict[str, Any] | None:
    """Returns the configuration in a `.keras` file; None for a file of another kind."""
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
    """Returns what differs between the model of a file and a model, one sentence each with both values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own, as when it saves
            now = json.loads(saving_lib._serialize_model_as_json(model)[0])
    except Exception as error:  # noqa: BLE001 - get_config of the user's classes
        return [f"the configuration cannot be compared ({type(error).__name__}: {error})"]
    before, after = (model_config.file_facts(item, compiled=compiled) for item in (config, now))
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


_HDF5 = (".h5", ".hdf5")


def load_model(path: Path, custom_objects: Mapping[str, Any], *, compile: bool) -> Any:
    """Loads a complete model without running code that the file holds, such as that of a Lambda layer."""
    import keras
    from keras.src.saving.serialization_lib import SafeModeScope

    # Keras 3.8 ignores `safe_mode` for HDF5 files; newer versions open this scope themselves.
    with SafeModeScope(True) if path.suffix in _HDF5 else contextlib.nullcontext():
        return keras.models.load_model(path, custom_objects=custom_objects, compile=compile, safe_mode=True)


_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def restore_model(model: Any, prefix: str) -> None:
    """Gives a compiled, built model the values of a checkpoint that holds it, with its optimizer.

    The model may be the checkpoint's root or lie below it under any name; its optimizer within it or next to it.

    Args:
        model: The model; it may be changed even if this fails.
        prefix: The checkpoint's path without `.index`.

    Raises:
        ValueError: No part of the checkpoint has a value for every variable of the model.
    """
    names = [name for name in _children_of_the_root(prefix) if not name.startswith("_") and name != "save_counter"]
    of_optimizer = [name for name in names if "opt" in name.lower()]
    reasons: list[str] = []
    for root in ["", *(name for name in names if name not in of_optimizer)]:
        parts = {root: model, **dict.fromkeys(of_optimizer, model.optimizer)}
        checkpoint = tf.train.Checkpoint(**parts) if root else tf.train.Checkpoint(model)
        try:
            status = checkpoint.restore(prefix).expect_partial()
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            reasons.append(f"{root or 'its root'}: {str(error).splitlines()[0]}")
        else:
            return
    raise ValueError(f"no part of it holds the model ({'; '.join(reasons)})")


def _children_of_the_root(prefix: str) -> list[str]:
    graph = graphs.TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_checkpoint(prefix).get_tensor(_GRAPH))
    return [child.local_name for child in graph.nodes[0].children]
