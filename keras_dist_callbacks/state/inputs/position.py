"""Where training is in its input, and how to get there again.

Three ways, the cheapest that fits: a callback addresses each epoch's data by number (`EpochDataset`), the input
knows its own position, or past epochs are replayed, with the `on_epoch_end` of a PyDataset. That leads to the begin of
the interrupted epoch; its batches that were trained are dropped by `run/fit_restore.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from keras_dist_callbacks._compat import input_inspection, pass_seeds, pipeline, replay, rng
from keras_dist_callbacks._compat.input_inspection import PythonCode
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding, made
from keras_dist_callbacks.backups.snapshot import JSON, FitPlace, Piece, Position, Saved, SharedArray, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.process_runs import FitsIn
from keras_dist_callbacks.base.terminal import reading
from keras_dist_callbacks.state.inputs.order import InputOrder
from keras_dist_callbacks.state.inputs.passes import DatasetPasses, FirstPass
from keras_dist_callbacks.state.inputs.sources import is_stateless, stateful_source_of
from keras_dist_callbacks.state.inputs.variables import InputVariables
from keras_dist_callbacks.state.own_values import from_json, to_json
from keras_dist_callbacks.state.part import Moment, Part

_OWN = "own"
_EPOCH_ENDS = "epoch_end/"


class InputCode(Protocol):
    """The user's Python code in the input, which another part saves."""

    def note_begun(self) -> None:
        """The `on_epoch_begin` of a PyDataset was called, and no batch is read yet."""

    def note_read(self) -> None:
        """All batches of an epoch were read, and the `on_epoch_end` of a PyDataset is to be called."""

    @property
    def doubt(self) -> str | None:
        """Why the batches of a PyDataset may be others when an epoch is read again; None if nothing was found."""

    def are_pure(self, functions: Sequence[Any]) -> bool:
        """Whether functions of a pipeline neither hold nor change nor draw anything."""


class DataPosition(Part):
    """The input of one fit, validation data included.

    Args:
        fit: The running fit.
        callbacks: Its callbacks.
        code: Its Python code.
        uses: Says of a variable's key whether the model has it or its train step uses it.
        this_fit: What distinguishes this fit from others in the same directory, see `FitPlace`.
        runs: What this process knows of the fits in the directory.
        read_again: Whether past epochs are read again instead of creating their iterators only.
        shown: Whether a bar may be drawn while they are.

    Attributes:
        hides: The state that it hides.
        passes: Those over the same dataset.
        order: The orders of its passes, where no seed makes them repeatable.
        first_epoch: The data had no iterators before it; None before any epoch.
        validations: How many were complete since.
    """

    name = "input"

    def __init__(
        self,
        fit: RunningFit,
        callbacks: Iterable[Any],
        code: InputCode,
        uses: Callable[[int], bool],
        this_fit: FitPlace,
        runs: FitsIn,
        *,
        read_again: bool,
        shown: bool,
    ) -> None:
        self._fit = fit
        self._code, self._uses = code, uses
        self._this_fit, self._runs = this_fit, runs
        self.first_epoch: int | None = None
        self.validations = 0
        self._shares: bool | None = None  # whether each fit of a loop gets the input object of the one before, if known
        self._read_again = read_again
        self._shown = shown
        self._addressing = [c for c in callbacks if static.attribute(c, "_kdc_addresses_epochs") is True]
        self._source = fit.input
        self._source_state = stateful_source_of(fit.input, iterator_persists=bool(fit.steps_per_epoch))
        self._validation = fit.validation_source
        self.hides = InputVariables(
            lambda: fit.data,
            lambda dataset: input_inspection.inspect_dataset(dataset, fit.epoch_iterator.data_adapter, fit.input),
            input_inspection.inspect_source(self._validation),
            iterator_persists=bool(fit.steps_per_epoch),
            of_validation=self._validation,
        )
        self.order = InputOrder(fit, is_addressed=bool(self._addressing))
        self._epoch_hooks = _EpochHooks(fit.input, code)
        self._moved: set[str] = set()  # random states that the input's own code draws from
        self._since: JSON = None
        self._begins_amiss = fit.begins_with_batches_of_another_pass
        self._own: dict[str, JSON] = {}  # the input's account of its position at the last `note`
        self._arrays: dict[str, SharedTensor] = {}
        self.passes = DatasetPasses(fit)
        given = None if self._addressing else fit.input
        self._first = FirstPass("training data", given, has_strategy=fit.has_strategy)
        self._first_of_validation = FirstPass("validation data", self._validation, has_strategy=fit.has_strategy)

    def note(self) -> None:
        """An epoch begins or has ended: asks an input that knows its position.

        Not within an epoch: there the pipeline has read ahead of training, so the batches that were trained are
        pulled again instead.
        """
        self.hides.note_epoch()
        found = None if self._source_state is None else self._source_state.get()
        self._arrays = {}
        self._own = {} if found is None else {_OWN: to_json(dict(found), _OWN, self._arrays)}

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        if self.first_epoch is None:
            self.first_epoch = epoch

    def enter_epoch(self, epoch: int, *, resuming: bool) -> None:
        """The first batch of an epoch is about to be asked for, maybe of one that was interrupted."""
        if not self._fit.starts_fresh_iterator:
            return
        self.order.begin_pass(epoch)
        self.passes.note(1)
        self._first.watch(self._fit.epoch_iterator)
        if resuming:
            self.hides.restore_epoch_start()
        else:
            self.hides.note_start()

    def validation_begins(self) -> None:
        """Within fit, before its first batch is asked for."""
        self._first_of_validation.watch(getattr(self._fit.model, "_eval_epoch_iterator", None))

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Makes past passes again; enters the interrupted one, of which the trained batches are then read and dropped.

        Returns:
            What could not be put back.
        """
        if moment is Moment.ENTERED:
            self.enter_epoch(saved.position.epoch, resuming=True)
        if moment is Moment.ARRIVED:
            self._note_moved()
            self.hides.restore_read_only()
            return self._other_passes()
        return self._go_to_epoch(saved) if moment is Moment.START else []

    def _go_to_epoch(self, saved: Saved) -> list[Finding]:
        """Puts the input at the beginning of the saved epoch."""
        self._take_over(saved)
        notes, first = self._begin_next_fit(saved), self.first_epoch or 0
        knows_position = self._source_state is not None and _OWN in saved.mine.state
        by_itself = bool(self._addressing) or (knows_position and not self.reshuffles)  # shuffles count the passes
        counted = self.passes.compare(saved, addressed=by_itself)
        notes += counted + self.hides.match_backup(saved) + self.order.restore(saved)
        self._epoch_hooks.replay(saved.mine.tensors)
        self.passes.restore(saved)
        by_count, validations = self.passes.by_count, int(saved.mine.state["num_validations"])
        if saved.position.epoch > first or saved.position.kind == "within":  # otherwise no pass is made again
            self._first.resume(saved, is_compared=not counted)
            self._first_of_validation.resume(saved)
        if self._read_again and not by_itself:
            self._read(first, saved.position.epoch, validations, by_count)
        else:
            replay.replay_epochs(
                self._fit,
                first,
                saved.position.epoch,
                validations,
                training=not by_itself,
                before_reading=self._before_reading,
                by_count=by_count,
                begun=self._begun,
            )
        self.passes.note(1 if self._fit.steps_per_epoch else saved.position.epoch - first)
        if saved.position.epoch > first:
            self._first.is_over()
        if validations:
            self._first_of_validation.is_over()
        self._epoch_hooks.replayed()
        self._note_moved()
        self._restore_own_state(saved)
        self._fit.set_num_batches(saved.mine.state.get("num_batches"))
        if saved.position.kind != "within":
            notes += self._other_passes()
            if self._fit.starts_fresh_iterator:
                self.hides.restore_current()
            else:  # its iterator lives on, and has read ahead by itself
                self.hides.restore_read_only()
        return notes

    def _take_over(self, saved: Saved) -> None:
        """The data's iterators are as old as they were for the backup."""
        state = saved.mine.state
        self.first_epoch, self.validations = int(state["first_epoch"]), int(state["num_validations"])
        self._shares = state.get("shares_input")

    def _begin_next_fit(self, saved: Saved) -> list[Finding]:
        """In a loop of fits: the script may give each fit a new dataset, or the same one again."""
        if saved.position.kind != "end" or self._fit.initial_epoch != saved.position.epoch:
            return []
        is_next = self._shares is False
        if self.order.is_of_fit:
            is_next = saved.mine.state["fit"] != self._this_fit.number  # and not the same one with more epochs
        if is_next:
            self.first_epoch, self.validations = saved.position.epoch, 0
        elif self._shares is None and self.shares_passes:
            return [Finding("same-dataset")]
        return []

    def adopt(self, saved: Saved) -> list[Finding]:
        """The fit is finished: what follows finds its input as the fit has left it."""
        self.passes.note_finished(saved, self._this_fit.initial_epoch)
        self._restore_own_state(saved)
        return []

    def _restore_own_state(self, saved: Saved) -> None:
        """Gives an input that knows its position its own account of it."""
        if self._source_state is not None and _OWN in saved.mine.state:
            self._source_state.set(from_json(saved.mine.state[_OWN], saved.mine.tensors))

    def continue_from(self, saved: Saved) -> None:
        """The run continues in this process; if with the same input, it is where it was left."""
        shares = self._runs.left.source() is self._fit.input and not self.order.is_of_fit
        if shares:
            self._take_over(saved)
        self._shares = shares
        if not shares:
            return
        self.passes.continue_from(saved)
        self._first.continue_from(saved)
        self._first_of_validation.continue_from(saved)
        self.hides.continue_from(saved)

    def _read(self, first: int, epoch: int, validations: int, by_count: Mapping[int, int]) -> None:
        batches = self._fit.steps_per_epoch or self._fit.known_length
        if self._fit.steps_per_epoch:
            self._since = rng.capture()
        total = None if batches is None else batches * (epoch - first)
        self._first.watch(self._fit.epoch_iterator)
        self._first_of_validation.watch(self._fit.validation_iterator() if validations else None)
        with reading("reading past epochs again", total, shown=self._shown) as advance:
            replay.read_epochs(self._fit, first, epoch, validations, advance, by_count)

    def capture(self, position: Position) -> Piece:
        """Returns the input's own account, what it hides, and how often it was read."""
        if position.kind != "within":
            self.note()
        hidden, tensors = self.hides.capture()
        of_passes, passes = self.passes.capture()
        topics: dict[str, JSON] = {
            **{**self._own, **hidden, **of_passes, **self.order.capture()},
            "fit": self._this_fit.number,
            "num_batches": self._fit.num_batches,
            "first_epoch": self.first_epoch or 0,
            "num_validations": self.validations,
        }
        if self._shares is not None:
            topics["shares_input"] = self._shares
        tensors = {
            **{**self._arrays, **tensors, **passes},
            **self._first.capture(),
            **self._first_of_validation.capture(),
            **self._epoch_hooks.capture(),
        }
        return Piece(topics, tensors, tuple(self._found()))

    def close(self) -> None:
        """Takes every wrapper away."""
        self._epoch_hooks.close()
        for iterator in (self._fit.epoch_iterator, getattr(self._fit.model, "_eval_epoch_iterator", None)):
            if iterator is not None:
                pass_seeds.unwatch(iterator)

    def restore_rng(self, state: JSON) -> None:
        """Puts random states back, but those that reading the input moves: these it has moved to where they belong."""
        rng.restore(state, leave=self._moved)
        self._since = state

    def _begun(self, iterator: Any, is_training: bool) -> None:
        (self._first if is_training else self._first_of_validation).begun(iterator)

    def _other_passes(self) -> list[Finding]:
        return [*self._first.difference(), *self._first_of_validation.difference()]

    def _before_reading(self) -> None:
        self.hides.restore_epoch_start()
        self._since = rng.capture()

    def _note_moved(self) -> None:
        since, self._since = self._since, None
        if since is None or not self.hides.hidden.python:
            return
        self._moved |= rng.changed_since(since)
        count = self._fit.known_length
        if count is not None and self._fit.shuffles_py_dataset and rng.is_shuffle_of(count, since):
            self._moved.discard("python")  # Keras' own shuffle, which is over when the first batch is there

    def _found(self) -> list[Finding]:
        """Returns what the input does not repeat, or may not."""
        late = [Finding("position-late")] if self._source_state is not None and not self._own else []
        doubt = self._code.doubt
        return [
            *(finding for code in self._unsettled() for finding in self._of_code(code, doubt)),
            *self.reasons,
            *late,
            *self.hides.shared(self._uses),
            *self.order.unseeded,
            *self.conditions,
        ]

    def _of_code(self, code: PythonCode, doubt: str | None) -> list[Finding]:
        if not code.is_dataset or code.is_ahead or self._addressing:
            return [Finding("input-code-ahead" if code.is_ahead else "input-code", detail=(code.name,))]
        return [] if doubt is None else [Finding("batches-again", detail=(code.name, doubt))]

    @property
    def reasons(self) -> list[Finding]:
        """Why the input of this run cannot be exact."""
        found = [one for one in self._inspected if one.effect == "lost"]
        replicas = int(self._fit.model.distribute_strategy.num_replicas_in_sync)
        if replicas > 1 and self._fit.has_unknown_length:
            found.append(Finding("unknown-length"))
        if replicas > 1 and self._fit.is_python_generator:
            found.append(Finding("generator-on-replicas"))
        if self._begins_amiss:
            found.append(Finding("read-ahead-before"))
        return found

    @property
    def conditions(self) -> list[Finding]:
        """What of the input could not be looked into."""
        unread = [one for one in self._inspected if one.effect == "unknown"]
        return [*unread, *self.hides.kept, *self._first.unseen, *self._first_of_validation.unseen]

    @property
    def _inspected(self) -> list[Finding]:
        return made([*self.hides.hidden.found, *self.hides.validation.found])

    @property
    def reshuffles(self) -> bool:
        """Whether the order of a pass depends on the passes before it."""
        return isinstance(self._source, tf.data.Dataset) and bool(pipeline.reshuffling_stages(self._source))

    @property
    def shares_passes(self) -> bool:
        """Whether it depends on how often the user's dataset object was read before."""
        return isinstance(self._source, tf.data.Dataset) and bool(pipeline.seeded_reshuffles(self._source))

    def _unsettled(self) -> list[PythonCode]:
        """Python code that is not declared stateless."""
        found: list[PythonCode] = []
        if not (self._source_state and self._source_state.is_all) and not is_stateless(self._source):
            found += [code for code in self.hides.hidden.python if not self._code.are_pure(code.functions)]
        found += [
            PythonCode(f"the function of {type(callback).__name__}")
            for callback in self._addressing
            if not is_stateless(callback.fn)
        ]
        if not is_stateless(self._validation):
            of_validation = [code for code in self.hides.validation.python if not self._code.are_pure(code.functions)]
            found += [code._replace(name=f"{code.name} of the validation data") for code in of_validation]
        return list(dict.fromkeys(found))


class _EpochHooks:
    """Stands before the epoch hooks of a PyDataset, if its class has its own.

    In past epochs that are counted again, `on_epoch_end`, which may shuffle, gets the random states that it had then.

    Args:
        source: What the user passed to `fit()`.
        code: Hears of them, of `on_epoch_end` in an epoch that is trained.
    """

    def __init__(self, source: Any, code: InputCode) -> None:
        self._source, self._code = source, code
        self._own = {
            hook: getattr(source, hook) for hook in ("on_epoch_begin", "on_epoch_end") if _has_own(source, hook)
        }
        for hook in self._own:
            setattr(source, hook, getattr(self, hook))
        self._states: list[SharedArray] = []
        self._past: list[Any] = []

    def capture(self) -> dict[str, SharedTensor]:
        """Returns the tensors of a piece, one for each call so far; those of past epochs are not written again."""
        return {f"{_EPOCH_ENDS}{number}": held for number, held in enumerate(self._states)}

    def replay(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """From now on, as many calls as were noted get the states from then."""
        count = sum(name.startswith(_EPOCH_ENDS) for name in tensors)
        self._past = [json.loads(bytes(tensors[f"{_EPOCH_ENDS}{number}"])) for number in range(count)]

    def replayed(self) -> None:
        """Calls are new again."""
        self._past = []

    def close(self) -> None:
        """The class' own show again."""
        for hook in self._own:
            vars(self._source).pop(hook, None)

    def on_epoch_begin(self) -> None:
        """In place of the dataset's own."""
        self._own["on_epoch_begin"]()
        self._code.note_begun()

    def on_epoch_end(self) -> None:
        """In place of the dataset's own."""
        if self._past:
            rng.restore(self._past.pop(0))
        else:
            self._code.note_read()
        text = json.dumps(rng.capture()).encode()
        self._states.append(SharedArray(np.frombuffer(text, np.uint8)))
        self._own["on_epoch_end"]()


def _has_own(source: Any, hook: str) -> bool:
    import keras

    base = keras.utils.PyDataset
    return isinstance(source, base) and getattr(type(source), hook, None) is not getattr(base, hook, None)
