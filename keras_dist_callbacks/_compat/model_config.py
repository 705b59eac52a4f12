"""What a model and its compile() say about themselves, as flat names and texts that two runs can compare."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import xxhash

from keras_dist_callbacks import static
from keras_dist_callbacks._compat import model_parts

_IRRELEVANT = {"build_config", "batch_input_shape", "registered_name", "module", "shared_object_id"}
_OBJECTS = ("_regularizer", "_constraint", "dtype", "learning_rate", "loss", "metrics", "weighted_metrics")
"""Ends of the names of values that are shown as one text, such as `L2(l2=0.01)`."""
_SHAPES = ("batch_shape", "build_input_shape", "_build_shape")
_NUMBERED = re.compile(r"(.*?)(?:_(\d+))?$", re.DOTALL)


def model_facts(model: Any) -> dict[str, str]:
    """Returns the configuration of every layer, in order; automatic numbers in names start from 0 in each model."""
    config = _config(model) if _has_config(model) else {}
    if config:
        facts = _flat({"model": {key: value for key, value in config.items() if key != "name"}}, "")
    else:  # a class of the user's, or a layer within that cannot give its configuration
        parts = list(model._flatten_layers(include_self=False))
        facts = _flat(
            {f"layer {n}": {"name": x.name, "class": type(x).__name__, **_config(x)} for n, x in enumerate(parts)}, ""
        )
    for number, (layer, weights) in enumerate(model_parts.vocabulary_layers(model)):
        facts[f"vocabulary {number}"] = _vocabulary(layer, weights)
    if found := model_parts.variables_set_trainable(model):
        facts["trainable of single variables"] = str(found)
    facts["dtype policy"] = str(getattr(model.dtype_policy, "name", model.dtype_policy))
    return facts


def _vocabulary(layer: Any, weights: list[Any]) -> str:
    words = [str(word) for word in layer.get_vocabulary()]
    digest = xxhash.xxh3_64(repr(words).encode())
    for weight in weights:
        digest.update(weight.numpy().tobytes())
    return f"{len(words)} entries, {digest.hexdigest()}"


def compile_facts(model: Any) -> dict[str, str]:
    """Returns what compile() was given: the optimizer without its rate, losses, how steps are run."""
    facts = {"run_eagerly": str(bool(model.run_eagerly)), "jit_compile": str(model.jit_compile)}
    losses = getattr(model, "_compile_loss", None)
    if losses is not None:
        facts["loss"] = _named(losses._user_loss)
        facts["loss_weights"] = str(losses._user_loss_weights)
    metrics = getattr(model, "_compile_metrics", None)
    if metrics is not None:
        facts["metrics"] = _named(metrics._user_metrics)
        facts["weighted_metrics"] = _named(metrics._user_weighted_metrics)
    if model.optimizer is not None:
        facts["optimizer/class"] = type(model.optimizer).__name__
        config = {key: value for key, value in _config(model.optimizer).items() if key not in {"name"}}
        if not isinstance(config.get("learning_rate"), dict):
            config.pop("learning_rate", None)  # a number is a variable, which is restored
        facts.update(_flat(config, "optimizer"))
        facts.update(_without_weight_decay(model))
    return facts


def _without_weight_decay(model: Any) -> dict[str, str]:
    """Which weights `exclude_from_weight_decay` was given: patterns, and places among the trainable variables."""
    facts = {}
    for name, optimizer in model_parts.inner_optimizers(model.optimizer):
        keys = getattr(optimizer, "_exclude_from_weight_decay", None) or ()
        places = [n for n, variable in enumerate(model.trainable_variables) if optimizer._var_key(variable) in keys]
        found = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
        if found is not None or places:
            # Keras joins an unordered set.
            pattern = None if found is None else "|".join(sorted(found.pattern.split("|")))
            where = f"optimizer/{name}/" if name else "optimizer/"
            facts[f"{where}exclude_from_weight_decay"] = f"pattern {pattern!r}, weights {places}"
    return facts


def compiled_objects(model: Any) -> dict[str, Any]:
    """Returns the losses and metrics as the user gave them to compile()."""
    losses, metrics = getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)
    return {
        "loss": getattr(losses, "_user_loss", None) or getattr(model, "loss", None),
        "metrics": getattr(metrics, "_user_metrics", None),
        "weighted metrics": getattr(metrics, "_user_weighted_metrics", None),
    }


def file_facts(config: Mapping[str, Any], *, compiled: bool) -> dict[str, str]:
    """The facts of a model's JSON, as a `.keras` file holds it, with its compile() unless that is not compared."""
    model = {key: value for key, value in config["config"].items() if key != "name"}
    compile_config = (config.get("compile_config") or {}) if compiled else {}
    optimizer = (compile_config.get("optimizer") or {}).get("config") or {}
    if isinstance(optimizer.get("learning_rate"), float):
        optimizer["learning_rate"] = "a number"  # its value is a variable, which is loaded
    return {"class": str(config["class_name"]), **_flat({"model": model, "compile": compile_config}, "")}


def compilation(model: Any) -> Any:
    """Returns what Keras keeps of compile()'s arguments: another object after each call, None before the first."""
    return getattr(model, "_compile_config", None)


def as_json(model: Any) -> str | None:
    """Returns what Keras' `to_json` says; None where it cannot, or would put code into it (a Lambda layer's)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text: str = model.to_json()
    except Exception:  # noqa: BLE001 - get_config of the user's classes; such a model is made by their code alone
        return None
    return None if '"__lambda__"' in text else text


def _has_config(model: Any) -> bool:
    import keras

    if isinstance(model, keras.Sequential):
        return True
    return isinstance(model, keras.Model) and hasattr(model, "_operations_by_depth")


def _config(item: Any) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own, of numpy
            return dict(item.get_config())
    except Exception:  # noqa: BLE001 - a class of the user's without a configuration has nothing to compare
        return {}


def _named(loss: Any) -> str:
    """Returns a loss by its name, the same whether it was given as a string, a function or an object with defaults."""
    if static.is_a(loss, dict):
        return str({key: _named(value) for key, value in static.pairs(loss)})
    if static.is_a(loss, list | tuple):
        return str([_named(value) for value in static.contents(loss)])
    if loss is None or type(loss) is str:
        return str(loss)
    if static.has(loss, "get_config"):
        # Keras' get_config leaves some arguments out, such as the delta of Huber.
        return _object(type(loss).__name__, {**(static.attribute(loss, "_fn_kwargs") or {}), **_config(loss)})
    return str(static.attribute(loss, "__name__", type(loss).__name__))


def _object(name: str, config: Mapping[str, Any]) -> str:
    shown = [f"{key}={_text(_collapsed(value), {})}" for key, value in sorted(config.items()) if key != "name"]
    return f"{name}({', '.join(shown)})"


def _collapsed(value: Any) -> Any:
    """Returns an object's configuration as one text; lists of them likewise."""
    if isinstance(value, Mapping) and {"class_name", "config"} <= value.keys():
        config = _without_bytecode(value)["config"]
        if not isinstance(config, Mapping):
            return str(config)
        if value["class_name"] == "DTypePolicy":
            return str(config.get("name"))
        return _object(value["class_name"], config)
    if isinstance(value, Mapping):
        return {key: _collapsed(item) for key, item in value.items()}
    return [_collapsed(item) for item in value] if isinstance(value, list | tuple) else value


def _without_bytecode(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A lambda's bytecode holds line numbers. What it does is compared as any function of the user's."""
    if value.get("class_name") != "__lambda__":
        return value
    return {**value, "config": {key: item for key, item in value["config"].items() if key != "code"}}


def _flat(value: Any, where: str) -> dict[str, str]:
    renamed = _renumbered(_names(value))
    return {name: _text(leaf, renamed) for name, leaf in _leaves(value, where)}


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    last = where.rpartition("/")[2]
    if last.endswith("_initializer") or last in _IRRELEVANT:
        return
    if last.endswith(_OBJECTS):
        yield where, _collapsed(value)
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


def _names(value: Any) -> set[str]:
    return {leaf for where, leaf in _leaves(value, "") if where.rpartition("/")[2] == "name" and isinstance(leaf, str)}


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
