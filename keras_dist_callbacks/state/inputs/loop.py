"""What a loop of the user's reads, and where in it training is."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from keras_dist_callbacks._compat import model_parts, pipeline, replay, rng, variables
from keras_dist_callbacks._compat.input_inspection import inspect_source
from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, Saved
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.state.inputs import order
from keras_dist_callbacks.state.inputs.sources import is_stateless
from keras_dist_callbacks.state.inputs.unseeded import Orders
from keras_dist_callbacks.state.inputs.variables import InputVariables
from keras_dist_callbacks.state.part import Moment, Part


class EpochStates(Protocol):
    """Random states that another part saves.

    Attributes:
        entered: As the running epoch's first batch was asked for; None before it was.
        saved_entered: Likewise, as the backup has them.
        now: Those of the backup, after the steps that were trained.
    """

    entered: JSON
    saved_entered: JSON
    now: JSON


class LoopInput(Part):
    """The inputs of one loop, an epoch after the other.

    Args:
        trained: What the loop trains.
        states: Random states.
        tell: Is given what cannot be restored.
        is_alone: Whether there is one worker only.
    """

    name = "input"

    def __init__(
        self, trained: Any, states: EpochStates, tell: Callable[[list[Finding]], None], *, is_alone: bool = True
    ) -> None:
        self._states = states
        self._trained, self._report, self._is_alone = trained, tell, is_alone
        self._state: InputVariables | None = None
        self._dataset: Any = None
        self._read: Any = None  # as the loop gives it, and with orders of its own
        self._ordered: Any = None
        self._seed: int | None = None
        self._unseeded: list[Finding] = []
        self._past = 0
        self._resumed: Saved | None = None
        self._given = self._longest = 0
        self._around = self._counted = self._uncounted = False
        self._iterations = self._optimizer_iterations()
        self.in_step = False
        """Whether a batch was given to the loop, and its step was not counted."""
        self.unseen_steps = False
        """Whether a loop within a `tf.function` takes batches, so that a step may be in progress at any time."""
        self.none_left = False
        """Whether `Checkpointer.batches()` had no batch left in this epoch."""
        self.begins_at_batch = False
        """Whether the loop has asked for `Checkpointer.batch` before this epoch's first step."""

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """The loop continues from a backup; the input is put there when it is asked for batches."""
        position = saved.position
        self._past, self._resumed, self._iterations = position.epoch, saved, self._optimizer_iterations()
        self._seed = order.seed_of(saved)
        codes = {found.code for found in saved.mine.findings}
        self._around, self._uncounted = "loop-batches" in codes, "loop-uncounted" in codes
        before = position.step - position.batch
        self._longest = math.ceil(before / position.epoch) if position.epoch else 0
        return []

    @property
    def takes_own_batches(self) -> bool:
        """Whether the loop reads batches that were not taken here, as far as is known."""
        return self._around or self.is_given_again or (self._state is None and self._resumed is None)

    @property
    def is_around(self) -> bool:
        """Whether nothing was asked for batches in this epoch."""
        return not self._given

    @property
    def is_given_again(self) -> bool:
        """Whether batches were asked for more than once in this epoch, so that their number is no position."""
        return self._given > 1

    def can_go_on_at(self, batch: int) -> bool:
        """Returns whether a resume could go on within this epoch, and not only at its end, as far as is known.

        Without batches from here, the loop would run the epoch again: it is not left before it has as many steps as
        the epochs before it had.
        """
        if self._given or self.begins_at_batch:
            return not self.is_given_again
        return batch > max(1, self._longest)

    def epoch_ends(self, batch: int) -> bool:
        """The next epoch needs an iterator of its own; returns whether this one counted no step.

        Args:
            batch: How many batches of it were trained.
        """
        missing = not (self._counted or self.none_left or self._resumed)  # a resumed epoch may have no batch left
        self._uncounted = self._uncounted or missing
        if not self._given:
            self._around, self._longest = True, max(self._longest, batch)
        self._given, self._states.entered = 0, None
        self._counted = self.none_left = self.begins_at_batch = False
        return missing

    def has_trained_uncounted(self) -> bool:
        """Returns whether the optimizer was used though no step was ever counted."""
        return self._iterations is not None and self._iterations != self._optimizer_iterations()

    def _optimizer_iterations(self) -> int | None:
        optimizer = self._trained.optimizer
        return None if optimizer is None else model_parts.steps_taken(optimizer)

    def trained(self) -> None:
        """A batch was trained, wherever it came from."""
        self._around = self._around or not self._given
        self._counted, self._iterations = True, None

    def remaining_batches(self, dataset: Iterable[Any], batch: int, *, made_for_epoch: bool) -> Iterator[Any]:
        """An iterator at the batches that are left of one pass over `dataset`.

        Args:
            dataset: What the epoch reads.
            batch: How many batches of it are trained.
            made_for_epoch: Past epochs have no influence on its order.
        """
        self._given += 1
        resumed, self._resumed = self._resumed, None
        self._give_order(dataset, made_for_epoch)
        inputs = self._state = self._state or InputVariables(lambda: self._read, inspect_source)
        self._report(inputs.match_backup(resumed) if resumed is not None else [])
        if not made_for_epoch:
            self._advance(dataset)
        dataset = self._ordered
        if resumed is not None and resumed.position.kind == "within":
            return self._interrupted(dataset, batch, inputs, resumed)
        if resumed is not None:
            inputs.restore_current()
        self._states.entered = rng.capture()
        inputs.note_start()
        return iter(dataset)

    def _interrupted(self, dataset: Iterable[Any], batch: int, inputs: InputVariables, resumed: Saved) -> Iterator[Any]:
        """The rest of the epoch that was interrupted."""
        now, states = self._states.now, self._states
        states.entered = states.saved_entered or now  # of a loop that had none from here
        rng.restore(states.entered)
        inputs.restore_epoch_start()
        iterator = iter(dataset)
        replay.drop(iterator, batch, batch)
        moved = rng.changed_since(states.entered) if inputs.hidden.python else ()
        inputs.restore_read_only()
        rng.restore(now, leave=moved)
        return iterator

    def _advance(self, dataset: Any) -> None:
        """Lets the dataset draw the orders of past epochs."""
        if self._dataset is not None and self._dataset is not dataset and pipeline.reshuffling_stages(dataset):
            raise ConfigError(
                "batches() got another dataset than in the last epoch, which shuffles again for each iterator: make it "
                "once before the loop, or pass made_for_epoch=True"
            )
        self._dataset = dataset
        past, self._past = self._past, 0
        replay.replay_iterators(self._ordered, past)

    def _give_order(self, dataset: Any, made_for_epoch: bool) -> None:
        """Lets a dataset whose orders have no seed draw such that a resume repeats them."""
        if dataset is self._read:
            return
        orders = Orders(dataset, "input", None if self._is_alone and not made_for_epoch else "loop")
        if orders.are_own and self._seed is None:
            self._seed = secrets.randbits(63)
        self._read, self._unseeded = dataset, orders.named
        self._ordered = dataset if self._seed is None else orders.made(self._seed)

    @property
    def keys(self) -> set[int]:
        """Variables that reading the input changes."""
        return set() if self._state is None else self._state.keys

    def capture(self, position: Position) -> Piece:
        """Returns what the input hides, and what of it a resume does not repeat."""
        order_of_passes: dict[str, JSON] = {} if self._seed is None else {order.TOPIC: {"seed": self._seed, "epoch": 0}}
        hidden, held = ({}, {}) if self._state is None else self._state.capture()
        found = self._found(within=position.kind == "within")
        return Piece({**order_of_passes, **hidden}, held, tuple(found))

    def _found(self, *, within: bool) -> list[Finding]:
        found = [Finding("loop-batches")] if self.takes_own_batches else []
        if self._uncounted or self.has_trained_uncounted():
            found.append(Finding("loop-uncounted"))
        if within and self.is_around:
            found.append(Finding("loop-begins"))
        if within and self.is_given_again:
            found.append(Finding("loop-twice"))
        if self._state is None:
            return found
        python = () if is_stateless(self._read) else self._state.hidden.python
        found += [
            Finding("input-code-ahead" if code.is_ahead else "input-code", detail=(code.name,)) for code in python
        ]
        found += [*findings.made(self._state.hidden.found), *self._state.kept]
        return [*found, *self._state.shared(self._trains), *self._unseeded]

    def _trains(self, key: int) -> bool:
        return key in variables.variable_set(self._trained).keys and key not in variables.global_seed_keys()
