"""What training has made of the compiled model: another optimizer, other losses or metrics, eager mode or XLA."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from keras_dist_callbacks._compat import building, model_config, model_parts
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.manifest import COMPILED, PYTHON
from keras_dist_callbacks.backups.snapshot import JSON, WorkerState
from keras_dist_callbacks.terminal import first_few
from keras_dist_callbacks.training.capture import saved_variables
from keras_dist_callbacks.training.user_state.state import UserState

_RUN_EAGERLY, _JIT_COMPILE, _WEIGHTS = "run_eagerly", "jit_compile", "weights"
_OPTIMIZER, _HELD, _LOSSES = "optimizer", "optimizer_at", "losses"


class Recompiled:
    """What one fit has begun with, and what it has now.

    Args:
        fit: The running fit, before its first epoch and before a restore.

    Attributes:
        lost: As of the last `capture`: what a backup cannot hold, a sentence each.
    """

    def __init__(self, fit: RunningFit) -> None:
        self._fit = fit
        self._optimizer = fit.model.optimizer
        self._modes = self._modes_of_function = _modes(fit.model)
        self._function = fit.model.train_function
        self._compilation, self._arguments = model_config.compilation(fit.model), _arguments(fit.model)
        is_built = not building.unbuilt_layers(fit.model)
        self._set_trainable = model_parts.variables_set_trainable(fit.model) if is_built else None
        self.lost: list[str] = []

    def note_function(self) -> None:
        """A step was made: by a train function that stays in the modes in which it was made."""
        if self._fit.model.train_function is not self._function:
            self._function, self._modes_of_function = self._fit.model.train_function, _modes(self._fit.model)
        if self._set_trainable is None and not building.unbuilt_layers(self._fit.model):
            self._set_trainable = model_parts.variables_set_trainable(self._fit.model)

    def capture(self, place: str | None) -> dict[str, JSON]:
        """Returns the topic of a snapshot; none if nothing was changed.

        Args:
            place: Where one of the user's objects has held the model's optimizer since the start; None if none has.
        """
        self.note_function()
        model = self._fit.model
        found: dict[str, JSON] = {} if self._modes == _modes(model) else dict(_modes(model))
        if model.run_eagerly and model.optimizer is not None:
            places = building.weights_of_partial_slots(model)
            found.update({_WEIGHTS: places} if places else {})
        self.lost = self._changed_trainable()
        changed, config = self._changed_arguments(), self._losses()
        if config is not None:
            found[_LOSSES] = config
        elif changed:
            names = ", ".join(changed)
            self.lost.append(f"compile() was called again with other values of {names}, which only the script can make")
        if _modes(model) != self._modes_of_function:
            self.lost.append(
                "run_eagerly or jit_compile was changed, and the train function was not made again; call "
                "make_train_function(force=True)"
            )
        if model.optimizer is not self._optimizer and place is not None:
            found[_HELD] = place
        elif model.optimizer is not self._optimizer:
            config = model_parts.optimizer_config(model.optimizer)
            if config is None:
                name = type(model.optimizer).__name__
                self.lost.append(f"the optimizer was replaced by a new {name}, which only the script can make again")
            else:
                found[_OPTIMIZER] = config
        return {COMPILED: found} if found else {}

    def _changed_trainable(self) -> list[str]:
        now = model_parts.variables_set_trainable(self._fit.model)
        changed = sorted(set(now) ^ set(now if self._set_trainable is None else self._set_trainable))
        if not changed:
            return []
        shown = first_few(changed)
        return [f"training has changed trainable of single variables ({', '.join(shown)}); set that of layers"]

    def remade_losses(self) -> Collection[str]:
        """Returns the names of losses and metrics, if other ones were compiled that a restart makes again."""
        return model_config.compiled_objects(self._fit.model) if self._losses() is not None else ()

    def _losses(self) -> dict[str, Any] | None:
        return model_parts.compile_config(self._fit.model) if self._changed_arguments() else None

    def _changed_arguments(self) -> list[str]:
        model = self._fit.model
        if model_config.compilation(model) is self._compilation:
            return []
        now = _arguments(model)
        return [name for name in now if now[name] != self._arguments.get(name)]

    def put_back(self, saved: WorkerState, user: UserState) -> None:
        """Gives the model what the interrupted run had given it, unless a callback has done the same in this epoch.

        Args:
            saved: The backup.
            user: The user's objects.
        """
        model, found = self._fit.model, saved.state.get(COMPILED) or {}
        config = found.get(_OPTIMIZER)
        losses = found.get(_LOSSES)
        if losses is not None and model_config.compilation(model) is self._compilation and model_parts.can_make(losses):
            model_parts.compile_again(self._fit, losses)
        modes = {name: value for name, value in found.items() if name in (_RUN_EAGERLY, _JIT_COMPILE)}
        if modes and modes != _modes(model):
            model.run_eagerly, model.jit_compile = modes[_RUN_EAGERLY], modes[_JIT_COMPILE]
            model.make_train_function(force=True)
        if found.keys() & {_HELD, _OPTIMIZER} and self._has_another_optimizer(config):
            user.restore_trainable(saved.state.get(PYTHON) or {}, saved.tensors)
            if _HELD in found:
                model_parts.replace_optimizer(self._fit, user.object_at(found[_HELD]))
            elif config is not None and model_parts.can_make(config):
                model_parts.replace_optimizer(self._fit, model_parts.make(self._fit, config))
        if model.optimizer is not self._optimizer:
            building.build_optimizer_like(model.optimizer, model, saved_variables(saved))
        if _WEIGHTS in found:
            building.build_optimizer_for(model, found[_WEIGHTS])
        self.note_function()

    def _has_another_optimizer(self, config: Any) -> bool:
        """Returns whether the optimizer is that of the script, or one that a callback has made with other arguments."""
        now = self._fit.model.optimizer
        return now is self._optimizer or (config is not None and model_parts.optimizer_config(now) != config)


def _arguments(model: Any) -> dict[str, str]:
    """Returns what `compile()` was given as losses and metrics."""
    facts = model_config.compile_facts(model)
    return {
        name: fact for name, fact in facts.items() if not name.startswith("optimizer") and name not in _modes(model)
    }


def _modes(model: Any) -> dict[str, bool]:
    return {_RUN_EAGERLY: bool(model.run_eagerly), _JIT_COMPILE: bool(model.jit_compile)}
