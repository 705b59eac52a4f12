"""The variables that Keras lists: captured, and assigned from a backup."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import model_parts, variables
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import (
    JSON,
    VARIABLES,
    Piece,
    Position,
    Saved,
    SharedTensor,
    stored_components,
    strip_counters,
)
from keras_dist_callbacks.base.errors import BackupMismatchError
from keras_dist_callbacks.base.terminal import first_few
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.state.own_values import to_json
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival

Array = np.ndarray[Any, Any]
_METRICS = "metrics"


def redistribute(values: Sequence[Array], aggregation: str, count: int) -> list[Array]:
    """One value for each of `count` replicas.

    Mirrored values stay what they are. Where replicas had values of their own, sums (metrics) are kept as a sum,
    means and other real numbers (statistics of BatchNormalization) are averaged, and of anything else the first
    replica's value is taken.

    Args:
        values: The components as saved, of all replicas of all workers in order.
        aggregation: The variable's: `"sum"`, `"mean"`, `"only_first_replica"` or `"none"`.
        count: How many replicas there are now.
    """
    if len(values) == count:
        return list(values)
    first = values[0]
    if aggregation == "sum":
        total = np.sum(np.stack(values), axis=0, dtype=first.dtype)
        return [total, *([np.zeros_like(total)] * (count - 1))]
    if all(np.array_equal(value, first, equal_nan=_is_real(first)) for value in values[1:]):
        return [first] * count
    if aggregation in {"mean", "none"} and _is_real(first):
        mean = np.mean(np.stack(values), axis=0, dtype=np.float64).astype(first.dtype)
        return [mean] * count
    return [first] * count


def _is_real(value: Array) -> bool:
    return bool(value.dtype.kind == "f" or value.dtype.name == "bfloat16")


class ModelVariables(Part):
    """The variables that Keras lists: the model's, its optimizer's, metrics' and seed generators'.

    Args:
        model: The model in training, or what stands for one.
        cluster: This worker's place.
        leave: Returns the keys of variables that are right already when they are put back.
        is_built: Returns whether all of them exist.
    """

    name = VARIABLES

    def __init__(
        self,
        model: Any,
        cluster: Cluster,
        leave: Callable[[], Collection[int]] = tuple,
        is_built: Callable[[], bool] = lambda: True,
    ) -> None:
        self._model, self._cluster, self._leave, self._is_built = model, cluster, leave, is_built
        self._saved: Saved | None = None

    def capture(self, position: Position) -> Piece:
        """Returns every component of every variable; they are read and held, not copied."""
        found = variables.variable_set(self._model)
        held = dict(zip(found.labels, found.hold(), strict=True))
        return Piece({_METRICS: metric_names(self._model, found.named)}, held)

    @property
    def saved_names(self) -> tuple[list[str], list[str]]:
        """The names of the backup's variables, and which of them are metrics'."""
        return ([], []) if self._saved is None else (saved_names(self._saved), self._saved.mine.state[_METRICS])

    def forget(self) -> None:
        """What fits of the backup is assigned, and nothing is put back once more."""
        self._saved = None

    def check(self, saved: Saved) -> None:
        """Compares names, shapes and types, if all variables are built.

        Raises:
            BackupMismatchError: The backup is of another model.
        """
        self._saved = saved
        if self._is_built():
            self._match(saved, variables.variable_set(self._model).named)

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Assigns every component of every variable, locally; returns what could not be restored exactly.

        Under another number of replicas than the backup was made with, mirrored values stay exact and others are
        merged, see `redistribute`. Layers are finished as Keras' own loading does it.

        Raises:
            BackupMismatchError: The backup is of another model; nothing was assigned.
        """
        if moment is not moment_of_arrival(saved.position):
            return []
        self._saved = saved
        return self.put_back()

    def put_back(self) -> list[Finding]:
        """Does the same, once more: what ran since may have changed variables."""
        saved = self._saved
        if saved is None:
            return []
        if f"{variables.GLOBAL_SEED_GENERATOR}@0" in saved.mine.tensors:
            variables.create_global_seed_generator()
        current = variables.variable_set(self._model).named
        matched, found = self._match(saved, current)
        _assign(current, matched, saved, self._cluster, self._leave())
        model_parts.finalize(self._model)
        return found

    def _match(
        self, saved: Saved, current: Mapping[str, Any]
    ) -> tuple[dict[str, list[np.ndarray[Any, Any]]], list[Finding]]:
        metrics, fresh = set(metric_names(self._model, current)), _never_applied(self._model, current)
        return match_variables(current, saved, metrics, fresh)


def jsonable_logs(logs: Mapping[str, Any], tensors: dict[str, SharedTensor]) -> JSON:
    """Logs of a step as JSON: tensors become numbers or, with axes, arrays, which are put into `tensors`."""
    return to_json(_plain_logs(logs), "logs", tensors)


def assign(current: Mapping[str, Any], partners: Mapping[str, str], saved: Saved, cluster: Cluster) -> None:
    """Assigns those variables that have a partner in the backup.

    Args:
        current: Variables by name.
        partners: The names that they have in the backup.
        saved: The backup.
        cluster: This worker's place.

    Raises:
        BackupMismatchError: A shape or type differs; nothing was assigned.
    """
    stored = _of_all_workers(saved)
    matched = {name: stored[partner] for name, partner in partners.items()}
    for name, values in matched.items():
        _check_shape(name, variables.components(current[name])[0], values[0])
    _assign(current, matched, saved, cluster)


def _assign(
    current: Mapping[str, Any],
    matched: Mapping[str, Sequence[np.ndarray[Any, Any]]],
    saved: Saved,
    cluster: Cluster,
    leave: Collection[int] = (),
) -> None:
    for name, values in matched.items():
        components = variables.components(current[name])
        count = len(components)
        if saved.others or len(values) != count:
            values = redistribute(values, variables.aggregation(current[name]), count * cluster.num_workers)
            values = values[cluster.worker_index * count :][:count]
        for component, value in zip(components, values, strict=True):
            if variables.key(component) not in leave:
                variables.assign(component, value)


def saved_names(saved: Saved) -> list[str]:
    """Returns the names of all variables that Keras lists in a backup."""
    return list(stored_components(saved.mine.tensors))


def match_variables(
    current: Mapping[str, Any], saved: Saved, metrics: set[str], fresh: Collection[str] = ()
) -> tuple[dict[str, list[np.ndarray[Any, Any]]], list[Finding]]:
    """Finds the saved components of each current variable.

    Names decide. The order does where they differ only as they do between a model that was built and the same
    model loaded from a file: automatic numbering (`dense_3` against `dense_7`) and the model's own name in front
    of a layer's.

    Args:
        current: The variables of training by name.
        saved: The backup.
        metrics: Names of those that are metrics'.
        fresh: Names of those that an optimizer has and never used: they may be new, and stay as they are.

    Raises:
        BackupMismatchError: Names, shapes or types differ; the message names the first that do.
    """
    stored = _of_all_workers(saved)
    if variables.GLOBAL_SEED_GENERATOR not in current:  # its first use, which a restore precedes, makes it
        stored.pop(variables.GLOBAL_SEED_GENERATOR, None)
    if variables.GLOBAL_SEED_GENERATOR not in stored:  # its first use was still to come: its initial state is right
        current = {name: v for name, v in current.items() if name != variables.GLOBAL_SEED_GENERATOR}
    metrics = metrics | set(saved.mine.state[_METRICS])
    matched: dict[str, list[np.ndarray[Any, Any]]] = {}
    not_restored: list[str] = []
    new = _new_and_unused(list(current), list(stored), metrics, fresh)
    current = {name: v for name, v in current.items() if name not in set(new)}
    partner = _partners(list(current), list(stored), metrics)
    for name, variable in current.items():
        if name not in partner:
            not_restored.append(name)
            continue
        matched[name] = stored[partner[name]]
        _check_shape(name, variables.components(variable)[0], matched[name][0])
    gone = sorted(stored.keys() - set(partner.values()))
    differing = {"metrics-new": not_restored, "metrics-gone": gone, "slots-new": new}
    return matched, [Finding(code, detail=(name,)) for code, names in differing.items() for name in names]


def _new_and_unused(
    current: Sequence[str], stored: Sequence[str], metrics: set[str], fresh: Collection[str]
) -> list[str]:
    """What is too much in the model if all else has its partner: an optimizer may be built for more than it trains."""
    ours, theirs = ([n for n in names if n not in metrics] for names in (current, stored))
    new = [name for name in ours if name in fresh and name not in set(theirs)]
    if (
        match_names(ours, theirs) is None
        and match_names([name for name in ours if name not in set(new)], theirs) is not None
    ):
        return new
    return []


def _partners(current: Sequence[str], stored: Sequence[str], metrics: set[str]) -> dict[str, str]:
    ours, theirs = ([n for n in names if n not in metrics] for names in (current, stored))
    partners = match_names(ours, theirs)
    if partners is None:
        missing, surplus = ([n for n in one if n not in set(other)] for one, other in ((ours, theirs), (theirs, ours)))
        raise BackupMismatchError(
            f"this model does not match the backup. Only in the model: {_some(missing)}; only in the backup: "
            f"{_some(surplus)}. The backup is unchanged: build and compile the model as before to resume, or use "
            "another directory to start again"
        )
    ours, theirs = ([n for n in names if n in metrics] for names in (current, stored))
    return {**partners, **(match_names(ours, theirs) or {name: name for name in ours if name in set(theirs)})}


def match_names(current: Sequence[str], stored: Sequence[str]) -> dict[str, str] | None:
    """Returns the name in the backup of each variable, see `match_variables`; None if they are not the same ones."""
    if set(current) == set(stored):
        return {name: name for name in current}
    if len(current) == len(stored) and all(map(_without_prefix, current, stored)):
        return dict(zip(current, stored, strict=True))
    return None


def _check_shape(name: str, component: Any, value: np.ndarray[Any, Any]) -> None:
    shape, dtype = tuple(component.shape), component.dtype.name
    if shape != value.shape or dtype != value.dtype.name:
        raise BackupMismatchError(
            f"this model does not match the backup: {name} was {value.dtype.name}{list(value.shape)} in the backup and "
            f"is {dtype}{list(shape)} now. The backup is unchanged: build the model as before to resume, or use "
            "another directory to start again"
        )


def _of_all_workers(saved: Saved) -> dict[str, list[np.ndarray[Any, Any]]]:
    stored = stored_components(saved.mine.tensors)
    for tensors in saved.others:
        for name, values in stored_components(tensors).items():
            stored[name] += values
    return stored


def metric_names(model: Any, named: Mapping[str, Any]) -> list[str]:
    """Returns which of a model's variables are metrics'."""
    ids = {id(variable) for metric in model.metrics for variable in metric.variables}
    return [name for name, variable in named.items() if id(variable) in ids]


def _never_applied(model: Any, named: Mapping[str, Any]) -> set[str]:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or model_parts.steps_taken(optimizer):
        return set()
    ids = {id(variable) for variable in optimizer.variables}
    return {name for name, variable in named.items() if id(variable) in ids}


def _without_prefix(one: str, other: str) -> bool:
    """Returns whether two paths differ in numbering and a leading name only, in slots of optimizers too."""
    short, long = sorted((strip_counters(one), strip_counters(other)), key=len)
    (folder, _, slot), (long_folder, _, long_slot) = short.rpartition("/"), long.rpartition("/")
    return short == long or long.endswith(f"/{short}") or (folder == long_folder and long_slot.endswith(f"_{slot}"))


def _plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """A log is a number, a vector such as that of a metric by class, or the logs of several metrics."""
    plain = {name: _plain_logs(log) if isinstance(log, Mapping) else _number(log) for name, log in logs.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _number(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) and not isinstance(value, np.generic):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return None
    return array if array.ndim else array.item()


def _some(names: Sequence[str]) -> str:
    return ", ".join(first_few(names)) or "none"
