"""Keras' configurations of models as flat names and texts, in which two can be compared. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from keras_dist_callbacks.backups.findings import Finding

_IRRELEVANT = {"build_config", "batch_input_shape", "registered_name", "module", "shared_object_id"}
_OBJECTS = ("_regularizer", "_constraint", "dtype", "learning_rate", "loss", "metrics", "weighted_metrics")
"""Ends of the names of values that are shown as one text, such as `L2(l2=0.01)`."""
_SHAPES = ("batch_shape", "build_input_shape", "_build_shape")
A_NUMBER = "a number"
"""What is told of a learning rate that is one."""
_OPTIMIZERS = ("optimizer/", "compile/optimizer/")
_NUMBERED = re.compile(r"(.*?)(?:_(\d+))?$", re.DOTALL)


def differences(file: Mapping[str, Any], model: Mapping[str, Any], *, compiled: bool) -> list[Finding]:
    """Returns what differs between two models.

    Args:
        file: The JSON of the one, as a `.keras` file holds it.
        model: That of the other.
        compiled: Whether what compile() was given is compared too.
    """
    before, after = (_facts(config, compiled) for config in (file, model))
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    values = ((before.get(name, "absent"), after.get(name, "absent")) for name in names)
    return [Finding("model-differs", detail=(name, *pair)) for name, pair in zip(names, values, strict=True)]


def _facts(config: Mapping[str, Any], compiled: bool) -> dict[str, str]:
    model = {key: value for key, value in config["config"].items() if key != "name"}
    compilation = (compiled and config.get("compile_config")) or {}
    return flat({"class": config["class_name"], "model": model, "compile": compilation})


def flat(config: Any) -> dict[str, str]:
    """Returns the values in a configuration by their places in it, such as `model/layers/0/config/units`.

    Automatic numbers in the names of layers start from 0 in each model. Initializers are left out.
    """
    leaves = dict(_leaves(config, ""))
    names = {leaf for name, leaf in leaves.items() if name.rpartition("/")[2] == "name" and isinstance(leaf, str)}
    renamed = _renumbered(names)
    return {name: _text(leaf, renamed) for name, leaf in leaves.items()}


def as_text(name: str, config: Mapping[str, Any]) -> str:
    """Returns an object with its configuration as one text."""
    shown = [f"{key}={_text(_collapsed(value), {})}" for key, value in sorted(config.items()) if key != "name"]
    return f"{name}({', '.join(shown)})"


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    last = where.rpartition("/")[2]
    if last.endswith("_initializer") or last in _IRRELEVANT:
        return
    if last.endswith(_OBJECTS):
        is_rate = last == "learning_rate" and isinstance(value, float) and where.startswith(_OPTIMIZERS)
        yield where, A_NUMBER if is_rate else _collapsed(value)  # the value is a variable, which is restored
    elif isinstance(value, Mapping):
        for key, item in _without_bytecode(value).items():
            yield from _leaves(item, f"{where}/{key}" if where else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{where}/{number}")
    elif last in _SHAPES and isinstance(value, list | tuple):
        yield where, type(value)([None, *value[1:]])  # the batch that built the model, or any
    else:
        yield where, value


def _collapsed(value: Any) -> Any:
    """Returns an object's configuration as one text; lists of them likewise."""
    if isinstance(value, Mapping) and {"class_name", "config"} <= value.keys():
        config = _without_bytecode(value)["config"]
        if not isinstance(config, Mapping):
            return str(config)
        return str(config.get("name")) if value["class_name"] == "DTypePolicy" else as_text(value["class_name"], config)
    if isinstance(value, Mapping):
        return {key: _collapsed(item) for key, item in value.items()}
    return [_collapsed(item) for item in value] if isinstance(value, list | tuple) else value


def _without_bytecode(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A lambda's bytecode holds line numbers. What it does is compared as any function of the user's."""
    if value.get("class_name") != "__lambda__":
        return value
    return {**value, "config": {key: item for key, item in value["config"].items() if key != "code"}}


def _renumbered(names: set[str]) -> dict[str, str]:
    """New numbers in the old order: `dense_3, dense_4` become `dense, dense_1`, as in a process that made no other.

    The order stays, so that two layers numbered by hand still differ.
    """
    numbered: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        stem, number = _NUMBERED.fullmatch(name).groups()  # type: ignore[union-attr]  # it matches any text
        numbered[stem].append((int(number or 0), name))
    return {
        name: f"{stem}_{rank}" if rank else stem
        for stem, found in numbered.items()
        for rank, (_, name) in enumerate(sorted(found))
    }


def _text(value: Any, renamed: Mapping[str, str]) -> str:
    text = re.sub(r" at 0x[0-9a-f]+|(?<=keras_tensor)_\d+", "", str(value))
    return re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), text)
