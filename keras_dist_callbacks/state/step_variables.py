"""State that training changes and that Keras does not list: found where the train step holds on to it.

Examples are a module-level variable in a loss, a loss object's own variable, the states of stateful recurrent
layers, a second optimizer that is an attribute of the model.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

from keras_dist_callbacks._compat import environment, graphs, model_parts, variables
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding, sentences
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, Saved, strip_counters
from keras_dist_callbacks.base.terminal import first_few, warn
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival

_TOPIC = "variables"  # names and types of those that the train step holds on to


def names_of_step(saved: Saved) -> list[str]:
    """Returns the names of the variables that only the train step held."""
    return [name for name, _ in saved.mine.state.get(_TOPIC) or []]


class CapturedVariables(Part):
    """The hidden state of one model in training."""

    name = "step"

    def __init__(self, fit: RunningFit) -> None:
        self.saved_names: list[str] = []
        self._fit = fit
        self._model = fit.model
        self._counter = graphs.TraceCounter(fit.model)
        self._seen: tuple[int, ...] = ()
        self._found: list[graphs.Resource] = []
        self._captured: set[int] = set()
        self._random: list[str] = []
        self._python: list[str] = []
        self._queues: list[str] = []
        self._unordered: list[str] = []
        self._functions: dict[int, graphs.Operations] = {}
        self._optimizers: list[Any] = []

    def unheld(self) -> list[Finding]:
        """Returns what the step uses and no backup can hold, and what of it could not be inspected."""
        found = [Finding("step-operation", detail=(label,)) for label in self._queues]
        found += [Finding("step-python", detail=(label,)) for label in self._python]
        if graphs.is_opaque(self._model):
            found.append(Finding("step-opaque"))
        strategy = self._model.distribute_strategy
        unordered = environment.unordered_sums(strategy.num_replicas_in_sync, self._unordered)
        return found + [Finding("unordered-sums", detail=(what,)) for what in unordered]

    def capture(self, position: Position) -> Piece:
        """Returns the variables that the step holds on to."""
        self._inspect()
        specs: list[JSON] = [[r.name, r.dtype.name] for r in self._found]
        held = {str(i): r.hold() for i, r in enumerate(self._found)}
        random = [Finding("step-random", detail=(label,)) for label in self._random]
        return Piece({_TOPIC: specs}, held, tuple(random))

    @property
    def captured_keys(self) -> set[int]:
        """All variables that the train step uses."""
        self._inspect()
        return self._captured

    @property
    def keys(self) -> set[int]:
        """The variables that are saved here."""
        self._inspect()
        return {resource.key for resource in self._found}

    def check(self, saved: Saved) -> None:
        """Notes what was saved, for those who build it."""
        self.saved_names = names_of_step(saved)

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Finds the same variables in this process and assigns them, all or none; returns that it cannot, if so."""
        if moment is not moment_of_arrival(saved.position):
            return []
        wanted = saved.mine.state.get(_TOPIC) or []
        notes = self._restore_hidden(wanted, saved.mine.tensors) if wanted else []
        if model_parts.layers_with_constants(self._model) and graphs.traces(self._model):
            self._model.make_train_function(force=True)  # what was traced holds the values from before the restore
        return notes

    def _restore_hidden(self, wanted: list[JSON], tensors: Mapping[str, Any]) -> list[Finding]:
        traced = self._model.run_eagerly or graphs.traces(self._model) or graphs.trace(self._fit)
        if traced:
            self._inspect()
            self._seen = ()
        difference = _first_difference(wanted, self._found if traced else [], tensors)
        if difference:
            return [_lost(wanted, *difference)]
        for number, resource in enumerate(self._found):
            resource.assign(tensors[str(number)])
        return []

    def _inspect(self) -> None:
        if self._model.run_eagerly:
            self._look_at_objects()
            return
        count = self._counter.count()
        if count == self._seen:
            return
        self._seen = count
        traces, tests = graphs.traces(self._model), graphs.traces(self._model, "test_function")
        known = variables.variable_set(self._model).keys
        captured = graphs.captured(traces)
        self._captured = {resource.key for resource in captured}
        self._found = [resource for resource in captured if resource.key not in known]
        found = [self._operations(function) for function in [*traces, *tests]]
        self._random = sorted({label for operations in found for label in operations.random})
        self._python = sorted({label for operations in found for label in operations.python})
        self._queues = sorted({label for operations in found for label in operations.queues})
        if not self._model.jit_compile:  # XLA adds in one order on a CPU
            self._unordered = sorted({label for operations in found for label in operations.unordered})

    def _look_at_objects(self) -> None:
        """In eager mode there is no trace: what belongs to the model's objects, of which a step may make more."""
        optimizers = self._optimizers or variables.optimizers_within(self._model)
        count = (sum(len(optimizer.variables) for optimizer in optimizers),)
        if count != self._seen:
            self._optimizers, self._seen = optimizers, count
            found = variables.untracked_variables(self._model)
            parts = ((name, c) for name, variable in found for c in variables.components(variable))
            self._found = [graphs.Resource(name, c.handle, c.dtype) for name, c in parts]
            self._unordered = ["the gradient of an Embedding"] * model_parts.has_embeddings(self._model)

    def _operations(self, function: Any) -> graphs.Operations:
        if id(function) not in self._functions:
            self._functions[id(function)] = graphs.operations(function.graph)
        return self._functions[id(function)]


class UnsavedVariables(Part):
    """What training changes and no other part saves.

    Args:
        fit: The running fit.
        step: What its train step holds.
        own_keys: Returns the keys of the variables that are saved with the user's objects.
        warn: Whether this worker warns of them.
    """

    name = "unsaved"

    def __init__(
        self, fit: RunningFit, step: CapturedVariables, own_keys: Callable[[], set[int]], *, warn: bool
    ) -> None:
        self._fit, self._step, self._own_keys, self._warn = fit, step, own_keys, warn
        self._of_submodels = model_parts.steps_of_submodels(fit.model)
        self._unknown: list[str] = []
        self._settled: set[int] | None = None

    def capture(self, position: Position) -> Piece:
        """Returns findings alone."""
        unknown = [Finding("variables-not-saved", detail=(name,)) for name in self._search()]
        return Piece(findings=(*self._step.unheld(), *unknown))

    def check(self, saved: Saved) -> None:
        """Notes what the backup has named, of which nobody is warned again."""
        self._unknown = [one.detail[0] for one in saved.mine.findings if one.code == "variables-not-saved"]

    def _search(self) -> list[str]:
        """Variables that training may change and that nothing else has found; searched when they all exist."""
        settled = self._unused() | self._own_keys()
        if self._settled != settled:
            self._settled = settled
            found = variables.untracked_variables(self._fit.model, self._step.keys | settled)
            new = {name for name, _ in found}.difference(self._unknown)
            self._unknown = sorted({*self._unknown, *new})
            if new and self._warn:
                for text in sentences(Finding("variables-not-saved", detail=(name,)) for name in sorted(new)):
                    warn(text)
        return self._unknown

    def _unused(self) -> set[int]:
        """Returns the variables of optimizers that belong to submodels, and that this training does not use."""
        unused: set[int] = set()
        for optimizer, steps in self._of_submodels:
            keys = {variables.key(c) for v in optimizer.variables for c in variables.components(v)}
            if model_parts.steps_taken(optimizer) == steps and not keys & self._step.captured_keys:
                unused |= keys
        return unused


def set_owned(model: Any, saved: Saved) -> list[str]:
    """Assigns those variables that belong to the objects of a model which was not traced.

    Without a trace there is no order to go by: a name, type and shape that are there twice do not tell which is which.

    Returns:
        The names of those of the backup that are not set.
    """
    wanted = saved.mine.state.get(_TOPIC) or []
    if not wanted:
        return []
    here, then = collections.defaultdict(list), collections.defaultdict(list)
    for _, variable in variables.untracked_variables(model):
        for c in variables.components(variable):
            resource = graphs.Resource(c.name, c.handle, c.dtype)
            here[_spec(c.name, c.dtype.name, tuple(c.shape))].append(resource)
    for number, (name, dtype) in enumerate(wanted):
        then[_spec(name, dtype, saved.mine.tensors[str(number)].shape)].append((name, number))
    left: list[str] = []
    for spec, named in then.items():
        if len(named) == len(here[spec]) == 1:
            here[spec][0].assign(saved.mine.tensors[str(named[0][1])])
        else:
            left += [name for name, _ in named]
    return left


def _lost(wanted: list[JSON], *difference: str) -> Finding:
    return Finding("step-variables", detail=(", ".join(first_few([str(name) for name, _ in wanted])), *difference))


def _first_difference(
    wanted: list[JSON], found: list[graphs.Resource], tensors: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """The first of several variables that is another one now: its number, and what it was and is."""
    for number in range(max(len(wanted), len(found))):
        then = "none"
        if number < len(wanted):
            name, dtype = wanted[number]
            then = _spec(name, dtype, tensors[str(number)].shape)
        now = found[number] if number < len(found) else None
        here = "none" if now is None else _spec(now.name, now.dtype.name, now.shape)
        if then != here:
            return str(number + 1), then, here
    return None


def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> str:
    return f"{strip_counters(name)} {dtype}{list(shape)}"
