"""State that training changes and that Keras does not list: found where the train step holds on to it.

Examples are a module-level variable in a loss, a loss object's own variable, the states of stateful recurrent
layers, a second optimizer that is an attribute of the model.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from keras_dist_callbacks._compat import building, environment, graphs, model_parts, variables
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.manifest import OPTIMIZED
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor, WorkerState, strip_counters
from keras_dist_callbacks.errors import BackupMismatchError
from keras_dist_callbacks.terminal import first_few
from keras_dist_callbacks.training.capture import saved_variables

TOPIC = "untracked_variables"
"""The topic with the names and types of variables that the train step holds on to."""

_TENSOR = "hidden"


def build_like(saved: WorkerState, fit: RunningFit) -> None:
    """Makes the variables that the default strategy leaves to the first step, before a backup is restored.

    By tracing the train step: it makes them as the interrupted run's first step did, such as an optimizer's for a part
    of the weights only. In eager mode, no optimizer gets variables of which the backup knows nothing.
    """
    model, listed, hidden = fit.model, saved_variables(saved), saved.state.get(TOPIC) or []
    if not model.run_eagerly and graphs.trace(fit):
        return
    if building.has_unbuilt_layers(model):
        try:
            graphs.trace_eager_step(fit)
        except Exception:
            if building.unbuilt_layers(model):
                raise
    building.build_optimizer_for(model, saved.state.get(OPTIMIZED) or [])
    building.build_optimizer_like(model.optimizer, model, listed)
    building.build_metrics(fit)
    building.build_other_optimizers_like(model, [name for name, _ in hidden])
    building.build_optimizer_if_saved(model, listed, saved.state["metric_variables"])


class NotBuiltError(BackupMismatchError):
    """A model that was not built before `fit()` cannot be built without running a step.

    Args:
        model: The model.
        error: What went wrong when its step was traced.
    """

    def __init__(self, model: Any, error: Exception) -> None:
        super().__init__(
            f"the model {model.name!r} is not built and its eager train_step cannot be traced "
            f"({type(error).__name__}: {_last_line(error)}). To resume, give the model an Input or call it on a batch "
            "of data before fit()"
        )


def build(fit: RunningFit, saved: WorkerState) -> None:
    """Builds what the interrupted run's first step has built.

    Raises:
        BackupMismatchError: The step cannot be traced.
        NotBuiltError: The model has layers that only a step which is run eagerly can build.
    """
    if not building.unbuilt_layers(fit.model) and not building.has_unbuilt_variables(fit.model):
        return
    try:
        build_like(saved, fit)
    except Exception as error:
        if building.unbuilt_layers(fit.model):
            raise NotBuiltError(fit.model, error) from error
        raise BackupMismatchError(
            f"the train step cannot be traced as in the interrupted run ({type(error).__name__}: {_last_line(error)}). "
            "The backup is unchanged: build and compile the model as before to resume, or use another directory to "
            "start again; if a callback changes it at an epoch, do that in on_epoch_begin of that epoch or a later one"
        ) from error


def _last_line(error: Exception) -> str:
    """Autograph's begin with a trace."""
    return (str(error).strip().splitlines() or [""])[-1].strip()


class CapturedVariables:
    """The hidden state of one model in training."""

    def __init__(self, fit: RunningFit) -> None:
        self._fit = fit
        self._model = fit.model
        self._seen = -1
        self._found: list[graphs.Resource] = []
        self._captured: set[int] = set()
        self._random: list[str] = []
        self._python: list[str] = []
        self._queues: list[str] = []
        self._unordered: list[str] = []
        self._functions: dict[int, graphs.Operations] = {}
        self._optimizers: list[Any] = []

    @property
    def found(self) -> list[Finding]:
        """What the step uses and no backup can hold, and what of it could not be inspected."""
        found = [Finding("step-operation", detail=(label,)) for label in self._queues]
        found += [Finding("step-python", detail=(label,)) for label in self._python]
        if graphs.is_opaque(self._model):
            found.append(Finding("step-opaque"))
        strategy = self._model.distribute_strategy
        unordered = environment.unordered_sums(strategy.num_replicas_in_sync, self._unordered)
        return found + [Finding("unordered-sums", detail=(what,)) for what in unordered]

    @property
    def random(self) -> list[Finding]:
        """Operations of the step that keep a random state in their kernel."""
        return [Finding("step-random", detail=(label,)) for label in self._random]

    def capture(self) -> tuple[dict[str, JSON], dict[str, SharedTensor]]:
        """Returns the topics and tensors of a snapshot."""
        self._inspect()
        specs: list[JSON] = [[r.name, r.dtype.name] for r in self._found]
        held: dict[str, SharedTensor] = {f"{_TENSOR}/{i}": r.hold() for i, r in enumerate(self._found)}
        topics: dict[str, JSON] = {TOPIC: specs}
        if self._model.run_eagerly and self._model.optimizer is not None:
            places = building.weights_of_partial_slots(self._model)
            topics.update({OPTIMIZED: places} if places else {})
        return topics, held

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

    def restore(self, saved: WorkerState) -> list[Finding]:
        """Finds the same variables in this process and assigns them; all or none.

        Returns:
            That this was not possible, or nothing.
        """
        wanted = saved.state.get(TOPIC) or []
        notes = self._restore_hidden(wanted, saved.tensors) if wanted else []
        if model_parts.layers_with_constants(self._model) and graphs.traces(self._model):
            self._model.make_train_function(force=True)  # what was traced holds the values from before the restore
        return notes

    def _restore_hidden(self, wanted: list[JSON], tensors: Mapping[str, Any]) -> list[Finding]:
        traced = self._model.run_eagerly or graphs.traces(self._model) or graphs.trace(self._fit)
        if not traced:
            return [_lost(wanted, "the train step cannot be traced")]
        self._inspect()
        self._seen = -1
        difference = _first_difference(wanted, self._found, tensors)
        if difference:
            return [_lost(wanted, difference)]
        for number, resource in enumerate(self._found):
            resource.assign(tensors[f"{_TENSOR}/{number}"])
        return []

    def _inspect(self) -> None:
        if self._model.run_eagerly:
            self._look_at_objects()
            return
        count = graphs.trace_count(self._model)
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
        count = sum(len(optimizer.variables) for optimizer in optimizers)
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


def set_owned(model: Any, saved: WorkerState) -> list[str]:
    """Assigns those variables that belong to the objects of a model which was not traced.

    Without a trace there is no order to go by: a name, type and shape that are there twice do not tell which is which.

    Returns:
        The names of those of the backup that are not set.
    """
    wanted = saved.state.get(TOPIC) or []
    if not wanted:
        return []
    here, then = collections.defaultdict(list), collections.defaultdict(list)
    for _, variable in variables.untracked_variables(model):
        for c in variables.components(variable):
            resource = graphs.Resource(c.name, c.handle, c.dtype)
            here[_spec(c.name, c.dtype.name, tuple(c.shape))].append(resource)
    for number, (name, dtype) in enumerate(wanted):
        then[_spec(name, dtype, saved.tensors[f"{_TENSOR}/{number}"].shape)].append((name, number))
    left: list[str] = []
    for spec, named in then.items():
        if len(named) == len(here[spec]) == 1:
            here[spec][0].assign(saved.tensors[f"{_TENSOR}/{named[0][1]}"])
        else:
            left += [name for name, _ in named]
    return left


def _lost(wanted: list[JSON], why: str) -> Finding:
    return Finding("step-variables", detail=(", ".join(first_few([str(name) for name, _ in wanted])), why))


def _first_difference(wanted: list[JSON], found: list[graphs.Resource], tensors: Mapping[str, Any]) -> str | None:
    for number in range(max(len(wanted), len(found))):
        then = "none"
        if number < len(wanted):
            name, dtype = wanted[number]
            then = _spec(name, dtype, tensors[f"{_TENSOR}/{number}"].shape)
        now = found[number] if number < len(found) else None
        here = "none" if now is None else _spec(now.name, now.dtype.name, now.shape)
        if then != here:
            return f"number {number + 1} was {then} in the interrupted run and is {here} now"
    return None


def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> str:
    return f"{strip_counters(name)} {dtype}{list(shape)}"
