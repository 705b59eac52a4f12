"""The parts of a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import keras

from keras_dist_callbacks._compat import building, keras_in_use, strategies
from keras_dist_callbacks.backups.snapshot import WorkerState
from keras_dist_callbacks.base import static, validation
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError


class NotCopyable:
    """What belongs to one loop, its model and its directory, of which a copy would be a second writer."""

    def __reduce__(self) -> NoReturn:
        """Refuses `copy.copy`, `copy.deepcopy` and pickle.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"a {type(self).__name__} can be neither copied nor pickled: it holds the variables of its model and its "
            "directory; make one where the model is made, in the process that trains it"
        )


@dataclass(frozen=True, eq=False)
class TrainingObjects:
    """What a loop trains, under the names that a Keras model has for it.

    Attributes:
        origin: The checkpoint that the model was made from, or None.
    """

    variables: list[Any]
    optimizer: Any
    metrics: list[Any]
    distribute_strategy: Any
    origin: Any

    @classmethod
    def of(cls, model: Any, optimizer: Any, metrics: Iterable[Any], variables: Iterable[Any]) -> Self:
        """Puts them together.

        Raises:
            ConfigError: They are something else, or some of their variables do not exist yet.
        """
        keras_in_use.require_model(model)
        validation.instance("model", model, keras.Model)
        if optimizer is not None:
            validation.instance("optimizer", optimizer, keras.optimizers.Optimizer, also="None")
        metrics = _all("metrics", metrics, lambda m: isinstance(m, keras.metrics.Metric), "Keras metrics")
        variables = _all("variables", variables, _is_variable, "variables of Keras or TensorFlow")
        reason = strategies.unsupported_reason(model.distribute_strategy)
        if reason is not None:
            raise ConfigError(reason)  # before it is asked for variables, which such a strategy has on other machines
        is_empty = not model.weights and building.has_unbuilt_layers(model)  # its own build() may have built no layer
        if not model.built or is_empty or (optimizer is not None and not optimizer.built):
            raise ConfigError(
                "Checkpointer needs all variables: call the model on a batch and "
                "optimizer.build(model.trainable_variables) first"
            )
        origin = static.attribute(model, "_kdc_origin")
        return cls([*model.variables, *variables], optimizer, metrics, model.distribute_strategy, origin)


def user_state(state: Any) -> dict[str, Any]:
    """Returns the user's dict itself, which a restore updates; a new one for None.

    Raises:
        ConfigError: It is something else.
    """
    if state is None or isinstance(state, dict):
        return {} if state is None else state
    raise validation.invalid_argument("state", state, "a dict, which restore() updates in place, or None")


def require_loop(saved: WorkerState) -> WorkerState:
    """Returns the backup of a loop.

    Raises:
        BackupMismatchError: It is a fit()'s.
    """
    return _require(saved.has("loop"), saved, "a fit() with BackupAndRestore", "a loop with Checkpointer")


def require_fit(saved: WorkerState) -> WorkerState:
    """Returns the backup of a fit().

    Raises:
        BackupMismatchError: It is a loop's.
    """
    return _require(not saved.has("loop"), saved, "a loop with Checkpointer", "a fit() with BackupAndRestore")


def _require(fits: bool, saved: WorkerState, one: str, other: str) -> WorkerState:
    if fits:
        return saved
    raise BackupMismatchError(
        f"the backup ({saved.position}) is that of {one}, and {other} cannot continue from it. Nothing was changed: "
        "give another directory, and load_backup(directory, model) for the weights, optimizer and metrics of this one"
    )


def _all(name: str, given: Any, fits: Callable[[Any], bool], what: str) -> list[Any]:
    found = None if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    if found is None or not all(map(fits, found)):
        raise validation.invalid_argument(name, given, f"a list of {what}")
    return found


def _is_variable(value: Any) -> bool:
    return callable(getattr(value, "assign", None)) and hasattr(value, "dtype")
