"""Where a walk begins in a running fit(), and what a path is called in messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist_callbacks._compat import model_config, pipeline
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.training.user_state.walker import Root

_HIDDEN_SEGMENTS = ("self", "function", "func", "python_function", "__func__", "__wrapped__", "fget", "fset")


def roots_of(fit: RunningFit, callbacks: Mapping[str, Any]) -> dict[str, Root]:
    """What a training runs: its model, and the callbacks by name."""
    model = fit.model
    is_traced = not model.run_eagerly
    roots = {"model": Root(model, is_traced)}
    for name, value in {"optimizer": model.optimizer, **model_config.compiled_objects(model)}.items():
        if value is not None:
            roots[name] = Root(value, is_traced)
    for name, callback in callbacks.items():
        roots[f"callback {name}"] = Root(callback)
    params = getattr(next(iter(callbacks.values()), None), "params", None)
    if params is not None:
        roots["fit/params"] = Root(params)
    return roots


def input_roots(fit: RunningFit) -> dict[str, Root]:
    """The Python code of the input, which runs ahead of training: it is only compared between two runs."""
    roots = {}
    for name, source in {"input": fit.input, "validation data": fit.validation_source}.items():
        if hasattr(source, "_inputs"):
            for number, function in enumerate(pipeline.python_functions(source)):
                roots[f"{name} function {number}"] = Root(function)
        elif hasattr(type(source), "__getitem__") and not hasattr(source, "dtype"):
            roots[name] = Root(source)
    return roots


def words(path: str) -> tuple[str, str]:
    """A path as its owner and its place there, such as `("MyCallback", "rates")`."""
    root, *segments = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
    shown = [_segment(segment) for segment in segments if segment not in _HIDDEN_SEGMENTS]
    kind, _, name = root.partition(" ")
    if kind == "callback":
        name = name.removesuffix("()")
        return f"the callback {name}", ".".join(shown)
    if kind == "class":
        return f"the class {name.rpartition('.')[2]}", ".".join(shown)
    if kind == "module":
        return f"the module {name}", ".".join(shown)
    return f"the {root}", ".".join(shown)


def _segment(segment: str) -> str:
    kind, _, name = segment.partition(" ")
    if kind in ("closure", "default") and name:
        return f"{name} ({kind})"
    return "learning_rate" if segment == "_learning_rate" else segment
