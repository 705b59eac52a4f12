"""ModelCheckpoint: Keras' decisions, written by the chief alone, atomically, to any store."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from keras_dist_callbacks._compat.graphs import missing_in_files_of_step
from keras_dist_callbacks._compat.multi_worker import is_multi_worker
from keras_dist_callbacks._compat.running_fit import find_fit, still_runs
from keras_dist_callbacks._compat.saving import ModelCheckpointPolicy, not_reported
from keras_dist_callbacks._compat.variables import arrays_of, steps_trained
from keras_dist_callbacks.backups import finite
from keras_dist_callbacks.backups.record_io import Generation, Sequence, Token
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.base import static, validation
from keras_dist_callbacks.base.errors import ConfigError, PeerLostError, StorageError
from keras_dist_callbacks.base.terminal import first_few, is_shown, warn
from keras_dist_callbacks.base.validation import number_of
from keras_dist_callbacks.callbacks.checkpoint_writer import CheckpointWriter, SavedFile, latest_best
from keras_dist_callbacks.callbacks.rebuild_on_copy import RebuiltOnCopy
from keras_dist_callbacks.callbacks.reported_names import ReportedNames
from keras_dist_callbacks.callbacks.write_policy import Writers, agree_on_writers
from keras_dist_callbacks.checkpoints import files, retention, taken_back
from keras_dist_callbacks.checkpoints.record import CheckpointRecord
from keras_dist_callbacks.checkpoints.template import example_name, names_in, require_distinct_names
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.strategy import enable_for_cluster
from keras_dist_callbacks.options import WriteOptions, explains_arguments, group_of, open_to_write
from keras_dist_callbacks.run.engine.writer import Owner
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.redaction import redact, reject_credentials
from keras_dist_callbacks.storage.spelling import require_plain

_TAG = "ModelCheckpoint"
_NO_TOKEN = "0" * 12
_Order = tuple[int, int]
_SAVE_FREQ = Literal["epoch"] | number_of("batches", 1)
_THRESHOLD = "a number, or None"
_FILE_NAME = "give it a file name, such as ckpt-{epoch:04d}.keras"


class _Found(msgspec.Struct):
    """What earlier runs left in the directory, as the writing worker reports it to the others."""

    generation: Generation = 1
    run_token: Token = _NO_TOKEN
    best: CheckpointRecord | None = None


class _State(msgspec.Struct):
    """What a backup keeps, see `get_state`; refused where it is of another kind."""

    best: float | None
    counters: tuple[int, int | None]
    last_saved: tuple[Generation, Sequence] | None


@explains_arguments
class ModelCheckpoint(RebuiltOnCopy, ModelCheckpointPolicy):
    """Saves the model or its weights as training goes, like `keras.callbacks.ModelCheckpoint`.

    Every argument of Keras keeps its meaning. Different from Keras: only the chief of a cluster writes; a file is
    replaced atomically, in the background, to a local path or any URL that fsspec knows; each file contains a record
    with its digest, order, epoch and step, by which `latest_checkpoint` and `make_or_restore_model` find the newest
    intact file. Keras and h5py load the files as any others; a file may be copied, moved and renamed.

    Of two jobs with one `filepath`, the older one ends with a `FencedError` that names the newer one, before their
    files mix; several callbacks of one job may share a directory.

    A file that the store does not take is a warning, and is tried again at the end of each epoch until a newer one
    takes its place; too many in a row end training. The newest one is in place when `fit()` returns, or `fit()` ends
    with the reason, on every worker. Then a note for `SidecarEvaluator` says that training has ended: a hidden file
    next to the directory, or in it where the parent cannot be written. An interrupted fit leaves no note.

    With `max_to_keep`, `keep_best` or `keep_every`, a file stays if one of them names it. What none of them would keep
    is not written: `keep_every=5` alone saves every fifth epoch, `keep_best=3` alone what is among the best three. The
    rules look at the files in the directory, so a restart forgets none; files of an earlier training there count too:
    give each training a directory of its own. A file is deleted after a newer one is in place, if it was made from this
    `filepath` and was not renamed; copies and files of other runs stay, and so does the newest intact file.

    With `BackupAndRestore` in the same `fit()`, `best` and the counters survive a restart. After
    `make_or_restore_model` without a backup, `best` is that of the newest file saved by this callback. A backup holds
    as `best` what was in place when the epoch before ended; a better file that was published since is found again.

    Args:
        filepath: Where to save: a path or URL that ends in `.keras`, or in `.weights.h5` with
            `save_weights_only=True`. Its last part may contain Keras' placeholders, such as `{epoch:04d}`,
            `{batch}` (of a number as `save_freq`) or `{val_loss:.3f}`; the directory may not.
        monitor: Name of the quantity to watch. Of a name that no metric has, a warning after the first step names the
            closest one, because callbacks may add it to the logs; it is an error after the first epoch, or the first
            one with validation, unless such a callback is there. So is a name in `filepath`. Defaults to `"val_loss"`.
        verbose: 1 prints what is saved, on the chief, and shows a bar on a terminal while an upload lasts for more than
            some seconds. Defaults to 0.
        save_best_only: Whether to save only if `monitor` is better than ever before. Where it has no value, nothing is
            saved, with a warning; a first value that is NaN counts as none. Defaults to False.
        save_weights_only: Whether to save weights and optimizer state without the architecture. Defaults to
            False.
        mode: `"auto"`, `"min"` or `"max"`. Defaults to `"auto"`.
        save_freq: `"epoch"`, or a number of batches. Defaults to `"epoch"`.
        initial_value_threshold: What the first value has to be better than; infinities are allowed. Defaults to None.
        max_to_keep: Keep that many of the newest files. Defaults to None: keep all, or with another rule what that
            one names.
        keep_best: Keep that many files with the best values of `monitor`, by `mode`. Of equal values the earlier one is
            better; a file without a finite value is never among the best. Defaults to None.
        keep_every: Keep the first file at or after the ends of the epochs `keep_every`, `2 * keep_every`, ... Defaults
            to None.
        start_from_epoch: Save nothing in so many epochs at the beginning, as in `keras.callbacks.EarlyStopping`.
            Defaults to 0.
        storage_options: Passed to the fsspec file system (credentials, endpoint, ...).
        write_options: Retries, `fsync`, the rate of uploads, and how many files may fail in a row. Defaults to
            `WriteOptions()`.
        write_on: `"chief"`, or `"all"` workers, each to a `filepath` of its own: then each keeps its own `best`. Under
            MultiWorkerMirroredStrategy the models are the same. Defaults to `"chief"`.

    Raises:
        ConfigError: An argument is wrong, several files are to be kept but the template may give two of them one name,
            or the protocol of `filepath` is unknown or needs a package that is not installed. In `fit()`: no metric has
            the name in `monitor` or in a placeholder.
        CompatError: The installed Keras is not supported.

    Example:
        ```python
        saving = kdc.ModelCheckpoint(
            "checkpoints/ckpt-{epoch:04d}.keras", monitor="val_loss", max_to_keep=3, keep_best=2, keep_every=10
        )
        model.fit(x, y, epochs=30, validation_data=(x, y), callbacks=[saving])
        model = keras.models.load_model(saving.best_path)
        ```
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: Literal["auto", "min", "max"] = "auto",
        save_freq: Literal["epoch"] | int = "epoch",
        initial_value_threshold: float | None = None,
        *,
        max_to_keep: int | None = None,
        keep_best: int | None = None,
        keep_every: int | None = None,
        start_from_epoch: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        write_options: WriteOptions | None = None,
        write_on: Writers = "chief",
    ) -> None:
        enable_for_cluster()
        validation.check("write_on", write_on, Writers)
        path = validation.path("filepath", filepath, f"filepath='' names a directory; {_FILE_NAME}")
        reject_credentials(path)
        save_weights_only = validation.check("save_weights_only", save_weights_only, bool)
        directory, template = files.split_filepath(path)
        _check_template(path, directory, template, save_weights_only)
        threshold = validation.check("initial_value_threshold", initial_value_threshold, float | None, _THRESHOLD)
        if threshold is not None and math.isnan(threshold):
            raise validation.invalid_argument("initial_value_threshold", threshold, _THRESHOLD)
        self._rules = Rules(
            validation.check("max_to_keep", max_to_keep, number_of("files", 1) | None),
            validation.check("keep_best", keep_best, number_of("files", 1) | None),
            validation.check("keep_every", keep_every, number_of("epochs", 1) | None),
        )
        # checked here: Keras itself would find out in the middle of training, or never
        super().__init__(
            redact(path),
            monitor=validation.check("monitor", monitor, validation.Text, "the name of a quantity, such as 'val_loss'"),
            verbose=validation.verbosity("verbose", verbose),
            save_best_only=validation.check("save_best_only", save_best_only, bool),
            save_weights_only=save_weights_only,
            # Keras warns of others and uses 'auto'
            mode=validation.check("mode", mode, validation.Text, "'auto', 'min' or 'max'"),
            save_freq=validation.check("Unrecognized save_freq: it", save_freq, _SAVE_FREQ),
            initial_value_threshold=threshold,
        )
        self.max_to_keep, self.keep_best = self._rules.max_to_keep, self._rules.keep_best
        self.keep_every = keep_every
        self.start_from_epoch = validation.check("start_from_epoch", start_from_epoch, number_of("epochs"))
        self._needs_value = self.save_best_only or self._rules.keep_best_only
        write = group_of("write_options", write_options, WriteOptions)
        self._storage = open_to_write(directory.format(), storage_options, write)
        has_batch = save_freq != "epoch"
        self._storage.require_name(example_name(template, redact(path), has_batch=has_batch))
        if self._rules.keep_several:
            require_distinct_names(template, redact(path), has_batch=has_batch)
        self._template, self._write_on, self._writes = template, write_on, True
        self._writer = CheckpointWriter(self._storage, template, write.max_failed_saves)
        self._cluster = Cluster()
        self._found = _Found()
        self._has_named_missing = self._has_skipped = self._is_resumed = False
        self._back_to: taken_back.Place | None = None  # where training was rolled back to
        self._last_saved: _Order | None = None  # the newest file that was handed over
        self._in_place: tuple[float | None, _Order | None] = (None, None)  # the best and the last that all know of
        self._pending: dict[_Order, float | None] = {}  # what `best` is if that file gets in place, from old to new
        self._names = ReportedNames(_TAG, {}, None, of_batches=False, warns=False)  # until training begins

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Probes the directory and finds what earlier runs left there, on the workers that write.

        Raises:
            ConfigError: TF_CONFIG names several workers, but the model was made for one; or with `write_on="all"` two
                workers have the same `filepath`.
            StorageError: The directory cannot be used; raised on every worker.
        """
        super().on_train_begin(logs)
        self._cluster = cluster = Cluster.detect()
        cluster.require_connection(self.model.distribute_strategy)
        self._writes = agree_on_writers(
            cluster, "ModelCheckpoint", self._write_on, self._storage.display(self._template)
        )
        self._reports = self._writes
        self._names = self._compare_names()
        found = cluster.agree(lambda: self._begin() if self._writes else _Found(), _TAG)
        self._found = validation.convert(self._of_writer(msgspec.to_builtins(found), _Found), _Found)
        self._pending.clear()
        self._in_place, self._has_skipped = (self.best, None), False
        restored = static.attribute(self.model, "_kdc_restored_from")
        self._is_resumed = isinstance(restored, Restored) and self._is_in_directory(restored.path)
        if self._is_resumed:
            self._take_published_best((0, 0))

    def _begin(self) -> _Found:
        own = self._writer.begin(Owner(still_runs(self.model)), self._back_to)
        self._back_to = None
        best = latest_best(self._storage, own, self.monitor) if self.save_best_only else None
        return _Found(self._writer.generation, self._writer.token, best)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if `save_freq` batches have passed; a single worker raises what an earlier write ended with."""
        if self._cluster.num_workers == 1:  # several end together, at the end of the epoch
            self._agree(self._writer.report)
        self._names.after_batch(logs or {})
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Learns what has become of the files so far, and saves if it is due; raises what a write ended with."""
        self._agree(self._writer.report)
        self._learn_outcome()
        self._names.after_epoch(epoch, logs or {})
        failed = self._writer.unpublished
        super().on_epoch_end(epoch, logs)
        if failed is not None and self._writer.unpublished is failed:
            self._writer.submit(failed)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits until all files are in place, and notes the end of training; raises what a write ended with."""
        super().on_train_end(logs)
        error = self._agree(lambda: self._writer.finish() if self._writes else None)
        self._learn_outcome()
        self._agree(lambda: self._conclude(error))
        with contextlib.suppress(PeerLostError):  # everything is done: a worker that is lost now may have ended
            self._cluster.leave(_TAG)

    def _agree(self, action: Callable[[], Any]) -> Any:
        """Runs something on each worker; where it fails on one, all raise, and what is not in place is not the best."""
        try:
            return self._cluster.agree(action, _TAG)
        except Exception:
            if self._pending:
                self.best, self._last_saved = self._in_place
                self._pending.clear()
            raise

    def _conclude(self, error: StorageError | None) -> None:
        if error is not None:
            raise error
        if not self._writes:
            return
        has_trained = self.monitor_op is not None  # else it is not known which values are better
        self._writer.conclude(self._complete_rules() if has_trained else None)
        if self._has_skipped and not self._writer.has_written and not self._is_resumed:
            warn(
                "ModelCheckpoint has saved nothing in this fit(), because no rule would keep it. Files of earlier "
                f"trainings count too ('kdc ls' shows those in {self._storage.display()}): give each training a "
                "directory of its own"
            )

    def _of_writer(self, value: Any, kind: Any) -> Any:
        """The value of the worker that writes for this one."""
        return self._cluster.broadcast(value, _TAG, kind=kind) if self._write_on == "chief" else value

    def _learn_outcome(self) -> None:
        """Every worker learns which file is in place; the best value of a newer one is still pending."""
        last = self._of_writer(self._writer.published if self._writes else self._last_saved, _Order | None)
        if last is None:
            return
        order = (int(last[0]), int(last[1]))
        if order in self._pending:
            self._in_place = self._pending[order], order
        self._pending = {newer: best for newer, best in self._pending.items() if newer > order}

    @property
    def best_path(self) -> str | None:
        """The file with the best value of `monitor` among those of this `filepath` that are in the directory now.

        Its content is not read; `kdc.best_checkpoint` reads it. None if no file has a finite value.

        Raises:
            StorageError: The store cannot be read.
        """
        listing = files.find(self._storage)
        own = files.own(listing, self._template, files.run_token(listing, self._template))
        mode = own[-1].record.mode if own else None
        best = retention.best_first(own, self.monitor, mode) if mode else []
        return self._storage.display(best[0].name) if best else None

    def get_state(self) -> dict[str, Any]:
        """Returns what a backup keeps: the best value, the counters and the order of the last file.

        Of files that may not be in place yet it keeps nothing: those that are, `set_state` finds.
        """
        best, last = self._in_place if self._pending else (self.best, self._last_saved)
        return {
            "best": None if best is None else float(best),
            "counters": self._counters,
            "last_saved": None if last is None else list(last),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes back what `get_state` returned.

        A file published after that backup was made holds a better value than the backup knows: it becomes
        `best`, so that a worse model does not replace it.
        """
        saved: _State = validation.convert(state, _State)
        self.best = self._threshold if saved.best is None else saved.best
        self._counters = list(saved.counters)
        generation, sequence = saved.last_saved or (0, 0)
        self._last_saved = (generation, sequence) if generation else None
        self._take_published_best((generation, sequence))
        self._in_place, self._is_resumed = (self.best, self._last_saved), True
        self._pending.clear()

    def _why_unnamed(self, epoch: int, logs: dict[str, Any]) -> str | None:
        """Returns why no file can be named in this epoch, though in a later one; raises where that is never."""
        missing = next((name for name in names_in(self._template) if name not in logs), None)
        if missing is not None and not self._names.comes_later(missing, epoch):
            raise self._names.error(missing, logs)
        return None if missing is None else f"{not_reported(missing, logs)}, and it is in the filepath"

    def _compare_names(self) -> ReportedNames:
        used = {self.monitor: "monitor"} if self.save_best_only or self.keep_best else {}
        used = {**dict.fromkeys(names_in(self._template), "filepath"), **used}
        is_epoch = self.save_freq == "epoch"
        return ReportedNames(_TAG, used, find_fit(self.model), of_batches=not is_epoch, warns=self._reports)

    def _wants(self, filepath: str, epoch: int, batch: int | None, logs: dict[str, Any]) -> bool:
        """Whether a rule would keep the file: the worker that writes decides, the others follow."""
        if self._rules.keep_newest:
            return True
        new = self._record_of(filepath, epoch, batch, logs)
        wanted = self._agree(lambda: self._writes and self._writer.is_worth_writing(new))
        wanted = bool(self._of_writer(wanted, bool))
        self._has_skipped |= not wanted
        return wanted

    def _write(self, filepath: str, epoch: int, batch: int | None, logs: dict[str, Any]) -> None:
        """Serialises the model to a temporary file and hands it to the queue, on a worker that writes."""
        record = self._record_of(filepath, epoch, batch, logs)
        self._last_saved, self._pending[record.order] = record.order, self.best
        if not self._writes:
            return
        if not self._has_named_missing:
            self._has_named_missing = True
            self._name_missing()
        self._writer.make_room()
        directory = temporary.make_directory("checkpoint")
        try:
            with temporary.writing(f"the file for {self._storage.display(record.published_name)}", within=directory):
                self._serialise(directory / record.published_name)
            found = finite.not_finite(arrays_of(self.model), whole=True)
            record = dataclasses.replace(record, finite=not found)
        except BaseException:
            shutil.rmtree(directory)
            raise
        what = f"saving {self._storage.display(record.published_name)}"
        self._writer.submit(SavedFile(directory, record, what, is_shown(self.verbose)))

    def _record_of(self, filepath: str, epoch: int, batch: int | None, logs: dict[str, Any]) -> CheckpointRecord:
        rules = self._complete_rules()
        return CheckpointRecord(
            template=self._template,
            published_name=files.split_filepath(filepath)[1],
            run_token=self._found.run_token,
            generation=self._found.generation,
            sequence=files.next_sequence(),
            epoch=epoch + 1 if batch is None else epoch,
            step=steps_trained(self.model) if self._writes else 0,
            monitor=self.monitor,
            value=_scalar(logs.get(self.monitor)),
            best_only=self.save_best_only,
            mode=rules.mode,
            max_to_keep=rules.max_to_keep,
            keep_best=rules.keep_best,
            keep_every=self.keep_every,
        )

    def _complete_rules(self) -> Rules:
        return dataclasses.replace(self._rules, monitor=self.monitor, mode=self._better)

    def _name_missing(self) -> None:
        if is_multi_worker(self.model.distribute_strategy):
            return  # a look at a metric's variable may read it on all workers, of which this one may be alone here
        names = missing_in_files_of_step(self.model)
        if names:
            warn(
                f"the files of ModelCheckpoint lack variables that training uses ({', '.join(first_few(names))}): "
                "Keras does not write them. BackupAndRestore restores them; make_or_restore_model and "
                "SidecarEvaluator cannot. Make them with add_weight() of a layer, or make the layer an attribute "
                "without an underscore"
            )

    def _serialise(self, target: Path) -> None:
        if self.save_weights_only:
            self.model.save_weights(target)
        else:
            self.model.save(target)

    def _is_in_directory(self, path: str) -> bool:
        directory = files.split_filepath(path)[0]
        if self._storage.is_local:
            return str(Path(directory).absolute()) == self._storage.root
        return directory == self._storage.display()

    def _take_published_best(self, known: tuple[int, int]) -> None:
        best = self._found.best
        if best is not None and best.order > known:
            self.best = best.value
            self._last_saved = best.order


def note_rollback(callbacks: Iterable[Any], position: Position | None) -> None:
    """Before `on_train_begin`: training was rolled back.

    The files that were saved after that move to `rolled-back/` then: none of them is the newest or the best.

    Args:
        callbacks: Those of a fit; what is no ModelCheckpoint is left alone.
        position: Where it was rolled back to; None: it begins again.
    """
    for saving in callbacks:
        if isinstance(saving, ModelCheckpoint):
            saving._back_to = taken_back.place_of(position)


def _check_template(path: str, directory: str, template: str, weights_only: bool) -> None:
    shown = redact(path)
    require_plain(template, shown)
    if not template:
        raise ConfigError(f"filepath={shown!r} names a directory; {_FILE_NAME}")
    if weights_only and not template.endswith(".weights.h5"):
        raise ConfigError(f"with save_weights_only=True the filepath must end in .weights.h5, got {shown!r}")
    if not weights_only and not template.endswith(".keras"):
        advice = "; add save_weights_only=True" if template.endswith(".weights.h5") else ""
        raise ConfigError(f"the filepath must end in .keras for complete models, got {shown!r}{advice}")
    try:
        in_directory = [field for _, field, _, _ in string.Formatter().parse(directory) if field is not None]
        list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"filepath={shown!r} is not a valid template: {error}") from error
    if in_directory:
        name = in_directory[0] if in_directory[0] in shown else "..."
        raise ConfigError(
            f"filepath={shown!r} has the placeholder {{{name}}} in its directory; put it into the file name: all "
            "checkpoints of a run must be in one directory, so that the newest can be found"
        )


def _scalar(value: Any) -> float | None:
    return None if value is None or np.ndim(value) else float(value)
