"""The global random states of Python, numpy, TensorFlow and other libraries, as JSON.

Keras' own randomness lives in seed-generator variables and is captured with the variables. A library with a global
generator of its own is a line in `_LIBRARIES`: all that saves and restores random states follows.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from keras_dist_callbacks._compat.incompatible import incompatible


def _torch_state(torch: Any) -> str:
    return str(torch.get_rng_state().numpy().tobytes().hex())


def _restore_torch(torch: Any, state: str) -> None:
    torch.set_rng_state(torch.from_numpy(np.frombuffer(bytes.fromhex(state), np.uint8).copy()))


_LIBRARIES: dict[str, tuple[Callable[[Any], str], Callable[[Any, str], None]]] = {
    "torch": (_torch_state, _restore_torch)
}
"""By the name of a module: returns its state, and puts one back; both get the module, where it is imported."""


def capture() -> dict[str, Any]:
    """Returns the states as of now; those of other libraries where the process has imported them."""
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "python": _python_state(random.getstate()),
        "numpy": [str(name), np.asarray(key).tolist(), int(position), int(has_gauss), float(cached)],
        "tensorflow": _tensorflow_state(),
    }
    state |= {name: get(sys.modules[name]) for name, (get, _) in _LIBRARIES.items() if sys.modules.get(name)}
    return state


def restore(state: dict[str, Any], *, leave: Collection[str] = ()) -> None:
    """Puts the states back.

    Args:
        state: What `capture` returned.
        leave: Those that stay as they are; not TensorFlow's.
    """
    if "python" not in leave:
        random.setstate(_python_tuple(state["python"]))
    if "numpy" not in leave:
        name, key, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.array(key, np.uint32), position, has_gauss, cached))
    for name, (_, put) in _LIBRARIES.items():
        if sys.modules.get(name) and name in state and name not in leave:
            put(sys.modules[name], state[name])
    _restore_tensorflow(state["tensorflow"])


def changed_since(since: dict[str, Any]) -> set[str]:
    """Returns which states are others than they were; TensorFlow's is not asked."""
    now = capture()
    return {name for name in since.keys() - {"tensorflow"} if now.get(name) != since[name]}


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
