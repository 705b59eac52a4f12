"""The state that an input hides, as of when its first batch was asked for.

A pipeline runs ahead of training, so what its functions have changed by now includes batches that are not trained
yet. So it is noted before an iterator's first batch, put back there, and the pipeline itself moves it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import graphs, pipeline, rng
from keras_dist_callbacks._compat.input_inspection import InputInspection
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Saved, SharedArray, SharedTensor, strip_counters

_VARIABLES, _RNG = "variables", "random"
_NOTHING = InputInspection()
_FIRST, _START, _NOW = "first", "start", "now"
_CACHED, _SINCE = "cached", "since"


class InputVariables:
    """What the training and validation data hide.

    Args:
        dataset: Returns the dataset of the running epoch.
        look: Looks into one.
        validation: What was found in the validation data.
        iterator_persists: Whether an iterator of the training data lives across epochs.
        of_validation: The validation data.

    Attributes:
        kept: Whether files keep what is drawn from what is also read beside them.
        hidden: What was found in the training data; of the running epoch's dataset.
        validation: The argument.
    """

    def __init__(
        self,
        dataset: Callable[[], Any],
        look: Callable[[Any], InputInspection],
        validation: InputInspection = _NOTHING,
        *,
        iterator_persists: bool = False,
        of_validation: Any = None,
    ) -> None:
        self._current, self._inspect = dataset, look
        self._iterator_persists = iterator_persists
        self._dataset: Any = None
        self._held: dict[str, list[SharedTensor]] = {}
        self._when_cached: list[SharedTensor] = []
        self._rng: JSON = None
        self._saved: Saved | None = None
        self._is_open = False
        self._changed_meanwhile: set[str] = set()
        self.validation = validation
        self._of_validation = of_validation
        self.kept: list[Finding] = []
        self._refresh()

    def note_start(self) -> None:
        """An iterator's first batch is about to be asked for."""
        self._refresh()
        self._is_open = True
        self._held[_START] = [r.hold() for r in self._all]
        self._held.setdefault(_FIRST, self._held[_START])
        self._when_cached = self._when_cached or [r.hold() for r in self._cached]
        self._rng = rng.capture() if self.hidden.python else None

    def note_epoch(self) -> None:
        """An epoch begins or has ended."""
        self._is_open = self._is_open and self._iterator_persists

    def _note_changes(self, now: Sequence[SharedTensor]) -> None:
        """Notes what training has changed while the input reads it ahead of training."""
        reads = {r.key: strip_counters(r.name) for r in self.hidden.reads}
        held = zip(self._all, self._held.get(_START, ()), now, strict=False)
        changed = {r.key for r, then, since in held if not np.array_equal(then.array(), since.array())} & reads.keys()
        if changed and pipeline.reads_variables_ahead(self._dataset, changed):
            self._changed_meanwhile |= {reads[key] for key in changed}

    def capture(self) -> tuple[dict[str, JSON], dict[str, SharedTensor]]:
        """Returns the topics and tensors of the input's piece."""
        topics: dict[str, JSON] = {_VARIABLES: [[r.name, r.dtype.name] for r in self._all]}
        if self._rng is not None:
            topics[_RNG] = self._rng
        held: dict[str, list[SharedTensor]] = {**self._held, _NOW: [r.hold() for r in self._all]}
        if self._is_open and self.hidden.reads:
            self._note_changes(held[_NOW])
        if not pipeline.caches_randomness(self._dataset):
            held.pop(_FIRST, None)
        held |= {_CACHED: self._when_cached, _SINCE: [r.hold() for r in self._cached]}
        return topics, {_name(when, i): value for when, values in held.items() for i, value in enumerate(values)}

    def match_backup(self, saved: Saved) -> list[Finding]:
        """Matches what is saved with the input, and puts the input where the interrupted run had begun.

        Returns:
            What cannot be put back.
        """
        self._refresh()
        found = self._difference(saved.mine.state.get(_VARIABLES))
        if not found:
            self._saved = saved
            self._assign(_FIRST)
            self.continue_from(saved)
        return [*found, *self._changed_since_cached(saved)]

    def _changed_since_cached(self, saved: Saved) -> list[Finding]:
        """Returns what a cache had kept in the first pass and another one would not, because it has changed since."""
        changed = []
        for number, resource in enumerate(self._cached):
            then, since = (_found(saved.mine.tensors, when, number) for when in (_CACHED, _SINCE))
            if then is not None and since is not None and not np.array_equal(then, since):
                changed.append(Finding("cached-variable", detail=(strip_counters(resource.name),)))
        return changed

    def continue_from(self, saved: Saved) -> None:
        """The next backups hold the same first pass as this one, wherever it was taken."""
        if _name(_FIRST, 0) in saved.mine.tensors:
            self._held[_FIRST] = [SharedArray(saved.mine.tensors[_name(_FIRST, i)]) for i in range(len(self._all))]
        cached = [_found(saved.mine.tensors, _CACHED, i) for i in range(len(self._cached))]
        if all(value is not None for value in cached):
            self._when_cached = list(map(SharedArray, cached))

    def restore_epoch_start(self) -> None:
        """Before the first batch of the iterator that the interrupted run was reading from."""
        self._refresh()
        if self._saved is not None and not self._difference(self._saved.mine.state.get(_VARIABLES)):
            self._assign(_START)
            if _RNG in self._saved.mine.state:
                rng.restore(self._saved.mine.state[_RNG])
        self.note_start()

    def restore_current(self) -> None:
        """After the last batch of an iterator, where nothing reads ahead."""
        self._assign(_NOW)

    def restore_read_only(self) -> None:
        """What the input reads and others write, once the consumed batches were dropped."""
        written = {r.key for r in self.hidden.variables}
        self._assign(_NOW, {r.key for r in self._all} - written)

    @property
    def keys(self) -> set[int]:
        """Variables that the input changes: with it, they come to where they belong."""
        return {r.key for r in (*self.hidden.variables, *self.validation.variables)}

    def shared(self, used_by_training: Callable[[int], bool]) -> list[Finding]:
        """Returns which variables cannot be put back because both the input and training change them."""
        names = [strip_counters(r.name) for r in self.hidden.variables if used_by_training(r.key)]
        found = [Finding("shared-variable", detail=(name,)) for name in names]
        found += [Finding("changed-while-waiting", detail=(name,)) for name in sorted(self._changed_meanwhile)]
        validation = {r.key for r in self.validation.variables}
        if self._iterator_persists and any(r.key in validation for r in self.hidden.variables):
            found.append(Finding("shared-with-validation"))
        return found

    def _refresh(self) -> None:
        dataset = self._current()
        if dataset is not self._dataset:
            self._dataset = dataset
            self.hidden = self._inspect(dataset)
            read = [data for data in (dataset, self._of_validation) if hasattr(pipeline.original(data), "_inputs")]
            self.kept = [
                Finding("kept-in-files", detail=(pipeline.call_of(stage),))
                for stage in pipeline.shared_before_files(read)
            ]

    @property
    def _all(self) -> list[graphs.Resource]:
        return graphs.distinct((*self.hidden.variables, *self.hidden.reads, *self.validation.variables))

    @property
    def _cached(self) -> list[graphs.Resource]:
        return [*self.hidden.cached, *self.validation.cached]

    def _difference(self, wanted: Sequence[Sequence[str]] | None) -> list[Finding]:
        if wanted is None:
            return []
        for number in range(max(len(wanted), len(self._all))):
            then = _spec(*wanted[number]) if number < len(wanted) else "none"
            now = self._all[number] if number < len(self._all) else None
            here = "none" if now is None else _spec(now.name, now.dtype.name)
            if then != here:
                return [Finding("input-variables", detail=(str(number + 1), then, here))]
        return []

    def _assign(self, when: str, only: set[int] | None = None) -> None:
        if self._saved is None:
            return
        for number, resource in enumerate(self._all):
            value = _found(self._saved.mine.tensors, when, number)
            if value is not None and (only is None or resource.key in only):
                resource.assign(value)


def _found(tensors: Mapping[str, Any], when: str, number: int) -> Any:
    return tensors.get(_name(when, number))


def _name(when: str, number: int) -> str:
    return f"{when}/{number}"


def _spec(name: str, dtype: str) -> str:
    return f"{strip_counters(name)} ({dtype})"
