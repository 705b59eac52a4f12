"""The parts of a running fit's state, in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from keras_dist_callbacks._compat import building, variables
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.snapshot import FitPlace
from keras_dist_callbacks.base.process_runs import FitsIn
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.state.architecture import Architecture
from keras_dist_callbacks.state.callback_state import CallbackStates
from keras_dist_callbacks.state.compiled_model import CompiledModel
from keras_dist_callbacks.state.environment import Environment
from keras_dist_callbacks.state.facts.script_facts import ScriptFacts
from keras_dist_callbacks.state.inputs.position import DataPosition
from keras_dist_callbacks.state.own_objects.input_objects import InputState
from keras_dist_callbacks.state.own_objects.user_state import UserState
from keras_dist_callbacks.state.part import Part
from keras_dist_callbacks.state.progress import Progress
from keras_dist_callbacks.state.random_states import RandomStates, RandomStatesAtEpoch
from keras_dist_callbacks.state.step_variables import CapturedVariables, UnsavedVariables
from keras_dist_callbacks.state.variables import ModelVariables


@dataclass(frozen=True)
class FitParts:
    """All parts of one fit; they are restored in this order, at each moment."""

    random_at_epoch: RandomStatesAtEpoch  # the input draws from them when it is entered
    input: DataPosition
    input_objects: InputState  # what the code of past epochs has changed is put back after it ran
    compile: CompiledModel  # builds the variables that follow
    variables: ModelVariables
    step: CapturedVariables
    unsaved: UnsavedVariables
    facts: ScriptFacts  # of a model that is built; what they name, the next part does not name again
    objects: UserState  # traces the step anew, with variables and values as they were; callbacks' `set_state` within it
    callbacks: CallbackStates
    environment: Environment
    progress: Progress
    architecture: Architecture
    random: RandomStates  # last: whatever was called before may have drawn

    @classmethod
    def of(
        cls,
        fit: RunningFit,
        callbacks: Sequence[Any],
        cluster: Cluster,
        directory: str,
        this_fit: FitPlace,
        runs: FitsIn,
        *,
        read_again: bool,
        shown: bool,
    ) -> Self:
        """Makes those of one fit, after all `on_train_begin` and before anything is built or restored.

        Args:
            fit: The running fit.
            callbacks: All callbacks whose state belongs to training.
            cluster: This worker's place.
            directory: The backup directory, as it is shown.
            this_fit: What distinguishes it from other fits in this directory.
            runs: What this process knows of the fits in the directory.
            read_again: As in `BackupAndRestore`: `reread_input`.
            shown: Whether a bar may be drawn.
        """
        step = CapturedVariables(fit)
        # The input moves Keras' global seed generator itself: with it, that is where it belongs.
        listed = ModelVariables(
            fit.model,
            cluster,
            leave=lambda: variables.global_seed_keys() & data.hides.keys,
            is_built=lambda: building.is_built(fit.model),
        )
        compiled, facts = CompiledModel(fit, listed, step), ScriptFacts(fit, directory, callbacks)
        states = CallbackStates(callbacks)
        objects = UserState(
            fit, callbacks, directory, listed=listed, step=step, compiled=compiled, facts=facts, states=states
        )

        def is_used(key: int) -> bool:
            if key in step.captured_keys or key in objects.variable_keys:
                return True
            return key in variables.variable_set(fit.model).keys and key not in variables.global_seed_keys()

        data = DataPosition(fit, callbacks, objects.input, is_used, this_fit, runs, read_again=read_again, shown=shown)
        return cls(
            random_at_epoch=RandomStatesAtEpoch(data.restore_rng),
            input=data,
            input_objects=objects.input,
            compile=compiled,
            variables=listed,
            step=step,
            unsaved=UnsavedVariables(fit, step, lambda: objects.variable_keys, warn=cluster.is_chief),
            facts=facts,
            objects=objects,
            callbacks=states,
            environment=Environment(),
            progress=Progress(fit, callbacks, this_fit),
            architecture=Architecture(fit.model, is_chief=cluster.is_chief),
            random=RandomStates(data.restore_rng),
        )

    def __iter__(self) -> Iterator[Part]:
        return iter(vars(self).values())
