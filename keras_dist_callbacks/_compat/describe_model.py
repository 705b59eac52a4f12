"""What a model and its compile() say about themselves, as flat names and texts that two runs can compare."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

_IRRELEVANT = ("_initializer", "build_config", "batch_input_shape", "registered_name", "module")


def model_facts(model: Any) -> dict[str, str]:
    """The configuration of every layer, in order; names without automatic numbering."""
    facts: dict[str, str] = {}
    if _has_config(model):
        config = {key: value for key, value in model.get_config().items() if key != "name"}
        facts.update(_flat(config, "model"))
    else:
        for number, layer in enumerate(model._flatten_layers(include_self=False)):
            where = f"layer {number} ({_unnumbered(layer.name)})"
            facts[f"{where}/class"] = type(layer).__name__
            facts.update(_flat(_config(layer), where))
    facts["dtype policy"] = str(getattr(model.dtype_policy, "name", model.dtype_policy))
    return facts


def compile_facts(model: Any) -> dict[str, str]:
    """What compile() was told: the optimizer without its rate, losses, how steps are run."""
    facts = {"run_eagerly": str(bool(model.run_eagerly)), "jit_compile": str(model.jit_compile)}
    losses = getattr(model, "_compile_loss", None)
    if losses is not None:
        facts["loss"] = _named(losses._user_loss)
        facts["loss_weights"] = str(losses._user_loss_weights)
    if model.optimizer is not None:
        facts["optimizer/class"] = type(model.optimizer).__name__
        config = {key: value for key, value in _config(model.optimizer).items() if key not in {"name"}}
        if not isinstance(config.get("learning_rate"), dict):
            config.pop("learning_rate", None)  # a number is a variable, which is restored
        facts.update(_flat(config, "optimizer"))
    return facts


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
    """A loss by its name, the same whether it was given as a string, a function or an object with defaults."""
    if isinstance(loss, Mapping):
        return str({key: _named(value) for key, value in loss.items()})
    if isinstance(loss, list | tuple):
        return str([_named(value) for value in loss])
    if isinstance(loss, str) or loss is None:
        return str(loss)
    if hasattr(loss, "get_config"):
        config = {key: value for key, value in sorted(_config(loss).items()) if key != "name"}
        return f"{type(loss).__name__}({', '.join(f'{k}={_text(v)}' for k, v in config.items())})"
    return str(getattr(loss, "__name__", type(loss).__name__))


def _flat(value: Any, where: str) -> dict[str, str]:
    return {name: text for name, text in _leaves(value, where) if not name.endswith(_IRRELEVANT)}


def _leaves(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if where.endswith(_IRRELEVANT):
        return
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(value[key], f"{where}/{key}")
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{where}/{number}")
    else:
        yield where, _text(value)


def _text(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", _unnumbered(str(value)))


def _unnumbered(text: str) -> str:
    return re.sub(r"_\d+(?=\W|$)", "", text)
