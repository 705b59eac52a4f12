"""Keras' and TensorFlow's model files: what is in them, and how they are loaded."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving import saving_lib
from keras.src.saving.serialization_lib import SafeModeScope
from tensorflow.core.protobuf import trackable_object_graph_pb2 as graphs

from keras_dist_callbacks._compat.building import inner_of
from keras_dist_callbacks._compat.model_parts import makes_own_step
from keras_dist_callbacks._compat.variables import optimizers_within
from keras_dist_callbacks.base.terminal import first_few


def read_config(path: Path) -> dict[str, Any] | None:
    """Returns the configuration in a `.keras` file; None for a file of another kind."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        config: dict[str, Any] = json.loads(archive.read("config.json"))
        return config


def prepare(model: Any, config: Mapping[str, Any], custom_objects: Mapping[str, Any], *, compile: bool) -> None:
    """Builds and compiles a model as the file's is where the code that made it did not."""
    with keras.saving.custom_object_scope(dict(custom_objects)):
        if not model.built and config.get("build_config"):
            model.build_from_config(config["build_config"])
        if compile and not model.compiled and config.get("compile_config"):
            model.compile_from_config(config["compile_config"])


def config_of(model: Any) -> dict[str, Any]:
    """Returns the configuration of a model as a file would hold it.

    Raises:
        Exception: What `get_config` of a class of the user's raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' own, as when it saves
        config: dict[str, Any] = json.loads(saving_lib._serialize_model_as_json(model)[0])
        return config


class StateMismatchError(ValueError):
    """The state in a file does not fit a model.

    Args:
        failed: What does not fit, with the error of each.
    """

    def __init__(self, failed: Iterable[tuple[Any, Exception]]) -> None:
        failed = list(failed)
        self.is_optimizer_alone = all(isinstance(item, keras.optimizers.Optimizer) for item, _ in failed)
        super().__init__("; ".join(first_few([f"{_name(item)}: {_first_sentence(error)}" for item, error in failed])))


def _name(item: Any) -> str:
    return f"{type(item).__name__} {getattr(item, 'name', '')!r}"


def _first_sentence(error: Exception) -> str:
    """Keras' errors go on with the values of variables."""
    return str(error).partition("Target variable")[0].strip().rstrip(".")


_NotLoaded = dict[int, tuple[Any, ValueError | None]]
"""By its id: an optimizer, and why its state does not fit; None where the file holds none."""


def load_state(model: Any, path: Path, *, weights_only: bool = False) -> list[str]:
    """Loads weights, optimizer variables, seed generators and assets.

    Optimizers are built as the file says: one that had not been used then stays unbuilt. Which weights an optimizer
    that is an attribute of the model is for, only the train step knows: it takes its state when that builds it.

    Args:
        model: The model.
        path: The file.
        weights_only: Whether optimizers stay as they are.

    Returns:
        The optimizers of which the file holds nothing; but for `weights_only`.

    Raises:
        StateMismatchError: They do not fit the model.
    """
    failed: set[int] = set()
    errors: dict[int, Any] = {}
    with _stores(path) as (weights, assets), _loading_optimizers(model, weights_only) as of_optimizers:
        saving_lib._load_state(
            model,
            weights_store=weights,
            assets_store=assets,
            inner_path="",
            visited_saveables=set(),
            failed_saveables=failed,
            error_msgs=errors,
        )
    found = [*(errors[key] for key in failed), *((o, error) for o, error in of_optimizers.values() if error)]
    if found:
        raise StateMismatchError(found)
    return [_name(optimizer) for optimizer, error in of_optimizers.values() if error is None]


@contextlib.contextmanager
def _stores(path: Path) -> Iterator[tuple[Any, Any]]:
    with contextlib.ExitStack() as stack:
        if not zipfile.is_zipfile(path):
            weights = saving_lib.H5IOStore(str(path), mode="r")
            stack.callback(weights.close)
            yield weights, None
            return
        archive = stack.enter_context(zipfile.ZipFile(path))
        weights, assets = saving_lib.H5IOStore("model.weights.h5", archive=archive, mode="r"), None
        stack.callback(weights.close)
        if any(name.startswith("assets/") for name in archive.namelist()):
            assets = saving_lib.DiskIOStore("assets", archive=archive, mode="r")
            stack.callback(assets.close)
        yield weights, assets


@contextlib.contextmanager
def _loading_optimizers(model: Any, weights_only: bool) -> Iterator[_NotLoaded]:
    """Lets `_load_optimizer` take the place of the optimizers' method; yields those that it does not load.

    With `weights_only`, nothing is loaded in its place.
    """
    not_loaded: _NotLoaded = {}
    outer = optimizers_within(model)
    inner = [inner_of(optimizer) for optimizer in outer if inner_of(optimizer) is not optimizer]
    for optimizer in outer:
        vars(optimizer)["load_own_variables"] = functools.partial(_load_optimizer, model, optimizer, not_loaded)
    for optimizer in [*outer, *inner] if weights_only else inner:
        vars(optimizer)["load_own_variables"] = lambda store: None  # the outer one's variables are its own and these
    try:
        yield not_loaded
    finally:
        for optimizer in [*outer, *inner]:
            del vars(optimizer)["load_own_variables"]


def _load_optimizer(model: Any, optimizer: Any, not_loaded: _NotLoaded, store: Any) -> None:
    """Never raises: Keras would try again under the next name that the model has for it, where the file has nothing."""
    values = [store[str(place)] for place in range(len(store.keys()))]
    if not values:
        not_loaded.setdefault(id(optimizer), (optimizer, None))
        return
    not_loaded.pop(id(optimizer), None)
    try:
        _take(model, optimizer, values)
    except ValueError as error:
        not_loaded[id(optimizer)] = optimizer, error


def _take(model: Any, optimizer: Any, values: list[Any]) -> None:
    unbuilt = optimizer.variables
    if optimizer.built or len(values) == len(unbuilt):
        _assign(optimizer, values)
    elif optimizer is model.optimizer and (not makes_own_step(model) or _are_of_all(model, values[len(unbuilt) :])):
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)
        _assign(optimizer, values)
    else:
        for variable, value in zip(unbuilt, values, strict=False):
            variable.assign(value)
        _assign_once_built(optimizer, [np.array(value) for value in values])


def _are_of_all(model: Any, slots: list[Any]) -> bool:
    """Whether values may be slots of all weights: then there is one with the shape of each, at least."""
    weights = collections.Counter(tuple(variable.shape) for variable in model.trainable_variables)
    return weights <= collections.Counter(tuple(slot.shape) for slot in slots)


def _assign(optimizer: Any, values: Sequence[Any]) -> None:
    found = [tuple(variable.shape) for variable in optimizer.variables]
    if len(found) != len(values):
        raise ValueError(f"it was saved with {len(values)} variables and has {len(found)} now")
    for variable, value in zip(optimizer.variables, values, strict=True):
        if tuple(variable.shape) != tuple(value.shape):
            raise ValueError(f"{variable.path} had the shape {list(value.shape)} and has {list(variable.shape)} now")
    type(optimizer).load_own_variables(optimizer, {str(place): value for place, value in enumerate(values)})


def _assign_once_built(optimizer: Any, values: Sequence[Any]) -> None:
    """Gives an optimizer its state as soon as the train step, or a backup that is restored, builds it."""

    def build(variables: Any) -> None:
        del vars(optimizer)["build"]
        optimizer.build(variables)
        with tf.init_scope():  # a trace must not repeat it in each step
            try:
                _assign(optimizer, values)
            except ValueError as error:
                raise StateMismatchError([(optimizer, error)]) from None

    vars(optimizer)["build"] = build


def load_model(path: Path, custom_objects: Mapping[str, Any], *, compile: bool) -> Any:
    """Loads a complete model without running code that the file holds, such as that of a Lambda layer."""
    # Keras 3.8 ignores `safe_mode` for HDF5 files; newer versions open this scope themselves.
    with SafeModeScope(True) if path.suffix in (".h5", ".hdf5") else contextlib.nullcontext():
        return keras.models.load_model(path, custom_objects=custom_objects, compile=compile, safe_mode=True)


def restore_model(model: Any, prefix: str) -> None:
    """Gives a compiled, built model the values of a checkpoint that holds it, with its optimizer.

    The model may be the checkpoint's root or lie below it under any name; its optimizer within it or next to it.

    Args:
        model: The model; it may be changed even if this fails.
        prefix: The checkpoint's path without `.index`.

    Raises:
        ValueError: No part of the checkpoint has a value for every variable of the model.
    """
    graph = graphs.TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_checkpoint(prefix).get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
    children = [child.local_name for child in graph.nodes[0].children]
    names = [name for name in children if not name.startswith("_") and name != "save_counter"]
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
