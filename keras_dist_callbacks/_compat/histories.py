"""The History of a fit(), and those of the fits that the same model went through before.

A loop that calls `fit(initial_epoch=n, epochs=n + 1)` reads each History. After a restart the first fits have no
step to run, and get theirs back.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from keras_dist_callbacks._compat import fit as seam
from keras_dist_callbacks.process import Shared, shared

_EMPTY: dict[str, Any] = {"epoch": [], "history": {}}
_ALL = (0, sys.maxsize)


@dataclass
class _Fits(Shared):
    """By model: the epochs that its last fit was asked for, and the Histories of the fits before."""

    asked: WeakKeyDictionary[Any, tuple[int, int]] = field(default_factory=WeakKeyDictionary)
    earlier: WeakKeyDictionary[Any, list[dict[str, Any]]] = field(default_factory=WeakKeyDictionary)


def note_begin(fit: seam.RunningFit) -> None:
    """A fit begins; to be called before it is told to begin elsewhere."""
    shared(_Fits).asked[fit.model] = fit.initial_epoch, fit.epochs


def note_end(model: Any) -> None:
    """A fit of this model has trained to its end."""
    ended = getattr(model, "history", None)
    if ended is None:  # a CallbackList of the user's
        return
    shared(_Fits).earlier.setdefault(model, []).append({"epoch": list(ended.epoch), "history": dict(ended.history)})


def get(history: Any) -> dict[str, Any]:
    """The state of a running fit's History, with the Histories of the epochs before that fit."""
    state = {"epoch": history.epoch, "history": history.history}
    first, _ = shared(_Fits).asked.get(history.model, _ALL)
    before = [fit for fit in shared(_Fits).earlier.get(history.model, []) if fit["epoch"] and fit["epoch"][-1] < first]
    return {**state, "earlier": before} if before else state


def set_back(history: Any, state: dict[str, Any]) -> None:
    """Gives a fit the History of the epochs that it asks for."""
    first, end = shared(_Fits).asked.get(history.model, _ALL)
    own = {name: state[name] for name in _EMPTY}
    fits = [*state.get("earlier", []), own]
    if not (own["epoch"] and own["epoch"][0] < end and own["epoch"][-1] >= first):  # it has no epoch of this fit
        own = next((fit for fit in fits if fit["epoch"][:1] == [first] and fit["epoch"][-1] < end), _EMPTY)
    history.epoch, history.history = list(own["epoch"]), dict(own["history"])
    shared(_Fits).earlier[history.model] = [fit for fit in fits if fit["epoch"] and fit["epoch"] != history.epoch]
