"""Variables, random states, callbacks and progress: captured into a snapshot, applied from a backup."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import model_parts, variables
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.json_values import to_json
from keras_dist_callbacks.backups.manifest import CALLBACK
from keras_dist_callbacks.backups.snapshot import (
    JSON,
    VARIABLE,
    Position,
    SharedTensor,
    Snapshot,
    WorkerState,
    stored_components,
    strip_counters,
    tensor_name,
)
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.errors import BackupMismatchError
from keras_dist_callbacks.terminal import first_few
from keras_dist_callbacks.training.callback_state import capture_callbacks, restore_callbacks

Array = np.ndarray[Any, Any]


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


def capture(
    model: Any,
    callbacks: Iterable[Any],
    position: Position,
    topics: Mapping[str, JSON],
    arrays: Mapping[str, SharedTensor] | None = None,
) -> Snapshot:
    """Takes a snapshot of this worker; variables are read and held, not copied.

    Args:
        model: The model in training.
        callbacks: All callbacks whose state belongs to training.
        position: Where training is.
        topics: Further state: random states, logs, progress.
        arrays: Those that `topics` refer to.
    """
    found = variables.variable_set(model)
    tensors: dict[str, SharedTensor] = {
        f"{VARIABLE}/{label}": held for label, held in zip(found.labels, found.hold(), strict=True)
    }
    callback_state, callback_arrays = capture_callbacks(callbacks)
    tensors.update(callback_arrays)
    tensors.update(arrays or {})
    state: dict[str, JSON] = {CALLBACK + name: value for name, value in callback_state.items()}
    state["metric_variables"] = metric_names(model, found.named)
    state.update(topics)
    return Snapshot(position, tensors, state)


def jsonable_logs(logs: Mapping[str, Any], tensors: dict[str, SharedTensor]) -> JSON:
    """Logs of a step as JSON: tensors become numbers or, with axes, arrays, which are put into `tensors`."""
    return to_json(_plain_logs(logs), "logs", tensors)


def apply_variables(model: Any, saved: WorkerState, cluster: Cluster, *, leave: Collection[int] = ()) -> list[Finding]:
    """Assigns every component of every variable, locally.

    Under another number of replicas than the backup was made with, mirrored values stay exact and others are
    merged, see `redistribute`. Layers are finished as Keras' own loading does it.

    Args:
        model: The model in training.
        saved: The backup.
        cluster: This worker's place.
        leave: Keys of variables that are right already.

    Returns:
        What could not be restored exactly.

    Raises:
        BackupMismatchError: The backup is of another model; nothing was assigned.
    """
    if tensor_name(variables.GLOBAL_SEED_GENERATOR, 0) in saved.tensors:
        variables.create_global_seed_generator()
    current = variables.variable_set(model).named
    matched, notes = match_variables(current, saved, set(metric_names(model, current)), _never_applied(model, current))
    _assign(current, matched, saved, cluster, leave)
    model_parts.finalize(model)
    return notes


def assign(current: Mapping[str, Any], partners: Mapping[str, str], saved: WorkerState, cluster: Cluster) -> None:
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
    saved: WorkerState,
    cluster: Cluster,
    leave: Collection[int] = (),
) -> None:
    for name, values in matched.items():
        components = variables.components(current[name])
        count = len(components)
        if saved.other_workers or len(values) != count:
            values = redistribute(values, variables.aggregation(current[name]), count * cluster.num_workers)
            values = values[cluster.worker_index * count :][:count]
        for component, value in zip(components, values, strict=True):
            if variables.key(component) not in leave:
                variables.assign(component, value)


def apply_callbacks(callbacks: Iterable[Any], saved: WorkerState) -> list[Finding]:
    """Gives all callbacks their state back; returns what did not match."""
    state = {topic.removeprefix(CALLBACK): v for topic, v in saved.state.items() if topic.startswith(CALLBACK)}
    return restore_callbacks(callbacks, state, saved.tensors)


def saved_variables(saved: WorkerState) -> list[str]:
    """Returns the names of all variables that Keras lists in a backup."""
    return list(stored_components(saved.tensors))


def match_variables(
    current: Mapping[str, Any], saved: WorkerState, metrics: set[str], fresh: Collection[str] = ()
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
    if variables.GLOBAL_SEED_GENERATOR not in stored:  # its first use was still to come: its initial state is right
        current = {name: v for name, v in current.items() if name != variables.GLOBAL_SEED_GENERATOR}
    metrics = metrics | set(saved.state["metric_variables"])
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


def _of_all_workers(saved: WorkerState) -> dict[str, list[np.ndarray[Any, Any]]]:
    stored = stored_components(saved.tensors)
    for tensors in saved.other_workers:
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
