"""`load_backup`: what a backup holds, for those who only read it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from keras_dist_callbacks._compat import building, keras_in_use, model_parts, multi_worker, variables
from keras_dist_callbacks.backups import select_backup
from keras_dist_callbacks.backups.snapshot import VARIABLES, WorkerState, by_path
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import BackupMismatchError
from keras_dist_callbacks.base.terminal import first_few, warn
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.options import explains_arguments
from keras_dist_callbacks.state import step_variables as captured_variables
from keras_dist_callbacks.state import variables as capture
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage

if TYPE_CHECKING:
    import keras

_M = TypeVar("_M", bound="keras.Model")
_TAG = "load_backup"


@overload
def load_backup(
    backup_dir: str | os.PathLike[str],
    model: None = None,
    commit: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
) -> dict[str, np.ndarray[Any, Any]]: ...


@overload
def load_backup(
    backup_dir: str | os.PathLike[str],
    model: _M,
    commit: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
) -> _M: ...


@explains_arguments
def load_backup(
    backup_dir: str | os.PathLike[str],
    model: Any = None,
    commit: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
) -> Any:
    """Reads a backup of `BackupAndRestore` or `Checkpointer`, also while its run continues.

    Nothing is claimed, written or deleted: the run that owns the directory does not notice. Every tensor is compared
    with its hash.

    Args:
        backup_dir: The directory: a path or any fsspec URL.
        model: A built Keras model of the same architecture, under any strategy or none. Its weights are set; its
            optimizer's variables and the metrics that it has too, where they are those of the backup. Under
            `MultiWorkerMirroredStrategy` every worker makes the call, and all get the same backup.
        commit: Which backup, as `kdc ls` shows it, such as `"2-14"`. Defaults to the newest that is intact.
        storage_options: Passed to the fsspec file system.
        retry: How long a request may take, and one that fails is tried again. Defaults to `RetryPolicy()`.

    Returns:
        `model`, or without one a dict of read-only numpy arrays by the variables' paths: weights, optimizer, metrics
        and seeds of the chief. Where replicas have different values, as metrics do, `path@0`, `path@1`, ...

    Raises:
        ConfigError: An argument is wrong, the model is not built, or the backup does not exist.
        BackupMismatchError: The weights are those of another model; nothing was changed.
        DamagedBackupError: The backup is damaged, or no backup is intact.
        StorageError: The store cannot be read.

    Example:
        ```python
        weights = kdc.load_backup("gs://bucket/run1/backup")
        model = kdc.load_backup("gs://bucket/run1/backup", build_model(), commit="2-14")
        ```
    """
    if commit is not None and not isinstance(commit, str):
        raise validation.invalid_argument("commit", commit, "the name of a backup, such as '2-14', or None")
    place = validation.path("backup_dir", backup_dir)
    store = BackupStore(Storage.open(place, storage_options, retry=retry))
    if model is None:
        return by_path(select_backup.find_backup(store, commit, workers=0)[1].of(VARIABLES).mine.tensors)
    require_built(model)
    # A model of this process alone is read for alone.
    cluster = Cluster.detect() if multi_worker.is_multi_worker(model.distribute_strategy) else Cluster()
    chosen = cluster.on_chief(lambda: select_backup.find_backup(store, commit, cluster.num_workers), _TAG)
    name = cluster.broadcast(None if chosen is None else chosen[0].name, _TAG, kind=str)

    def read_and_set() -> list[str]:
        _, saved = chosen or select_backup.find_backup(store, name, cluster.num_workers, cluster.worker_index)
        with model.distribute_strategy.scope():
            return apply(model, saved, cluster)

    left = cluster.agree(read_and_set, _TAG)
    if left and cluster.is_chief:
        warn(missing_in_words(left))
    return model


def missing_in_words(left: Sequence[str]) -> str:
    """Says which variables of a backup `apply` has not set."""
    return (
        f"not set: variables that the train step uses, which the backup holds and the model's objects do not have or "
        f"have several times under the same name, type and shape ({', '.join(first_few(left))}). fit() with "
        "BackupAndRestore restores them"
    )


def apply(model: Any, backup: WorkerState, cluster: Cluster) -> list[str]:
    """Sets what a model has of what a backup holds: its weights, and optimizer and metrics if they are the same ones.

    Returns:
        The names of variables in the backup that Keras does not list and that are not set.

    Raises:
        BackupMismatchError: The weights are those of another model; nothing was changed.
    """
    optimizer, saved, of_step = getattr(model, "optimizer", None), backup.of(VARIABLES), backup.of("step")
    names, saved_metrics = capture.saved_names(saved), set(saved.mine.state["metrics"])
    if optimizer is not None:  # its variables must exist before they can be set
        building.build_optimizers_like(model, names, saved_metrics, captured_variables.names_of_step(of_step))
    named = variables.variable_set(model).named
    weights = {id(variable) for variable in model.variables}
    slots = set() if optimizer is None else {id(variable) for variable in optimizer.variables} - weights
    metrics = {id(named[name]) for name in capture.metric_names(model, named)} - weights - slots

    def ours(those: set[int]) -> list[str]:
        return [n for n, variable in named.items() if id(variable) in those and n != variables.GLOBAL_SEED_GENERATOR]

    partners = _partners_of_weights(ours(weights), names)
    # A backup says which of the other variables are metrics; the rest is the optimizer's. Each of the two is set as a
    # whole, where it is the same: another optimizer, or another list of metrics, begins as it is.
    rest = [name for name in names if name not in {*partners.values(), variables.GLOBAL_SEED_GENERATOR}]
    partners |= capture.match_names(ours(slots), [name for name in rest if name not in saved_metrics]) or {}
    partners |= capture.match_names(ours(metrics), [name for name in rest if name in saved_metrics]) or {}
    capture.assign(named, partners, saved, cluster)
    left = captured_variables.set_owned(model, of_step)
    model_parts.finalize(model)
    return left


def _partners_of_weights(ours: Sequence[str], saved: Sequence[str]) -> dict[str, str]:
    """The name of each of a model's weights in a backup, where weights are what is named first."""
    first = saved[: len(ours)]
    same_names = [name for name in ours if name in saved]  # also where the backup's model has more of them
    for theirs in (first, same_names, _ordered_like(ours, first)):
        partners = capture.match_names(ours, theirs)
        if partners is not None:
            return partners
    missing = [name for name in ours if name not in saved]
    raise BackupMismatchError(
        f"this model does not match the backup: {missing[0] if missing else ours[0]} is not in it. The backup is "
        "unchanged: build the model as it was trained, or call load_backup without a model for what it holds"
    )


def _ordered_like(ours: Sequence[str], saved: Sequence[str]) -> list[str]:
    """A backup's names with those of each layer in our order: a quantized layer that is made again has another one."""
    layers: list[dict[str, list[str]]] = [{}, {}]
    for names, found in zip((ours, saved), layers, strict=True):
        for name in names:
            layer, slash, own = name.rpartition("/")
            found.setdefault(layer + slash, []).append(own)
    ordered: list[str] = []
    for own_names, (layer, theirs) in zip(layers[0].values(), layers[1].items(), strict=False):
        ordered += [f"{layer}{name}" for name in (own_names if sorted(own_names) == sorted(theirs) else theirs)]
    return ordered


def require_built(model: Any) -> None:
    """Makes sure that weights have somewhere to go.

    Raises:
        ConfigError: It is not a Keras model, or not built.
    """
    import keras

    keras_in_use.require_model(model)
    validation.instance("model", model, keras.Model, also="None")
    building.require_built(model)
