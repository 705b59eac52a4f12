"""What training has made of the compiled model, and a restart has as its script compiles it."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks._compat import building, model_config, model_parts
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.manifest import COMPILED
from keras_dist_callbacks.backups.snapshot import JSON, WorkerState


class CompiledModel:
    """What one fit has begun with.

    Args:
        model: The model, before the fit's first epoch and before a restore.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._compilation, self._optimizer = model_config.compilation(model), model.optimizer
        self._modes = _modes(model)
        self._set_trainable: list[str] | None = None
        self._was_another = False
        self.note_built()

    def note_built(self) -> None:
        """The layers have their variables now, or may have."""
        if self._set_trainable is None and not building.unbuilt_layers(self._model):
            self._set_trainable = model_parts.variables_set_trainable(self._model)

    def continue_from(self, saved: WorkerState) -> None:
        """An earlier fit of this process ended with this backup, and its model is trained further."""
        self._was_another = COMPILED in saved.state

    @property
    def is_another(self) -> bool:
        """Whether a restart has other objects as optimizer, losses and metrics."""
        model = self._model
        return model_config.compilation(model) is not self._compilation or model.optimizer is not self._optimizer

    def capture(self) -> dict[str, JSON]:
        """Returns the topic of a snapshot; none if nothing was changed."""
        return {COMPILED: True} if self._was_another or self.is_another else {}

    @property
    def changes(self) -> list[Finding]:
        """What was changed and is not made again."""
        model, found = self._model, []
        if model_config.compilation(model) is not self._compilation:
            found.append(Finding("compiled"))
        elif model.optimizer is not self._optimizer:
            found.append(Finding("optimizer-replaced"))
        elif _modes(model) != self._modes:
            found.append(Finding("mode-changed"))
        now = model_parts.variables_set_trainable(model)
        changed = sorted(set(now) ^ set(now if self._set_trainable is None else self._set_trainable))
        return [*found, *(Finding("variables-trainable", detail=(name,)) for name in changed)]


def _modes(model: Any) -> tuple[bool, bool]:
    return bool(model.run_eagerly), bool(model.jit_compile)
