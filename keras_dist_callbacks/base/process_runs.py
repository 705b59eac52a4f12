"""What outlives a fit() in its process, for those that follow: the one record of all runs.

It keeps nothing of the user's alive. Models, inputs and stages of datasets are weak keys or references; all else are
numbers, texts and digests.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from keras_dist_callbacks.base.process import Shared, shared


def reference(value: Any) -> Callable[[], Any]:
    """Returns a weak reference; to None where there is none to a value, such as a list."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None


class Ended(NamedTuple):
    """A fit that has ended without an exception.

    Attributes:
        number: How many had ended in its directory before it.
        first: The number of the first of those before it that trained its model, one after the other.
        model: Its model.
        source: What it was given as `x`.
        generation: That of the backup which it has left.
    """

    number: int = -1
    first: int = 0
    model: Callable[[], Any] = reference(None)
    source: Callable[[], Any] = reference(None)
    generation: int = -1


@dataclass
class FitsIn:
    """The fits with one backup directory.

    Attributes:
        directory: As it is shown.
        last: The one that has ended last.
        left: The last one that has left a backup at its end.
        given: How many that have ended were given the same, by what tells that.
        has_trained: Whether one has trained an epoch.
        seed: That of orders which no global seed fixes.
    """

    directory: str
    last: Ended = field(default_factory=Ended)
    left: Ended = field(default_factory=Ended)
    given: Counter[str] = field(default_factory=Counter)
    has_trained: bool = False
    seed: int | None = None


@dataclass
class FitsOf:
    """The fits of one model; dictionaries are by backup directory.

    Attributes:
        asked: The epochs that the last one was asked for.
        histories: What Histories held when fits ended.
        traced: The train function, and of each of its traces what it may have read: digests by path.
        rates: The learning rates at the first fit.
        descriptions: How the first fit began, as text.
        architecture: How it was compiled when its JSON was taken last, and that as tensors.
        changed: How what the last fit has changed was when the first one began.
    """

    asked: tuple[int, int] = (0, sys.maxsize)
    histories: list[dict[str, Any]] = field(default_factory=list)
    traced: tuple[Callable[[], Any], tuple[dict[str, str], ...]] = (reference(None), ())
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    descriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    architecture: tuple[Callable[[], Any], dict[str, Any] | None] = (reference(None), None)
    changed: dict[str, Any] = field(default_factory=dict)


@dataclass
class ProcessRuns(Shared):
    """All runs of this process.

    Attributes:
        places: By backup directory.
        models: By model.
        passes: By stage that reshuffles in each pass, how often it was read.
        skipped: Likewise, how often a `fit()` that was finished before the process started had read it.
        findings: On what the results of later fits depend, because an earlier one was skipped or is finished.
        numbers: Distinguish the messages of one run from another's.
        rehearsed: How many fits were rehearsed.
    """

    places: dict[str, FitsIn] = field(default_factory=dict)
    models: MutableMapping[Any, FitsOf] = field(default_factory=WeakKeyDictionary)
    passes: MutableMapping[Any, int] = field(default_factory=WeakKeyDictionary)
    skipped: MutableMapping[Any, int] = field(default_factory=WeakKeyDictionary)
    findings: dict[Any, None] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    rehearsed: int = 0


def fits_in(directory: str) -> FitsIn:
    """Returns the fits with a backup directory."""
    return shared(ProcessRuns).places.setdefault(directory, FitsIn(directory))


def fits_of(model: Any) -> FitsOf:
    """Returns the fits of a model."""
    return shared(ProcessRuns).models.setdefault(model, FitsOf())


def next_name(kind: str) -> str:
    """Returns a name for a run, the same on every worker."""
    return f"{kind}{next(shared(ProcessRuns).numbers)}"
