"""The user's word that Python code of an input keeps no state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.process import Shared, shared

_T = TypeVar("_T")


@dataclass
class _Inputs(Shared):
    given: WeakKeyDictionary[Any, bool] = field(default_factory=WeakKeyDictionary)


def stateless_input(source: _T) -> _T:
    """Says that Python code in an input keeps no state, so that a resume is "exact" instead of "exact if".

    Into Python code nobody can look. What is yours to say: reading the same batches again, after the same random states
    of Python, numpy and torch, yields the same values; the code has no generator, counter, cursor or open file of its
    own. An input that has such a state gets `get_state` and `set_state` instead.

    Example:
        ```python
        model.fit(kdc.stateless_input(batches), epochs=90, callbacks=[kdc.BackupAndRestore("backup")])
        ```

    Args:
        source: What `fit()` or `Checkpointer.batches` is given: a dataset with `from_generator`, `numpy_function` or
            `py_function` in it, a PyDataset, a Python generator, a torch DataLoader; or the function of `EpochDataset`.

    Returns:
        `source` itself.

    Raises:
        ConfigError: It cannot be remembered, such as a list.
    """
    try:
        shared(_Inputs).given[source] = True
    except TypeError:
        raise ConfigError(
            "source: stateless_input takes the input itself or the function of EpochDataset, got a "
            f"{type(source).__name__}"
        ) from None
    return source


def is_stateless(source: Any) -> bool:
    """Whether `stateless_input` was called with it."""
    try:
        return source in shared(_Inputs).given
    except TypeError:
        return False
