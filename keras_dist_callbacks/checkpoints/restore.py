"""Starts a run from the newest intact checkpoint, or that of another tool, the same one on every worker."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import xxhash

from keras_dist_callbacks._compat import keras_in_use
from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.retention import Mode
from keras_dist_callbacks.base import static, validation
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError, StorageError
from keras_dist_callbacks.base.terminal import first_few, say, warn
from keras_dist_callbacks.checkpoints import files, foreign, model_config, retention
from keras_dist_callbacks.checkpoints.foreign import ForeignCheckpoint
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.options import explains_arguments
from keras_dist_callbacks.rehearsal.scratch import place_of
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage

_TAG = "make_or_restore_model"
_ADOPTING = "make_or_restore_model, adopting"
_NEW_OPTIMIZER = Finding("new-optimizer").message
_TIMEOUT = 1800.0  # seconds that workers wait while another one downloads

if TYPE_CHECKING:
    import keras

_M = TypeVar("_M", bound="keras.Model")
Load = Callable[[str, Path, str], tuple[Any, list[Finding]]]
"""Makes a model of a kind of file, its local copy and its name for messages; also returns why that is not exact."""


@explains_arguments
def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
) -> str | None:
    """Returns the newest intact checkpoint of a directory that `ModelCheckpoint` wrote.

    Newest is what was saved last, whatever its name or time. The file is read and compared with the record in it; a
    damaged or incomplete one is named in a warning, and the one before it is used.

    Args:
        checkpoint_dir: The directory, or the `filepath` given to `ModelCheckpoint`; then only files made
            from that template count.
        storage_options: Passed to the fsspec file system (credentials, endpoint, ...).
        retry: How long a request may take, and one that fails is tried again. Defaults to `RetryPolicy()`.

    Returns:
        The full path or URL, or None without a checkpoint.

    Raises:
        ConfigError: An argument is wrong, or the protocol is unknown or needs a package that is not installed.
        DamagedBackupError: No checkpoint is intact.
        StorageError: The store cannot be read.
    """
    directory, template = files.split_directory(validation.path("checkpoint_dir", checkpoint_dir))
    directory, storage_options = place_of(directory, storage_options)
    storage = Storage.open(directory, storage_options, retry=retry)
    checkpoint = files.latest_verified(storage, template)
    if checkpoint is None:
        _report_foreign(storage)
    return _path_of(checkpoint, directory)


@explains_arguments
def best_checkpoint(
    checkpoint_dir: str | os.PathLike[str],
    *,
    monitor: str,
    mode: Mode,
    storage_options: Mapping[str, Any] | None = None,
) -> str | None:
    """Returns the intact checkpoint with the best value of a quantity that `ModelCheckpoint` monitored.

    The values are those in the files' own records, whichever run wrote them. Of equal values the earlier one is better.
    The file is read and compared with its record; a damaged one is named in a warning, and the next best is used.

    Args:
        checkpoint_dir: The directory, or the `filepath` given to `ModelCheckpoint`; then only files made
            from that template count.
        monitor: Name of the quantity, as it was given to `ModelCheckpoint`.
        mode: `"min"` or `"max"`: which values are better.
        storage_options: Passed to the fsspec file system (credentials, endpoint, ...).

    Returns:
        The full path or URL, or None if no checkpoint has a finite value.

    Raises:
        ConfigError: An argument is wrong, the protocol is unknown or needs a package that is not installed, or there
            are checkpoints but none of them monitored `monitor`.
        DamagedBackupError: No checkpoint with a value is intact.
        StorageError: The store cannot be read.

    Example:
        ```python
        best = kdc.best_checkpoint("checkpoints", monitor="val_loss", mode="min")
        model = keras.models.load_model(best)
        ```
    """
    directory, template = files.split_directory(validation.path("checkpoint_dir", checkpoint_dir))
    monitor = validation.check("monitor", monitor, validation.Text, "the name of a quantity, such as 'val_loss'")
    mode = validation.check("mode", mode, Mode)
    directory, storage_options = place_of(directory, storage_options)
    storage = Storage.open(directory, storage_options)
    listing = files.find(storage, template)
    monitored = {str(one.record.monitor) for one in listing.checkpoints}
    if monitored and monitor not in monitored:
        raise ConfigError(
            f"no checkpoint in {storage.display()} has monitor={monitor!r}; they have "
            f"{', '.join(map(repr, sorted(monitored)))}"
        )
    candidates = retention.best_first(listing.checkpoints, monitor, mode)
    return _path_of(files.first_intact(storage, candidates, listing.problems), directory)


def _path_of(checkpoint: Checkpoint | None, directory: str) -> str | None:
    if checkpoint is None:
        return None
    return checkpoint.name if directory == "." else f"{directory.rstrip('/')}/{checkpoint.name}"


@explains_arguments
def make_or_restore_model(
    build_fn: Callable[[], _M],
    checkpoint_dir: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    adopt: bool = False,
    weights_only: bool = False,
    verbose: int = 1,
) -> _M:
    """Returns the model of the newest intact checkpoint, or a new one.

    Call it on every worker within the strategy's scope. The chief chooses and verifies; every worker gets
    its own verified copy before any of them loads it, so that all load the same file or all raise. One line
    on the chief says what was loaded. A backup that `BackupAndRestore` finds in `fit()` wins over it.

    Args:
        build_fn: Makes the compiled model; always called. The checkpoint's weights and optimizer variables are loaded
            into it, so the new code is in force. A warning names what differs from a `.keras` checkpoint, with both
            values; a `.weights.h5` file does not hold a model's configuration, so only shapes are compared. A
            learning rate that is a number is an optimizer variable: the checkpoint's is used, and both are printed.
        checkpoint_dir: The directory, or the `filepath` given to `ModelCheckpoint`; then only files made
            from that template count.
        storage_options: Passed to the fsspec file system (credentials, endpoint, ...).
        retry: How long a request may take, and one that fails is tried again. Defaults to `RetryPolicy()`.
        custom_objects: Classes that the checkpoint's compile() configuration names.
        compile: Compile a model that `build_fn` left uncompiled as the checkpoint's was. Defaults to True.
        adopt: Where `ModelCheckpoint` has saved nothing yet, start from what another tool left directly in the
            directory: the checkpoint that was written last of those that load. Known are Keras' `.keras`,
            `.weights.h5` and legacy `.h5` files, Keras' BackupAndRestore (its weights, and the epoch that it was in)
            and `tf.train.Checkpoint` of a Keras 3 model (the model as its root or a part of it, its optimizer within
            it or next to it). They load, but are not known to be intact. Defaults to False.
        weights_only: Load the weights alone: the optimizer is as `build_fn` made it, and may be another one. The
            continuation is "not exact: the optimizer starts from its initial state". Defaults to False.
        verbose: 1 prints what was loaded, on the chief; 0 logs it only. Defaults to 1.

    Returns:
        The model of `build_fn`. No code of the checkpoint is run.

    Raises:
        ConfigError: An argument is wrong, `checkpoint_dir` has an unknown protocol or one whose package is not
            installed, TF_CONFIG names several workers but no strategy joins them, or `build_fn` returns a model that
            is not built or of another Keras than Keras 3 on TensorFlow.
        BackupMismatchError: The state does not fit the model that `build_fn` makes; the message names what
            differs; or with `adopt` none of the checkpoints of other tools loads.
        DamagedBackupError: No checkpoint is intact.
        ClusterError: Another worker cannot read the checkpoint; the message names it.

    Example:
        ```python
        model = kdc.make_or_restore_model(build_model, "checkpoints")
        origin = kdc.restored_from(model)
        saving = kdc.ModelCheckpoint("checkpoints/ckpt-{epoch:04d}.keras", max_to_keep=3)
        model.fit(x, y, epochs=10, initial_epoch=origin.initial_epoch if origin else 0, callbacks=[saving])
        ```
    """
    if hasattr(build_fn, "get_weights"):
        raise ConfigError("build_fn is a model; pass the function that builds the model")
    validation.function("build_fn", build_fn, "a function that returns a model")
    keras_in_use.require_backend()
    build_fn = _of_this_keras(build_fn)
    compile, objects = validation.check("compile", compile, bool), validation.mapping("custom_objects", custom_objects)
    adopt, verbose = validation.check("adopt", adopt, bool), validation.verbosity("verbose", verbose)
    weights_only = validation.check("weights_only", weights_only, bool)
    cluster = _training_cluster()
    directory, template = files.split_directory(validation.path("checkpoint_dir", checkpoint_dir))
    directory, storage_options = place_of(directory, storage_options)
    storage = cluster.agree(lambda: Storage.open(directory, storage_options, retry=retry), _TAG)
    model: _M

    def load(kind: str, path: Path, shown: str) -> tuple[Any, list[Finding]]:
        if kind == "model":
            return _load_model(build_fn, path, shown, objects, compile, weights_only)
        if kind == "weights":
            return _load_weights(build_fn(), path, shown, weights_only)
        return _load_tf_checkpoint(build_fn(), path, weights_only)

    with temporary.directory("restore") as copies:
        checkpoint = _same_on_all(cluster, storage, template, copies, warns=not adopt)
        if checkpoint is None:
            adopted = _restore_latest_loadable(cluster, storage, template, copies, load) if adopt else None
            if adopted is None:
                say(f"no checkpoint in {storage.display()}: starting with a new model", verbose=verbose)
                return build_fn()
            model, found, origin = adopted
            _note_adopted(verbose, storage, model, found, origin, weights_only, warns=cluster.is_chief)
            return model
        path = copies / checkpoint.name
        shown, record = storage.display(checkpoint.name), checkpoint.record
        model, found = load(checkpoint.kind, path, shown)
    from keras_dist_callbacks._compat.variables import missing_in_files

    missing = missing_in_files(model)  # on all workers: that may read a metric's variable on all of them
    if missing and cluster.is_chief:
        warn(missing_in_words(missing))
    if not record.is_finite and cluster.is_chief:
        warn(
            f"{shown} holds weights that are NaN or infinite, and training continues with them. `kdc ls "
            f"{storage.display()}` shows which files do: move those away to continue from an older one"
        )
    _note_origin(model, shown, record.epoch, record.step, found, weights_only, warns=cluster.is_chief)
    how = f"; without BackupAndRestore, give fit() initial_epoch={record.epoch}" if record.epoch else ""
    rates = _rates_in_words(model)
    what = f"not exact: {_NEW_OPTIMIZER}; weights restored" if weights_only else "model restored"
    say(f"{what} from {shown} ({record.epoch} epochs finished, step {record.step}{rates}){how}", verbose=verbose)
    return model


def restored_from(model: Any) -> Restored | None:
    """Returns where `make_or_restore_model` got a model from; None if it is a new one.

    Args:
        model: The model that it returned.

    Example:
        ```python
        model = kdc.make_or_restore_model(build_model, "checkpoints")
        origin = kdc.restored_from(model)
        model.fit(dataset, epochs=10, initial_epoch=origin.initial_epoch if origin else 0)
        ```
    """
    found: Restored | None = static.attribute(model, "_kdc_origin")
    return found


def _note_origin(
    model: Any, path: str, epoch: int, step: int, found: Sequence[Finding], weights_only: bool, *, warns: bool
) -> None:
    """Notes in a model where it is from, and warns of what was found in this file and not in every one."""
    codes = ("checkpoint", "new-optimizer") if weights_only else ("checkpoint",)
    origin = Restored(path, epoch, step, (*map(Finding, codes), *found))
    model._kdc_origin = model._kdc_restored_from = origin
    if found and warns:
        warn(f"not exact: {path}: {'; '.join(findings.sentences(found))}")


def _training_cluster() -> Cluster:
    import tensorflow as tf

    cluster = Cluster.detect()
    if cluster.is_evaluator:
        return Cluster()  # it belongs to no cluster of TensorFlow's and decides alone
    cluster.require_connection(tf.distribute.get_strategy())
    return cluster


def _of_this_keras(build_fn: Callable[[], _M]) -> Callable[[], _M]:
    def build() -> _M:
        model = build_fn()
        keras_in_use.require_model(model)
        return model

    return build


def _restore_latest_loadable(
    cluster: Cluster, storage: Storage, template: str | None, into: Path, load: Load
) -> tuple[Any, list[Finding], ForeignCheckpoint] | None:
    """Loads the newest foreign checkpoint on every worker; one that does not load anywhere is skipped.

    Args:
        cluster: The workers; all call this.
        storage: Where they are.
        template: As in `files.find`.
        into: A local directory for copies.
        load: For the kind `"tf"` it gets the path without `.index`.

    Returns:
        The model, why it is not exact, and where it is from; None if no other tool left anything.
    """
    present = (
        cluster.on_chief(
            lambda: foreign.newest_first(storage, files.find(storage, template).foreign), _ADOPTING, _TIMEOUT
        )
        or []
    )
    reasons: list[str] = []
    for fields in cluster.broadcast([vars(checkpoint) for checkpoint in present], _ADOPTING, kind=list[dict[str, Any]]):
        checkpoint = ForeignCheckpoint(**{**fields, "files": tuple(fields["files"])})
        _copy(cluster, storage, checkpoint.files, into)
        model, reason = None, None
        found: list[Finding] = []
        try:
            model, found = load(checkpoint.kind, into / checkpoint.name, checkpoint.name)
        except (ConfigError, StorageError):
            raise  # build_fn's model or the temporary directory is at fault, not the file
        except Exception as error:  # noqa: BLE001 - Keras' and TensorFlow's readers have errors of many types; all are reported
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        # It is used where all workers could load it, else the reason of the first one that could not is given.
        answers = cluster.gather(reason, _ADOPTING, _TIMEOUT, kind=str | None)
        reason = next((answer for answer in answers if answer is not None), None)
        if reason is not None:
            reasons.append(f"{storage.display(checkpoint.name)}: {reason}")
            continue
        if reasons and cluster.is_chief:
            warn(
                f"newer checkpoints in {storage.display()} could not be loaded and are skipped: {'; '.join(reasons)}",
                UserWarning,
            )
        return model, found, checkpoint
    if reasons:
        what = f"no checkpoint of another tool in {storage.display()} loads: {'; '.join(reasons)}"
        raise BackupMismatchError(f"{what}. Fix build_fn, or remove adopt=True to start with a new model")
    return None


def _copy(cluster: Cluster, storage: Storage, files: Sequence[str], into: Path) -> None:
    def download() -> dict[str, str]:
        digests = {}
        for name in files:
            storage.download(name, into / name)
            with open(into / name, "rb") as file:
                digests[name] = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        return digests

    cluster.require_same(cluster.agree(download, _ADOPTING, _TIMEOUT), _ADOPTING, _TIMEOUT)


def _note_adopted(
    verbose: int,
    storage: Storage,
    model: Any,
    found: list[Finding],
    adopted: ForeignCheckpoint,
    weights_only: bool,
    *,
    warns: bool,
) -> None:
    from keras_dist_callbacks._compat.variables import steps_trained

    shown, step = storage.display(adopted.name), steps_trained(model)
    _note_origin(model, shown, adopted.epoch, step, found, weights_only, warns=warns)
    where = f"{adopted.epoch} epochs finished" if adopted.epoch else "its epoch is not known"
    how = f"give fit() initial_epoch={adopted.epoch or '...'}"
    what = f"not exact: {_NEW_OPTIMIZER}; weights" if weights_only else "model"
    say(f"{what} adopted from {shown}, which another tool wrote ({where}, step {step}); {how}", verbose=verbose)


def _same_on_all(
    cluster: Cluster, storage: Storage, template: str | None, into: Path, *, warns: bool
) -> Checkpoint | None:
    """Copies the newest intact checkpoint, which the chief chooses, to each worker; None without one."""
    chosen = cluster.on_chief(lambda: files.latest_verified(storage, template, into=into), _TAG, _TIMEOUT)
    if chosen is None and cluster.is_chief and warns:
        _report_foreign(storage)
    fields = cluster.broadcast(None if chosen is None else dataclasses.asdict(chosen), _TAG, kind=Checkpoint | None)
    if fields is None:
        return None
    agreed: Checkpoint = validation.convert(fields, Checkpoint)

    def fetch() -> None:
        found = None
        with contextlib.suppress(FileNotFoundError):
            found = files.fetch(storage, agreed.name, into)
        if found != agreed:
            raise BackupMismatchError(
                f"{storage.display(agreed.name)} was replaced or deleted while the workers were loading it: start all "
                "workers again"
            )

    cluster.agree(lambda: None if cluster.is_chief else fetch(), _TAG, _TIMEOUT)
    return agreed


def _load_model(
    build_fn: Callable[[], Any],
    path: Path,
    shown: str,
    custom_objects: Mapping[str, Any],
    compile: bool,
    weights_only: bool,
) -> tuple[Any, list[Finding]]:
    """The model of `build_fn` with the state of a file; a file that is not `.keras` is loaded by Keras alone."""
    from keras_dist_callbacks._compat import building, model_file

    config = model_file.read_config(path)
    if config is None:
        with temporary.writing(f"what Keras unpacks of {shown}", within=path.parent):
            loaded = model_file.load_model(path, custom_objects, compile=compile and not weights_only)
        if not weights_only:
            return loaded, []
        model = build_fn()
        model.set_weights(loaded.get_weights())
        return model, []
    model = build_fn()
    model_file.prepare(model, config, custom_objects, compile=compile)
    building.require_built(model)
    _keep_compiled_rates(model)
    try:
        differ = model_config.differences(config, model_file.config_of(model), compiled=compile)
    except Exception as error:  # noqa: BLE001 - get_config of the user's classes
        differ = [Finding("model-not-compared", detail=(f"{type(error).__name__}: {error}",))]
    return model, _load_state(model, path, shown, weights_only, differ)


def _load_state(
    model: Any, path: Path, shown: str, weights_only: bool, differ: Sequence[Finding] = ()
) -> list[Finding]:
    """Loads a file's state; returns why that is not exact, with what is known to differ."""
    from keras_dist_callbacks._compat import model_file

    try:
        with temporary.writing(f"what Keras unpacks of {shown}", within=path.parent):
            without = model_file.load_state(model, path, weights_only=weights_only)
    except model_file.StateMismatchError as error:
        advice = "Build the model as it was trained"
        if error.is_optimizer_alone:
            advice = (
                "Build and compile the model as it was trained; or take the weights alone, with a new optimizer: "
                "weights_only=True"
            )
        why = "; ".join([str(error), *findings.sentences(differ)])
        raise BackupMismatchError(
            f"the state of {shown} does not fit the model of build_fn: {why}. {advice}"
        ) from error
    return [*(Finding("optimizer-not-in-file", detail=(name,)) for name in without), *differ]


def missing_in_words(missing: Sequence[tuple[str, Any]]) -> str:
    """Says which variables of a model no checkpoint file holds."""
    names = ", ".join(first_few([name for name, _ in missing]))
    return f"checkpoint files hold no values of {names}, which Keras does not write: they stay as the model has them"


def _keep_compiled_rates(model: Any) -> None:
    """Notes the learning rates that the code gives to compile(), before a checkpoint's replace them."""
    from keras_dist_callbacks._compat.model_parts import fixed_rates

    if getattr(model, "optimizer", None) is not None:
        model._kdc_compiled_rates = model.optimizer, fixed_rates(model.optimizer)


def _rates_in_words(model: Any) -> str:
    """Returns which learning rates the checkpoint has replaced: a callback moved them, or the code was edited."""
    from keras_dist_callbacks._compat.model_parts import fixed_rates

    optimizer, compiled = static.attribute(model, "_kdc_compiled_rates", (None, {}))
    loaded = model._kdc_loaded_rates = fixed_rates(optimizer) if compiled else {}
    return "".join(
        f", learning rate {loaded[name]:.6g} as in the checkpoint, not {rate:.6g} as in build_fn"
        for name, rate in compiled.items()
        if loaded.get(name, rate) != rate
    )


def _load_tf_checkpoint(model: Any, path: Path, weights_only: bool) -> tuple[Any, list[Finding]]:
    from keras_dist_callbacks._compat.building import require_built
    from keras_dist_callbacks._compat.model_file import restore_model

    require_built(model)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    kept = optimizer.variables if optimizer is not None and weights_only else []
    initial = [variable.numpy() for variable in kept]
    restore_model(model, str(path))
    for variable, value in zip(kept, initial, strict=True):
        variable.assign(value)  # it is restored with the model that it is a part of
    return model, []


def _load_weights(model: Any, path: Path, shown: str, weights_only: bool) -> tuple[Any, list[Finding]]:
    from keras_dist_callbacks._compat.building import require_built

    require_built(model)
    _keep_compiled_rates(model)
    return model, _load_state(model, path, shown, weights_only)


def _report_foreign(storage: Storage) -> None:
    found = files.find(storage).foreign
    if found:
        warn(files.without_record(storage.display(one.name) for one in found), UserWarning)
