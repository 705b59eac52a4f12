"""How often a dataset object was read, and which past epochs did not reach its end.

A dataset that reshuffles each pass has another order in each, so a resumed run must know both.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import pass_seeds, pipeline, replay
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Saved, SharedArray, SharedTensor
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.process_runs import ProcessRuns
from keras_dist_callbacks.base.terminal import warn

_BY_COUNT = "by_count"  # [first, end, batches] of runs of epochs whose iterator did not reach its end
_PASSES = "passes"
_SEEDS = "seeds_of_first_pass/"


class DatasetPasses:
    """The passes over one fit's dataset.

    Args:
        fit: The running fit.
    """

    def __init__(self, fit: RunningFit) -> None:
        self._fit = fit
        self._epochs: list[list[int]] = []
        self._before = self._most(shared(ProcessRuns).passes)  # over the same object

    def note(self, count: int) -> None:
        """The dataset is read so many times more."""
        self._add(shared(ProcessRuns).passes, count)

    def note_finished(self, saved: Saved, initial_epoch: int) -> None:
        """The fit is finished and runs no step: what another one reads next depends on its passes.

        Args:
            saved: The input in its backup, or in that of a later fit in the same directory.
            initial_epoch: As `fit()` was given it.
        """
        first = max(initial_epoch, int(saved.mine.state.get("first_epoch") or 0))
        epochs = min(saved.position.epoch, self._fit.epochs) - first
        self._add(shared(ProcessRuns).skipped, min(epochs, 1) if self._fit.steps_per_epoch else epochs)

    def begin_without_backup(self) -> None:
        """Makes the passes that finished fits over the same dataset had made, as without a restart."""
        count = self._most(shared(ProcessRuns).skipped)
        self._forget_skipped()
        if count and not self._repeat(count):
            warn(
                "a finished fit() had read the dataset that this one reads, which shuffles again each time: its orders "
                "differ from those of an uninterrupted run; build the dataset again before each fit()"
            )

    def _forget_skipped(self) -> None:
        for stage in pipeline.seeded_reshuffles(self._fit.data):
            shared(ProcessRuns).skipped.pop(stage, None)

    def _repeat(self, count: int) -> bool:
        """Begins so many passes more, as Keras does; False where more counts than the number of iterators."""
        fit, data = self._fit, self._fit.data
        is_simple = not pipeline.is_distributed(data) and pipeline.shuffles(data) == 1
        is_counted = fit.known_length is not None and not fit.steps_per_epoch
        if not (is_simple and is_counted) or pipeline.caches_randomness(data) or pipeline.draws_during_pass(data):
            return False
        replay.replay_epochs(fit, 0, count, 0)
        self.note(count)
        self._before += count
        return True

    def _most(self, counts: Mapping[Any, int]) -> int:
        return max((counts.get(stage, 0) for stage in pipeline.seeded_reshuffles(self._fit.data)), default=0)

    def _add(self, counts: MutableMapping[Any, int], count: int) -> None:
        for stage in pipeline.seeded_reshuffles(self._fit.data):
            counts[stage] = counts.get(stage, 0) + count

    def compare(self, saved: Saved, *, addressed: bool) -> list[Finding]:
        """Returns that the orders of passes differ from those of the interrupted run, if they do.

        Args:
            saved: The input in its backup.
            addressed: Whether the input can be put to any place without reading it.
        """
        then = int(saved.mine.tensors.get(_PASSES, 0))
        self._forget_skipped()  # they are among those of the backup
        if not addressed and self._before < then and saved.position.step:
            self._repeat(then - self._before)
        now, self._before = self._before, then
        if addressed or now == self._before or not saved.position.step:
            return []
        return [Finding("passes-counted", detail=(_times(self._before), _times(now)))]

    def continue_from(self, saved: Saved) -> None:
        """The run continues in this process."""
        self._before = int(saved.mine.tensors.get(_PASSES, 0))
        self.restore(saved)

    def restore(self, saved: Saved) -> None:
        """Takes over which epochs did not reach the dataset's end."""
        self._epochs = [[int(n) for n in run] for run in saved.mine.state.get(_BY_COUNT) or ()]

    @property
    def by_count(self) -> dict[int, int]:
        """The batches of each past epoch whose iterator did not reach its end."""
        return {epoch: batches for begin, end, batches in self._epochs for epoch in range(begin, end)}

    def epoch_trained(self, epoch: int, trained: int) -> None:
        """An epoch's last batch was trained, after so many."""
        batches = self._fit.num_batches
        if batches is None or trained < batches or not self._fit.created_unused_iterator:
            return
        if self._epochs and self._epochs[-1][1:] == [epoch, batches]:
            self._epochs[-1][1] = epoch + 1
        else:
            self._epochs.append([epoch, epoch + 1, batches])

    def capture(self) -> tuple[dict[str, JSON], dict[str, SharedTensor]]:
        """Returns the topics and tensors of the input's piece."""
        topics: dict[str, JSON] = {_BY_COUNT: [list(run) for run in self._epochs]} if self._epochs else {}
        return topics, {_PASSES: SharedArray(np.array(self._before))} if self._before else {}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


class FirstPass:
    """The seeds of the first pass of one fit over one dataset, which tell it from any other pass over it.

    Args:
        name: What the dataset is to users.
        dataset: It, or anything else that is an input.
        has_strategy: Whether a strategy makes its iterators.
    """

    def __init__(self, name: str, dataset: Any, *, has_strategy: bool) -> None:
        dataset = pipeline.original(dataset)
        seeded = pipeline.seeded_reshuffles(dataset) if hasattr(dataset, "_inputs") else []
        is_mixed = bool(seeded) and len(seeded) < len(pipeline.reshuffling_stages(dataset))
        is_too_large = bool(seeded) and pass_seeds.has_too_large_buffers(dataset)
        why = "hidden" if has_strategy else "mixed" if is_mixed else "large"
        self._name = name
        self._looks = bool(seeded) and not has_strategy and not is_mixed and not is_too_large
        self._seeds: list[int] | None = None
        self._saved: list[int] | None = None
        self._is_known = False
        largest = f"{pass_seeds.LARGEST_BUFFERS:,}"
        self.unseen = [Finding(f"first-pass-{why}", name, (largest,))] if seeded and not self._looks else []
        """That it was not looked at, if so."""

    def begun(self, iterator: Any) -> None:
        """The dataset's next iterator was made, and nothing is read of it yet."""
        if self._looks and not self._is_known:
            self._is_known, self._seeds = True, pass_seeds.of_iterator(iterator)

    def watch(self, epoch_iterator: Any) -> None:
        """Keras makes the next iterator."""
        if self._looks and not self._is_known and epoch_iterator is not None:
            pass_seeds.watch(epoch_iterator, self.begun)

    def resume(self, saved: Saved, *, is_compared: bool = True) -> None:
        """The first pass is made again, to be compared with that of the interrupted run if that is worth it."""
        found = saved.mine.tensors.get(_SEEDS + self._name) if is_compared else None
        self._saved = None if found is None else [int(seed) for seed in found]

    def is_over(self) -> None:
        """The next pass is a later one, whether the first one was seen or not."""
        if not self._is_known:
            self._seeds, self._is_known = self._saved, True

    def continue_from(self, saved: Saved) -> None:
        """The first pass was made in this process."""
        self.resume(saved)
        self._seeds, self._is_known = self._saved, self._saved is not None

    def difference(self) -> list[Finding]:
        """Returns that it was another pass, if it was; known once the pass has begun.

        Where files hold what an earlier pass has read, fewer shuffles begin, and nothing is compared.
        """
        then, now = self._saved, self._seeds
        is_other = then is not None and now is not None and len(then) == len(now) and then != now
        return [Finding("first-pass", self._name)] if is_other else []

    def capture(self) -> dict[str, SharedTensor]:
        """Returns the tensors of the input's piece."""
        return {_SEEDS + self._name: SharedArray(np.array(self._seeds, np.int64))} if self._seeds else {}
