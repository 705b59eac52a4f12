"""The parts of a training loop of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from keras_dist_callbacks.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Trained:
    """What a loop trains, under the names that a Keras model has for it."""

    variables: list[Any]
    optimizer: Any
    metrics: list[Any]

    @classmethod
    def of(cls, model: Any, optimizer: Any, metrics: Iterable[Any], variables: Iterable[Any]) -> Self:
        """Puts them together.

        Raises:
            ConfigError: Some of their variables do not exist yet.
        """
        if not model.built or (optimizer is not None and not optimizer.built):
            raise ConfigError(
                "Checkpointer needs all variables: call the model on a batch and "
                "optimizer.build(model.trainable_variables) first"
            )
        return cls([*model.variables, *variables], optimizer, list(metrics))
