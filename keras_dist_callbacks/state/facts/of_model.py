"""What a model and its compile() were given, as texts."""

from __future__ import annotations

from typing import Any

import xxhash
from keras import tree

from keras_dist_callbacks._compat import model_config, model_parts
from keras_dist_callbacks.base import static
from keras_dist_callbacks.checkpoints.model_config import as_text, flat

_TRAINABLE, _INPUTS = "/trainable", "input layers"


def layers(model: Any) -> dict[str, str]:
    """Returns the configuration of every layer, in order, but for what the next two return."""
    return {name: value for name, value in _config(model).items() if not _is_apart(name)}


def trainable(model: Any) -> dict[str, str]:
    """Returns which layers are trained."""
    return {name: value for name, value in _config(model).items() if name.endswith(_TRAINABLE)}


def input_layers(model: Any) -> dict[str, str]:
    """Returns the configuration of input layers."""
    return {name: value for name, value in _config(model).items() if name.startswith(_INPUTS)}


def _is_apart(name: str) -> bool:
    return name.endswith(_TRAINABLE) or name.startswith(_INPUTS)


def _config(model: Any) -> dict[str, str]:
    config = model_config.config_of(model) if model_config.lists_layers(model) else {}
    if not config:  # a class of the user's, or a layer within that cannot give its configuration
        parts = enumerate(model_parts.all_layers(model))
        return flat(
            {f"layer {n}": {"name": x.name, "class": type(x).__name__, **model_config.config_of(x)} for n, x in parts}
        )
    kept = {key: value for key, value in config.items() if key not in ("name", "build_input_shape")}
    inputs = []
    if isinstance(every := config.get("layers"), list):
        inputs = [layer for layer in every if _is_input(layer)]
        kept["layers"] = [layer for layer in every if not _is_input(layer)]
    return flat({"model": kept, "input layers": inputs})


def _is_input(layer: Any) -> bool:
    return isinstance(layer, dict) and layer.get("class_name") == "InputLayer"


def vocabularies(model: Any) -> dict[str, str]:
    """Returns what layers have adapted to."""
    found = {}
    for number, (layer, weights) in enumerate(model_parts.vocabulary_layers(model)):
        words = [str(word) for word in layer.get_vocabulary()]
        digest = xxhash.xxh3_64(repr(words).encode())
        for weight in weights:
            digest.update(weight.numpy().tobytes())
        found[f"vocabulary {number}"] = f"{len(words)} entries, {digest.hexdigest()}"
    return found


def optimizer(model: Any) -> dict[str, str]:
    """Returns the optimizer's class and settings; of a learning rate that is a number, that it is one."""
    if model.optimizer is None:
        return {}
    config = model_config.config_of(model.optimizer)
    facts = {
        "optimizer/class": type(model.optimizer).__name__,
        **flat({"optimizer": {key: value for key, value in config.items() if key != "name"}}),
    }
    for name, (names, places) in model_config.without_weight_decay(model).items():
        where = f"optimizer/{name}/" if name else "optimizer/"
        facts[f"{where}exclude_from_weight_decay"] = f"names {names}, weights {places}"
    return facts


def called(losses: Any) -> str:
    """Returns losses or metrics by their names, the same whether one was given as a text, a function or an object."""
    return str(tree.map_structure(_name_of, losses))


def _name_of(loss: Any) -> str | None:
    if loss is None or type(loss) is str:
        return loss
    if static.has(loss, "get_config"):
        return as_text(type(loss).__name__, {**model_config.arguments_of_loss(loss), **model_config.config_of(loss)})
    return str(static.attribute(loss, "__name__", type(loss).__name__))
