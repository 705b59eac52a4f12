"""What a copy of a callback is: a new one with the same arguments, whatever the original has been through."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

from keras_dist_callbacks._compat import keras_in_use


class RebuiltOnCopy:
    """A callback whose copies are made by its constructor, from the arguments that it was given itself.

    That holds for `copy.copy`, `copy.deepcopy` and pickle, before, in and after a fit. What a fit made of the original
    (its model, an open backup, counters, files) stays with the original, and so does what was set on it afterwards.
    A pickle holds the arguments, credentials in `storage_options` included.
    """

    __slots__ = ("_given",)  # not among an instance's attributes, where a backup looks for state
    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remembers the arguments; those of a subclass, if that has a constructor of its own.

        Raises:
            ConfigError: Keras does not run on TensorFlow.
        """
        keras_in_use.require_backend()
        made = super().__new__(cls)
        made._given = (tuple(map(_kept, args)), {name: _kept(value) for name, value in kwargs.items()})
        return made

    def set_model(self, model: Any) -> None:
        """Takes the model.

        Raises:
            ConfigError: It is of another Keras.
        """
        keras_in_use.require_model(model)
        super().set_model(model)  # type: ignore[misc]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns how the copy is made."""
        args, kwargs = self._given
        return _rebuilt, (type(self), args, kwargs)


def _kept(value: Any) -> Any:
    """As it is now: the caller may change it later, and the callback did not read it then."""
    return copy.copy(value) if isinstance(value, dict | list | set) else value


def _rebuilt(cls: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return cls(*args, **kwargs)
