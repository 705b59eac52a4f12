"""What a loop of the user's has before the first batch of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import rng, variables
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.json_values import from_json, to_json
from keras_dist_callbacks.backups.snapshot import JSON, VARIABLES, SharedTensor, WorkerState
from keras_dist_callbacks.training.capture import match_names

_NOW, _BEGUN, _ENTERED = "random/now", "random_at_epoch/begun", "random_at_epoch/entered"
_VARIABLES = "variables"
_SEED_SIZES = range(2, 9)  # of a SeedGenerator's state, of tf.random.Generator's


class EpochBegin:
    """Lets a loop do what it does before an epoch's first batch once more in the epoch that was interrupted.

    It draws an order, or resets a metric or a sum: it draws as it did then, and what it changes is put back
    to what it was after the steps that were trained. Before the first epoch it draws as a run from the start does.

    Args:
        trained: What the loop trains.
        state: The user's own.
    """

    def __init__(self, trained: Any, state: dict[str, Any]) -> None:
        self._trained, self._state = trained, state
        self._states: JSON = None
        self._saved: WorkerState | None = None
        self._rng: JSON = None
        self._global_seed: dict[str, Any] | None = None
        self._held: dict[str, Any] | None = None
        self._held_state: dict[str, Any] = {}

    def restore(self, saved: WorkerState, apply: Callable[[], list[Finding]]) -> list[Finding]:
        """Restores the variables, and random states if nothing tells later when to.

        Args:
            saved: The backup.
            apply: Assigns the variables; what it finds is returned.
        """
        if f"{VARIABLES}/{variables.GLOBAL_SEED_GENERATOR}@0" in saved.tensors:
            variables.create_global_seed_generator()
        of_script = self._hold(_is_global_seed)
        found = apply()
        self._saved, self._rng, self._global_seed = saved, saved.state[_NOW], self._hold(_is_global_seed)
        if _BEGUN in saved.state or saved.state.get(_ENTERED) is not None:
            self._assign(of_script)
        else:
            self.settle()
        return found

    def settle(self) -> None:
        """Everything is that of the backup again, as after the steps that were trained."""
        if self._global_seed is not None:
            self._assign(self._global_seed)
            rng.restore(self._rng)
        elif self._held is not None:
            self.put_back()
            rng.restore(self._rng)
        self._global_seed = None

    def begin(self) -> None:
        """An epoch begins."""
        self._held = None
        self.settle()
        saved, self._saved = self._saved, None
        if saved is None or saved.position.kind != "within":
            self._states = {**rng.capture(), _VARIABLES: self._seeds()}
            return
        self._states = saved.state.get(_BEGUN)
        if self._states is None or saved.state[_ENTERED] is None:
            return  # nothing would tell when its first step begins
        self._held, self._held_state = self._hold(), _encoded(self._state)
        rng.restore(self._states)
        self._set_seeds(self._states[_VARIABLES])

    def put_back(self, leave: Collection[int] = ()) -> None:
        """The first batch is asked for.

        Args:
            leave: Keys of variables that are right already.
        """
        held, self._held = self._held, None
        if held is None:
            return
        if any(map(_is_global_seed, held)):
            variables.create_global_seed_generator()
        self._assign(held, leave)
        now = _encoded(self._state)
        changed = {key: then for key, then in self._held_state.items() if not _same(then, now.get(key))}
        update(self._state, {key: from_json(*then) for key, then in changed.items()})

    def note_step(self) -> None:
        """A step was trained: nothing can be put back any more."""
        self._held = None

    def capture(self) -> dict[str, JSON]:
        """Returns the topic of a snapshot; none of a loop that has not begun an epoch."""
        return {} if self._states is None else {"begun": self._states}

    def _parts(self) -> dict[str, Any]:
        named = variables.variable_set(self._trained).named
        return {
            f"{name}@{n}": c for name, variable in named.items() for n, c in enumerate(variables.components(variable))
        }

    def _hold(self, wanted: Callable[[str], bool] = lambda label: True) -> dict[str, Any]:
        found = variables.variable_set(self._trained)
        return {label: held for label, held in zip(found.labels, found.hold(), strict=True) if wanted(label)}

    def _assign(self, held: Mapping[str, Any], leave: Collection[int] = ()) -> None:
        parts = self._parts()
        for label, value in held.items():
            part = parts.get(label)
            if part is None or variables.key(part) in leave:
                continue
            if not np.array_equal(variables.read(part), value.array()):
                variables.assign(part, value.array())

    def _seeds(self) -> dict[str, list[int]]:
        """Returns the values of what may be the states of random generators."""
        seeds = {label: part for label, part in self._parts().items() if _is_seed(part)}
        return {label: [int(x) for x in variables.read(part)] for label, part in seeds.items()}

    def _set_seeds(self, saved: Mapping[str, list[int]]) -> None:
        if not any(map(_is_global_seed, saved)):
            variables.drop_global_seed_generator()  # the first use of this epoch made it
        seeds = {label: part for label, part in self._parts().items() if _is_seed(part)}
        for label, partner in (match_names(list(seeds), list(saved)) or {}).items():
            variables.assign(seeds[label], np.array(saved[partner], seeds[label].dtype.as_numpy_dtype))


def update(state: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Sets entries of the user's dict; lists and dicts in it stay the objects that other code may refer to."""
    for key, value in values.items():
        known = state.get(key)
        if type(known) is type(value) is list:
            known[:] = value
        elif type(known) is type(value) is dict:
            known.clear()
            known.update(value)
        else:
            state[key] = value


def _is_global_seed(label: str) -> bool:
    return label.rpartition("@")[0] == variables.GLOBAL_SEED_GENERATOR


def _is_seed(part: Any) -> bool:
    return bool(part.dtype.is_integer) and len(part.shape) == 1 and part.shape[0] in _SEED_SIZES


def _encoded(state: Mapping[str, Any]) -> dict[str, tuple[JSON, dict[str, Any]]]:
    found = {}
    for key, value in state.items():
        arrays: dict[str, SharedTensor] = {}
        found[key] = to_json(value, "user", arrays), {name: held.array() for name, held in arrays.items()}
    return found


def _same(one: tuple[JSON, Mapping[str, Any]], other: tuple[JSON, Mapping[str, Any]] | None) -> bool:
    if other is None or repr(one[0]) != repr(other[0]) or one[1].keys() != other[1].keys():
        return False
    return all(a.dtype == other[1][n].dtype and np.array_equal(a, other[1][n]) for n, a in one[1].items())
