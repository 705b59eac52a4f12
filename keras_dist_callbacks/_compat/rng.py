"""The global random states of Python, numpy and TensorFlow, as JSON.

Keras' own randomness lives in seed-generator variables and is captured with the variables.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from keras_dist_callbacks.errors import CompatError


def capture() -> dict[str, Any]:
    """The states as of now."""
    return {
        "python": _python_state(random.getstate()),
        "numpy": _numpy_state(),
        "tensorflow": _tensorflow_state(),
    }


def restore(state: dict[str, Any]) -> None:
    """Puts the states back."""
    random.setstate(_python_tuple(state["python"]))
    name, key, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(key, np.uint32), position, has_gauss, cached))
    _restore_tensorflow(state["tensorflow"])


def global_seed() -> int | None:
    """TensorFlow's global seed, as `keras.utils.set_random_seed` sets it."""
    seed = _context()._seed
    return None if seed is None else int(seed)


def _python_state(state: tuple[Any, ...]) -> list[Any]:
    version, internal, gauss = state
    return [version, list(internal), gauss]


def _python_tuple(state: list[Any]) -> tuple[Any, ...]:
    version, internal, gauss = state
    return version, tuple(internal), gauss


def _numpy_state() -> list[Any]:
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    return [str(name), [int(k) for k in key], int(position), int(has_gauss), float(cached)]


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _tensorflow_state() -> dict[str, Any]:
    """The generator that hands out seeds to operations, and the global `tf.random.Generator` if there is one."""
    from tensorflow.python.ops import stateful_random_ops

    context = _context()
    if not hasattr(context, "_seed"):
        raise CompatError("TensorFlow's eager context no longer keeps the global seed where this package knows it")
    state: dict[str, Any] = {"seed": context._seed}
    if context._seed is not None:
        state["rng"] = _python_state(context._rng.getstate())
    generator = getattr(stateful_random_ops, "global_generator", None)
    if generator is not None:
        state["generator"] = [int(x) for x in np.asarray(generator.state).ravel()]
    return state


def _restore_tensorflow(state: dict[str, Any]) -> None:
    from tensorflow.python.ops import stateful_random_ops

    context = _context()
    if state["seed"] is not None:
        if context._seed != state["seed"]:
            context._set_global_seed(state["seed"])
        context._rng.setstate(_python_tuple(state["rng"]))
    generator = getattr(stateful_random_ops, "global_generator", None)
    if generator is not None and "generator" in state:
        generator.state.assign(np.array(state["generator"], np.int64).reshape(generator.state.shape))
