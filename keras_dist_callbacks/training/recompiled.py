"""What training has made of the compiled model: another optimizer, eager mode or XLA, slots for some weights."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks._compat import building, model_config, optimizers
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.manifest import COMPILED, PYTHON
from keras_dist_callbacks.backups.snapshot import JSON, WorkerState
from keras_dist_callbacks.training.capture import saved_variables

_OPTIMIZER, _RUN_EAGERLY, _JIT_COMPILE, _WEIGHTS = "optimizer", "run_eagerly", "jit_compile", "weights"


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
        self.lost: list[str] = []

    def note_function(self) -> None:
        """A step was made: by a train function that stays in the modes in which it was made."""
        if self._fit.model.train_function is not self._function:
            self._function, self._modes_of_function = self._fit.model.train_function, _modes(self._fit.model)

    def capture(self) -> dict[str, JSON]:
        """The topic of a snapshot; none if nothing was changed."""
        self.note_function()
        model = self._fit.model
        found: dict[str, JSON] = {} if self._modes == _modes(model) else dict(_modes(model))
        if model.run_eagerly and model.optimizer is not None:
            places = building.weights_of_partial_slots(model)
            found.update({_WEIGHTS: places} if places else {})
        self.lost = self._changed_arguments()
        if _modes(model) != self._modes_of_function:
            self.lost.append(
                "run_eagerly or jit_compile was changed, and the train function was not made again; call "
                "make_train_function(force=True)"
            )
        if model.optimizer is not self._optimizer:
            config = optimizers.config_of(model.optimizer)
            if config is None:
                name = type(model.optimizer).__name__
                self.lost.append(f"the optimizer was replaced by a new {name}, which only the script can make again")
            else:
                found[_OPTIMIZER] = config
        return {COMPILED: found} if found else {}

    def _changed_arguments(self) -> list[str]:
        model = self._fit.model
        if model_config.compilation(model) is self._compilation:
            return []
        now = _arguments(model)
        changed = [name for name in now if now[name] != self._arguments.get(name)]
        return [f"compile() was called again with other values of {', '.join(changed)}"] if changed else []

    def put_back(self, saved: WorkerState) -> None:
        """Gives the model what the interrupted run had given it, unless a callback has done so in this epoch."""
        model, found = self._fit.model, saved.state.get(COMPILED) or {}
        config = found.get(_OPTIMIZER)
        modes = {name: value for name, value in found.items() if name in (_RUN_EAGERLY, _JIT_COMPILE)}
        if modes and modes != _modes(model):
            model.run_eagerly, model.jit_compile = modes[_RUN_EAGERLY], modes[_JIT_COMPILE]
            model.make_train_function(force=True)
        changed = any(path.endswith("/_trainable") for path in saved.state.get(PYTHON) or ())
        if config is not None and not changed and model.optimizer is self._optimizer and optimizers.can_make(config):
            optimizers.replace(self._fit, config)
            building.build_optimizer_like(model.optimizer, model, saved_variables(saved))
        if _WEIGHTS in found:
            building.build_optimizer_for(model, found[_WEIGHTS])
        self.note_function()


def _arguments(model: Any) -> dict[str, str]:
    """What `compile()` was told of losses and metrics."""
    facts = model_config.compile_facts(model)
    return {
        name: fact for name, fact in facts.items() if not name.startswith("optimizer") and name not in _modes(model)
    }


def _modes(model: Any) -> dict[str, bool]:
    return {_RUN_EAGERLY: bool(model.run_eagerly), _JIT_COMPILE: bool(model.jit_compile)}
