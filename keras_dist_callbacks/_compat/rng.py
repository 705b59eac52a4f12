"""The global random states of Python, numpy, torch and TensorFlow, as JSON.

Keras' own randomness lives in seed-generator variables and is captured with the variables.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection
from typing import Any

import numpy as np

from keras_dist_callbacks._compat.incompatible import incompatible


def capture() -> dict[str, Any]:
    """Returns the states as of now; torch's too where the process has imported it."""
    state = {
        "python": _python_state(random.getstate()),
        "numpy": _numpy_state(),
        "tensorflow": _tensorflow_state(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state().numpy().tobytes().hex()
    return state


def restore(state: dict[str, Any], *, leave: Collection[str] = ()) -> None:
    """Puts the states back.

    Args:
        state: What `capture` returned.
        leave: Those of `"python"`, `"numpy"` and `"torch"` that stay as they are.
    """
    if "python" not in leave:
        random.setstate(_python_tuple(state["python"]))
    if "numpy" not in leave:
        name, key, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.array(key, np.uint32), position, has_gauss, cached))
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state and "torch" not in leave:
        torch.set_rng_state(torch.from_numpy(np.frombuffer(bytes.fromhex(state["torch"]), np.uint8).copy()))
    _restore_tensorflow(state["tensorflow"])


def changed_since(since: dict[str, Any]) -> set[str]:
    """Returns which of Python's, numpy's and torch's states are others than they were."""
    now = capture()
    return {name for name in ("python", "numpy", "torch") if name in since and now.get(name) != since[name]}


def is_shuffle_of(count: int, since: dict[str, Any]) -> bool:
    """Returns whether Python's state is the one after shuffling a list of `count` items once."""
    generator = random.Random()  # noqa: S311 - nothing to do with security
    generator.setstate(_python_tuple(since["python"]))
    generator.shuffle(list(range(count)))
    return _python_state(generator.getstate()) == _python_state(random.getstate())


def global_seed() -> int | None:
    """TensorFlow's global seed, as `keras.utils.set_random_seed` sets it."""
    seed = _context()._seed
    return None if seed is None else int(seed)


def is_deterministic() -> bool:
    """Returns whether `tf.config.experimental.enable_op_determinism()` was called."""
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


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
        raise incompatible("TensorFlow's eager context has no _seed")
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
