"""What a loop of the user's has before the first batch of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import rng, variables
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, Saved, SharedTensor
from keras_dist_callbacks.state.own_values import from_json, to_json
from keras_dist_callbacks.state.part import Moment, Part
from keras_dist_callbacks.state.variables import ModelVariables, match_names

_BEGUN, _ENTERED = "begun", "entered"
_VARIABLES = "variables"
_SEED_SIZES = range(2, 9)  # of a SeedGenerator's state, of tf.random.Generator's


class EpochBegin(Part):
    """Lets a loop do what it does before an epoch's first batch once more in the epoch that was interrupted.

    It draws an order, or resets a metric or a sum: it draws as it did then, and what it changes is put back
    to what it was after the steps that were trained. Before the first epoch it draws as a run from the start does.

    Args:
        trained: What the loop trains.
        state: The user's own.
        listed: The variables, which are restored after `restore` and before `arrive`.

    Attributes:
        entered: Random states as the running epoch's first batch was asked for; None before it was.
        saved_entered: Likewise, as the backup has them.
        now: Those of the backup, after the steps that were trained.
    """

    name = "random_at_epoch"

    def __init__(self, trained: Any, state: dict[str, Any], listed: ModelVariables) -> None:
        self._trained, self._state, self._listed = trained, state, listed
        self.entered: JSON = None
        self.saved_entered: JSON = None
        self.now: JSON = None
        self._states: JSON = None
        self._saved: Saved | None = None
        self._of_script: dict[str, Any] = {}
        self._global_seed: dict[str, Any] | None = None
        self._held: dict[str, Any] | None = None
        self._held_state: dict[str, Any] = {}

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Keeps the global seed that the script has, which is drawn from until the epoch begins."""
        if variables.GLOBAL_SEED_GENERATOR in self._listed.saved_names[0]:
            variables.create_global_seed_generator()
        self._of_script, self._saved = self._hold(_is_global_seed), saved
        self.entered = self.saved_entered = saved.mine.state.get(_ENTERED)
        return []

    def arrive(self, now: JSON) -> None:
        """All else is restored: random states are too, if nothing tells later when to."""
        self.now, self._global_seed = now, self._hold(_is_global_seed)
        saved = None if self._saved is None else self._saved.mine.state
        if saved is not None and (_BEGUN in saved or self.saved_entered is not None):
            self._assign(self._of_script)
        else:
            self.settle()

    def settle(self) -> None:
        """Everything is that of the backup again, as after the steps that were trained."""
        if self._global_seed is not None:
            self._assign(self._global_seed)
            rng.restore(self.now)
        elif self._held is not None:
            self.put_back()
            rng.restore(self.now)
        self._global_seed = None

    def begin(self) -> None:
        """An epoch begins."""
        self._held = self.entered = None
        self.settle()
        saved, self._saved = self._saved, None
        if saved is None or saved.position.kind != "within":
            self._states = {**rng.capture(), _VARIABLES: self._seeds()}
            return
        self._states = saved.mine.state.get(_BEGUN)
        if self._states is None or self.saved_entered is None:
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

    def capture(self, position: Position) -> Piece:
        """Returns what the epoch has begun with; little of a loop that has not begun one."""
        begun = {} if self._states is None else {_BEGUN: self._states}
        return Piece({_ENTERED: self.entered, **begun})

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
