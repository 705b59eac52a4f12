"""Sources of batches: those that keep their own state, and those that have none."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tensorflow as tf

from keras_dist_callbacks._compat import pipeline, torch_loader
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError
from keras_dist_callbacks.base.process import Shared, shared

_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
_BEGUN = "_iterator_finished"  # False in a StatefulDataLoader's state: a pass was begun


@dataclass(frozen=True)
class StatefulSource:
    """How an input is asked where it is, and put there.

    Attributes:
        get: Returns the position before a pass; None if the input does not know it, being where a new one is.
        set: Takes what `get` returned.
        is_all: Whether that is all the state it has, by its own word.
    """

    get: Callable[[], Mapping[str, Any] | None]
    set: Callable[[dict[str, Any]], None]
    is_all: bool = True


def stateful_source_of(source: Any, *, iterator_persists: bool) -> StatefulSource | None:
    """Returns the account of an input, if it gives any.

    Args:
        source: What was passed to fit.
        iterator_persists: Whether an iterator of it lives across epochs.
    """
    if torch_loader.order_depends_on_rng_only(source):
        return None if iterator_persists else _drawn(source)
    pair = next((p for p in _METHODS if all(callable(static.attribute(source, name)) for name in p)), None)
    if pair is None:
        return None
    get, put = (getattr(source, name) for name in pair)
    if torch_loader.is_loader(source):
        return StatefulSource(lambda: _unless_begun(get()), put, is_all=False)
    if iterator_persists:
        return None  # at the end of an epoch it has read ahead of training
    if isinstance(source, tf.data.Dataset) and pipeline.caches(source):
        return None  # its code runs in the first pass only, or in that of a restart
    return StatefulSource(get, put)


def _unless_begun(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Keras looks at a loader's first batches before it trains; to continue after them would skip them."""
    return None if state.get(_BEGUN) is False else state


def _drawn(loader: Any) -> StatefulSource | None:
    found = torch_loader.generators(loader)

    def put(state: dict[str, Any]) -> None:
        try:
            torch_loader.set_states(found, state["generators"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BackupMismatchError(
                f"the random generators of the torch {type(loader).__name__} differ from those of the interrupted run: "
                f"{error}; give it the same ones (the backup is unchanged)"
            ) from error

    return StatefulSource(lambda: {"generators": torch_loader.states(found)}, put, is_all=False) if found else None


_T = TypeVar("_T")


@dataclass
class _Inputs(Shared):
    given: dict[int, weakref.ref[Any]] = field(default_factory=dict)  # by identity: no `__eq__` is asked


def stateless_input(source: _T) -> _T:
    """Says that Python code in an input keeps no state, so that a resume is "exact" instead of "exact if".

    Python code cannot be inspected. Your assertion: reading the same batches again, after the same random states
    of Python, numpy and torch, yields the same values; the code has no generator, counter, cursor or open file of its
    own. An input that has such a state gets `get_state` and `set_state` instead.

    Example:
        ```python
        batches = kdc.advanced.stateless_input(batches)
        model.fit(batches, epochs=90, callbacks=[kdc.BackupAndRestore("backup")])
        ```

    Args:
        source: What `fit()` or `Checkpointer.batches` is given: a dataset with `from_generator`, `numpy_function` or
            `py_function` in it, a PyDataset, a Python generator, a torch DataLoader; the function of `EpochDataset`; or
            any function that a condition of a verdict names.

    Returns:
        `source` itself.

    Raises:
        ConfigError: It cannot be remembered, such as a list.
    """
    given, key = shared(_Inputs).given, id(source)
    try:
        given[key] = weakref.ref(source, lambda _: given.pop(key, None))
    except TypeError:
        raise ConfigError(
            "source: stateless_input takes the input itself or the function of EpochDataset, got a "
            f"{type(source).__name__}"
        ) from None
    return source


def is_stateless(source: Any) -> bool:
    """Returns whether `stateless_input` was called with it."""
    return id(source) in shared(_Inputs).given
