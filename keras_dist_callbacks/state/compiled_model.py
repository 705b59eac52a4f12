"""How the model is compiled and built: what training has made of it, and a restart has as its script makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks._compat import building, graphs, model_config, model_parts
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import VARIABLES, Piece, Position, Saved, WorkerState
from keras_dist_callbacks.base.errors import BackupMismatchError
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival
from keras_dist_callbacks.state.step_variables import CapturedVariables, names_of_step
from keras_dist_callbacks.state.variables import ModelVariables, saved_names


@dataclass(frozen=True)
class Built:
    """What the interrupted run had built, by the names of its variables.

    Attributes:
        listed: Those that Keras lists.
        metrics: Those of them that are metrics'.
        of_step: Those that only the train step holds.
        optimized: The places of the weights for which an optimizer was built, where the names of slots do not tell.
    """

    listed: Sequence[str]
    metrics: Sequence[str]
    of_step: Sequence[str]
    optimized: Sequence[int] = ()

    @classmethod
    def of(cls, backup: WorkerState) -> Built:
        """Returns what a backup says."""
        listed, step, compiled = (backup.of(part) for part in (VARIABLES, "step", CompiledModel.name))
        names = saved_names(listed), listed.mine.state["metrics"], names_of_step(step)
        return cls(*names, compiled.mine.state.get("optimized") or ())


class CompiledModel(Part):
    """What one fit has begun with.

    Args:
        fit: The running fit, before its first epoch and before a restore.
        variables: Those that Keras lists.
        step: Those that only the train step holds.

    Attributes:
        was_another: Whether the interrupted run had compiled the model again, or given it another optimizer.
        is_not_restored: Whether the weights alone were restored for that reason.
    """

    name = "compile"

    def __init__(self, fit: RunningFit, variables: ModelVariables, step: CapturedVariables) -> None:
        self._fit, self._variables, self._step = fit, variables, step
        self._model = model = fit.model
        self._compilation, self._optimizer = model_config.compilation(model), model.optimizer
        self._modes = _modes(model)
        self._set_trainable: list[str] | None = None
        self._stays_another = self.was_another = self.is_not_restored = False
        self.note_built()

    def note_built(self) -> None:
        """The layers have their variables now, or may have."""
        if self._set_trainable is None and not building.unbuilt_layers(self._model):
            self._set_trainable = model_parts.variables_set_trainable(self._model)

    def continue_from(self, saved: Saved) -> None:
        """The model stays what the fit before has made of it."""
        self._stays_another = "is_another" in saved.mine.state

    def check(self, saved: Saved) -> None:
        """Notes whether the variables of a backup may be those of another optimizer than the script's."""
        self.was_another = "is_another" in saved.mine.state

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Builds what the interrupted run's first step has built."""
        if moment is moment_of_arrival(saved.position):
            optimized = saved.mine.state.get("optimized") or ()
            build(self._fit, Built(*self._variables.saved_names, self._step.saved_names, optimized))
        return []

    @property
    def is_another(self) -> bool:
        """Whether a restart has other objects as optimizer, losses and metrics."""
        model = self._model
        return model_config.compilation(model) is not self._compilation or model.optimizer is not self._optimizer

    def capture(self, position: Position) -> Piece:
        """Returns what a restart cannot know of how the model is compiled."""
        topics: dict[str, Any] = {"is_another": True} if self._stays_another or self.is_another else {}
        if self._model.run_eagerly and self._model.optimizer is not None:  # in graph mode the traced step builds it
            places = building.weights_of_partial_slots(self._model)
            topics.update({"optimized": places} if places else {})
        return Piece(topics, findings=tuple(self._changes()))

    def _changes(self) -> list[Finding]:
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


class NotBuiltError(BackupMismatchError):
    """A model that was not built before `fit()` cannot be built without running a step.

    Args:
        model: The model.
        error: What went wrong.
    """

    def __init__(self, model: Any, error: Exception) -> None:
        super().__init__(
            f"the model {model.name!r} is not built, and Keras cannot build it without running a step "
            f"({type(error).__name__}: {_last_line(error)}). To resume, give the model an Input, or call it on a batch "
            "of data before fit(); of one that has no call(), call each layer"
        )


def build(fit: RunningFit, wanted: Built) -> None:
    """Builds what the interrupted run's first step has built, and the default strategy leaves to it.

    By tracing the train step: it makes variables as the interrupted run's first step did, such as an optimizer's for a
    part of the weights only. In eager mode, no optimizer gets variables of which the backup knows nothing.

    Raises:
        BackupMismatchError: The step cannot be traced.
        NotBuiltError: The model has layers that only a step which is run can build.
    """
    model = fit.model
    if building.is_built(model):
        return
    try:
        if not model.run_eagerly and graphs.trace(fit):
            return
        failed = building.build_symbolically(fit)
        if failed is not None and building.has_unbuilt_layers(model):
            raise NotBuiltError(model, failed)
        building.build_optimizers_like(model, wanted.listed, wanted.metrics, wanted.of_step, wanted.optimized)
    except NotBuiltError:
        raise
    except Exception as error:
        if building.unbuilt_layers(model):
            raise NotBuiltError(model, error) from error
        raise BackupMismatchError(
            f"the train step cannot be traced as in the interrupted run ({type(error).__name__}: {_last_line(error)}). "
            "The backup is unchanged: build and compile the model as before to resume, or use another directory to "
            "start again; if a callback changes it at an epoch, do that in on_epoch_begin of that epoch or a later one"
        ) from error


def _last_line(error: Exception) -> str:
    """Autograph's begin with a trace."""
    return (str(error).strip().splitlines() or [""])[-1].strip()
