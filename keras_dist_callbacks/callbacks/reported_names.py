"""Whether training reports the names that a callback looks for: else it is known only when the first file is due."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import warn

_VALIDATION = "val_"
_OF_CALLBACKS = "learning_rate"  # Keras' own callbacks add it at the end of an epoch
_SIMILAR = 0.5  # "acc" and "accuracy" have 0.55
_STEPS = ("train_step", "test_step", "evaluate", "make_test_function", "compute_metrics", "get_metrics_result")


class ReportedNames:
    """Compares the names that a callback uses with those that one fit() reports.

    What is reported is seen at the first step, whatever the form in which metrics were compiled. Until the end of an
    epoch a name that is missing is a warning, because callbacks may add names to the logs.

    Args:
        owner: The callback, for messages.
        used: The names, each with where it was given.
        fit: The running fit; None in a loop of the user's, of which nothing is known.
        of_batches: Whether they are looked for after batches, and not at the ends of epochs.
        warns: Whether this worker warns.
    """

    def __init__(
        self, owner: str, used: Mapping[str, str], fit: RunningFit | None, *, of_batches: bool, warns: bool
    ) -> None:
        self._owner, self._fit, self._of_batches, self._warns = owner, fit, of_batches, warns
        self._used = {} if fit is None else dict(used)
        self._unseen = list(self._used)  # at an epoch's end that could report them
        self._in_batches: list[str] | None = None
        self._validates = (
            fit is not None
            and fit.validation_source is not None
            and any(map(fit.validates, range(fit.initial_epoch, fit.epochs)))
        )
        self._warn_of_validation()

    def after_batch(self, logs: Mapping[str, Any]) -> None:
        """After each batch: at the first one, warns of names that no metric has."""
        if self._in_batches is not None:
            return
        self._in_batches = list(logs)
        validated = [f"{_VALIDATION}{name}" for name in logs] if self._validates and not self._of_batches else []
        expected = [*logs, *validated]
        for name in self._used:
            if name not in expected and self._is_known(name):
                self._warn(self._missing(name, expected))

    def after_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """At the end of an epoch, before the callback needs the names.

        Raises:
            ConfigError: A name is missing where it should be, and no callback may add it later.
        """
        reported = (self._in_batches or ()) if self._of_batches else logs
        for name in [name for name in self._unseen if not self.comes_later(name, epoch)]:
            self._unseen.remove(name)
            if name not in reported and not self._may_be_added():
                raise self.error(name, reported)

    def comes_later(self, name: str, epoch: int) -> bool:
        """Returns whether a name is reported by validation, which some epochs have and this one has not."""
        of_validation = name.startswith(_VALIDATION) and self._validates and not self._of_batches
        return of_validation and self._fit is not None and not self._fit.validates(epoch)

    def error(self, name: str, reported: Iterable[str]) -> ConfigError:
        """Returns the error for a name that is missing.

        Args:
            name: The name.
            reported: Those that are in the logs.
        """
        return ConfigError(self._missing(name, reported))

    def _missing(self, name: str, reported: Iterable[str]) -> str:
        names = sorted(reported)
        close = difflib.get_close_matches(name, names, n=1, cutoff=_SIMILAR)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        where = "after a batch, where save_freq saves" if self._of_batches else "by this fit()"
        return f"{self._uses(name)}, which is not reported {where}. Reported: {', '.join(names) or 'nothing'}{meant}"

    def _uses(self, name: str) -> str:
        return f"{self._owner} uses {name!r} ({self._used.get(name, 'filepath')})"

    def _is_known(self, name: str) -> bool:
        """Returns whether a name is known to be missing that the first batch does not let expect."""
        if name.startswith(_VALIDATION) and not self._of_batches:
            return self._validates and self._has_steps_of_keras()  # else it was named before training
        return not name.startswith(_OF_CALLBACKS)

    def _has_steps_of_keras(self) -> bool:
        """Returns whether validation reports what training does; a step of the user's reports anything."""
        model = None if self._fit is None else self._fit.model
        return all(getattr(getattr(model, name), "__func__", None) is getattr(keras.Model, name) for name in _STEPS)

    def _may_be_added(self) -> bool:
        """Returns whether a callback of others is called with the logs, to which it may add at times."""
        callbacks = getattr(self._fit and self._fit.callback_list, "callbacks", ())
        hooks = ("on_train_batch_end", "on_batch_end") if self._of_batches else ("on_epoch_end",)
        return any(_has_own(callback, hook) for callback in callbacks for hook in hooks)

    def _warn_of_validation(self) -> None:
        if self._fit is None or self._validates or self._of_batches:
            return
        without = "has no validation data" if self._fit.validation_source is None else "validates in none of its epochs"
        for name in (name for name in self._used if name.startswith(_VALIDATION)):
            self._warn(
                f"{self._uses(name)}, but fit() {without}: give it validation_data or validation_split, or use "
                f"{name.removeprefix(_VALIDATION)!r}"
            )

    def _warn(self, text: str) -> None:
        if self._warns:
            warn(text, UserWarning)


def _has_own(callback: Any, hook: str) -> bool:
    """Returns whether a hook is code of others than Keras and this package."""
    if hook in vars(callback):  # such as those of LambdaCallback and ChiefOnly
        return True
    owner = next((kind for kind in type(callback).__mro__ if hook in vars(kind)), type(None))
    return owner.__module__.partition(".")[0] not in ("keras", "keras_dist_callbacks", "builtins")
