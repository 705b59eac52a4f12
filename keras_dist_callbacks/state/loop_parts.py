"""The parts of the state of a training loop of the user's, in the order in which they depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from keras_dist_callbacks._compat import rng, variables
from keras_dist_callbacks._compat.traced_functions import TracedFunctions
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Piece, Position, Saved, SharedTensor
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.state.environment import Environment
from keras_dist_callbacks.state.facts.script_facts import LoopFacts
from keras_dist_callbacks.state.inputs.loop import LoopInput
from keras_dist_callbacks.state.loop_epoch_begin import EpochBegin, update
from keras_dist_callbacks.state.own_values import from_json, to_json
from keras_dist_callbacks.state.part import Moment, Part
from keras_dist_callbacks.state.random_states import RandomStates
from keras_dist_callbacks.state.training_objects import TrainingObjects
from keras_dist_callbacks.state.variables import ModelVariables


class LoopState(Part):
    """The dict of the user's own.

    Args:
        state: It, which a restore updates.
    """

    name = "loop"

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def capture(self, position: Position) -> Piece:
        """Returns it.

        Raises:
            BackupError: It holds what cannot be saved.
        """
        arrays: dict[str, SharedTensor] = {}
        return Piece({"user": to_json(self._state, "user", arrays)}, arrays)

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Updates it."""
        update(self._state, from_json(saved.mine.state["user"], saved.mine.tensors))
        return []


class LoopFunctions(Part):
    """What the loop runs: the train step is not known, but functions are that train what was given to be trained.

    Args:
        trained: What the loop trains.
    """

    name = "step"

    def __init__(self, trained: TrainingObjects) -> None:
        self._trained, self._traced = trained, TracedFunctions()

    def capture(self, position: Position) -> Piece:
        """Returns findings alone."""
        found = [Finding("loop-unseeded" if rng.global_seed() is None else "loop")]
        for function in self._traced.random(variables.variable_set(self._trained).keys):
            code, subject = ("step-random", "") if function.trains else ("function-random", function.name)
            found += [Finding(code, subject, (label,)) for label in function.operations]
        return Piece(findings=tuple(found))


@dataclass(frozen=True)
class LoopParts:
    """All parts of one loop; they are restored in this order, all before the first epoch."""

    begin: EpochBegin  # keeps the global seed that the script has
    variables: ModelVariables
    state: LoopState
    facts: LoopFacts  # which rates are in force
    environment: Environment
    step: LoopFunctions
    input: LoopInput
    random: RandomStates  # last: tells `begin` that all else is there

    @classmethod
    def of(
        cls,
        trained: TrainingObjects,
        state: dict[str, Any],
        cluster: Cluster,
        tell: Callable[[list[Finding]], None],
    ) -> Self:
        """Makes those of one loop, before anything is restored.

        Args:
            trained: What it trains.
            state: The user's own.
            cluster: This worker's place.
            tell: Is given what of the input cannot be restored, which is known when it is read.
        """
        listed = ModelVariables(trained, cluster)
        begin = EpochBegin(trained, state, listed)
        return cls(
            begin,
            listed,
            LoopState(state),
            LoopFacts(trained.optimizer),
            Environment(),
            LoopFunctions(trained),
            LoopInput(trained, begin, tell, is_alone=cluster.num_workers == 1),
            RandomStates(begin.arrive),
        )

    def __iter__(self) -> Iterator[Part]:
        return iter(vars(self).values())
