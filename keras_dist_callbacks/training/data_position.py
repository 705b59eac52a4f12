"""Where training is in its input, and how to get there again.

Three ways, the cheapest that fits: a callback addresses each epoch's data by number (`EpochDataset`), the input
knows its own position, or past epochs are replayed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from keras_dist_callbacks._compat import pipeline, replay
from keras_dist_callbacks._compat.fit import RunningFit
from keras_dist_callbacks.backups.snapshot import JSON, HeldTensor, WorkerState
from keras_dist_callbacks.backups.storable import from_json, to_json

_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
_TOPIC = "input"
_iterated: weakref.WeakSet[Any] = weakref.WeakSet()


class DataPosition:
    """The input of one fit.

    Attributes:
        is_rewindable: Whether the input can be put where it was.
        draws_ahead: Whether it draws from a random generator that runs ahead of training.
        state: The input's own account of its position at the last `note`, for the snapshot.
        tensors: The arrays in it.
    """

    def __init__(self, fit: RunningFit, callbacks: Iterable[Any]) -> None:
        self._fit = fit
        self._addressed = any(getattr(c, "addresses_epochs", False) for c in callbacks)
        self._source = fit.input
        self._methods = next((pair for pair in _METHODS if all(_has(fit.input, name) for name in pair)), None)
        self.draws_ahead = pipeline.uses_random_generator(fit.data)
        self.state: dict[str, JSON] = {}
        self.tensors: dict[str, HeldTensor] = {}
        self.is_rewindable = self._addressed or self._methods is not None or not self._was_iterated()

    def note(self) -> None:
        """An epoch begins or has ended: asks an input that knows its position.

        Not within an epoch: there the pipeline has read ahead of training, so the batches that were trained are
        pulled again instead.
        """
        if self._methods is not None:
            self.tensors = {}
            self.state = {_TOPIC: to_json(dict(getattr(self._source, self._methods[0])()), _TOPIC, self.tensors)}

    def restore(self, saved: WorkerState, first: int) -> None:
        """Puts the input at the begin of the saved epoch.

        Args:
            saved: The backup.
            first: The epoch with which the interrupted run had begun.
        """
        knows = self._methods is not None and _TOPIC in saved.state
        replay.replay_epochs(
            self._fit,
            first,
            saved.position.epoch,
            int(saved.state["validations"]),
            training=not (self._addressed or knows),
        )
        if self._methods is not None and knows:
            getattr(self._source, self._methods[1])(from_json(saved.state[_TOPIC], saved.tensors))
        self._fit.set_num_batches(saved.state["num_batches"])

    def _was_iterated(self) -> bool:
        """Whether the dataset has drawn shuffled orders in this process before; they cannot be drawn again."""
        stages = pipeline.reshuffling_stages(self._fit.data)
        before = any(stage in _iterated for stage in stages)
        _iterated.update(stages)
        return before


def _has(source: Any, name: str) -> bool:
    return callable(getattr(source, name, None))
