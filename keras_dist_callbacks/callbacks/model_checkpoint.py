"""ModelCheckpoint: Keras' decisions, written by the chief alone, atomically, to any store."""

from __future__ import annotations

import collections
import functools
import math
import os
import shutil
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from keras_dist_callbacks import static, validation
from keras_dist_callbacks._compat.graphs import missing_in_files_of_step
from keras_dist_callbacks._compat.multi_worker import is_multi_worker
from keras_dist_callbacks._compat.running_fit import find_fit, still_runs
from keras_dist_callbacks._compat.saving import ModelCheckpointPolicy, not_reported
from keras_dist_callbacks._compat.variables import steps_trained
from keras_dist_callbacks.backups.record_io import Generation, Sequence, Token
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.callbacks.rebuild_on_copy import RebuiltOnCopy
from keras_dist_callbacks.callbacks.reported_names import ReportedNames
from keras_dist_callbacks.callbacks.write_policy import Writers, agree_on_writers
from keras_dist_callbacks.checkpoints import end_note, files, ownership
from keras_dist_callbacks.checkpoints.record import Checkpoint, Record
from keras_dist_callbacks.checkpoints.template import example_name, names_in
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.strategy import enable_for_cluster
from keras_dist_callbacks.engine.writer import Owner, shared_writer
from keras_dist_callbacks.errors import ConfigError, DamagedBackupError, StorageError
from keras_dist_callbacks.options import WriteOptions, explains_arguments, group_of, open_to_write
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.redaction import redact, reject_credentials
from keras_dist_callbacks.storage.spelling import require_plain
from keras_dist_callbacks.terminal import first_few, is_shown, say, uploads, warn
from keras_dist_callbacks.validation import number_of

_TAG = "ModelCheckpoint"
_NO_TOKEN = "0" * 12
_SAVE_FREQ = Literal["epoch"] | number_of("batches", 1)
_THRESHOLD = "a number, or None"
_FILE_NAME = "give it a file name, such as ckpt-{epoch:04d}.keras"


class _Found(msgspec.Struct):
    """What earlier runs left in the directory, as the writing worker reports it to the others."""

    generation: Generation = 1
    run_token: Token = _NO_TOKEN
    best: Record | None = None


class _State(msgspec.Struct):
    """What a backup keeps, see `get_state`; refused where it is of another kind."""

    best: float | None
    counters: tuple[int, int | None]
    last_saved: tuple[Generation, Sequence] | None


@dataclass(frozen=True)
class _Unpublished:
    """The newest file, where the store has not taken it: it waits on the local disk for another try."""

    directory: Path
    record: Record
    what: str
    shown: bool
    error: StorageError


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
    takes its place. The newest one is in place when `fit()` returns, or `fit()` ends with the reason. Then a note for
    `SidecarEvaluator` says that training has ended: a hidden file next to the directory, or in it where the parent
    cannot be written. An interrupted fit leaves no note.

    With `BackupAndRestore` in the same `fit()`, `best` and the counters survive a restart. After
    `make_or_restore_model` without a backup, `best` is that of the newest file saved by this callback.

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
        max_to_keep: Keep that many files made from this `filepath`, the newest; older ones are deleted once
            a newer one is published. Copies under other names and files of other runs are never deleted. Defaults to
            None: keep all.
        storage_options: Passed to the fsspec file system (credentials, endpoint, ...).
        write_options: Retries, `fsync`, the rate of uploads, and how many files may fail in a row. Defaults to
            `WriteOptions()`.
        write_on: `"chief"`, or `"all"` workers, each to a `filepath` of its own: then each keeps its own `best`. Under
            MultiWorkerMirroredStrategy the models are the same. Defaults to `"chief"`.

    Raises:
        ConfigError: An argument is wrong, or the protocol of `filepath` is unknown or needs a package that
            is not installed. In `fit()`: no metric has the name in `monitor` or in a placeholder.
        CompatError: The installed Keras is not supported.
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
        self.max_to_keep = validation.check("max_to_keep", max_to_keep, number_of("files", 1) | None)
        write = group_of("write_options", write_options, WriteOptions)
        self._storage = open_to_write(directory.format(), storage_options, write)
        self._storage.require_name(example_name(template, redact(path), has_batch=save_freq != "epoch"))
        self._template = template
        self._write_on = write_on
        self._writes = True
        self._generation, self._run_token = 1, _NO_TOKEN
        self._kept: list[Checkpoint] = []
        self._last_saved: tuple[int, int] | None = None
        self._published_best: Record | None = None
        self._has_named_missing = False
        self._names = ReportedNames(_TAG, {}, None, of_batches=False, warns=False)  # until training begins
        self._owner, self._ticket = Owner(), 0
        self._most_failures, self._failures = write.max_failed_saves, 0  # in a row
        self._refused: dict[int, str] = {}  # by the error's id: what the store has not taken
        self._unpublished: _Unpublished | None = None
        self._in_place: tuple[float | None, tuple[int, int] | None] = (None, None)  # the best, and the last, that is
        self._notes: collections.deque[str] = collections.deque()  # what happened in the background

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Probes the directory and finds what earlier runs left there, on the workers that write.

        Raises:
            ConfigError: TF_CONFIG names several workers, but the model was made for one; or with `write_on="all"` two
                workers have the same `filepath`.
            StorageError: The directory cannot be used; raised on every worker.
        """
        super().on_train_begin(logs)
        self._owner = Owner(still_runs(self.model))
        cluster = Cluster.detect()
        cluster.require_connection(self.model.distribute_strategy)
        self._writes = agree_on_writers(
            cluster, "ModelCheckpoint", self._write_on, self._storage.display(self._template)
        )
        self.reports = self._writes
        self._names = self._compare_names()
        found = cluster.agree(lambda: self._prepare() if self._writes else _Found(), _TAG)
        if self._write_on == "chief":
            found = validation.convert(cluster.broadcast(msgspec.to_builtins(found), _TAG, kind=_Found), _Found)
        self._generation, self._run_token, self._published_best = found.generation, found.run_token, found.best
        self._report()
        self._forget_unpublished()  # of a fit() that was interrupted
        self._refused.clear()
        self._failures, self._in_place = 0, (self.best, None)
        restored = static.attribute(self.model, "_kdc_restored_from")
        if isinstance(restored, Restored) and self._is_in_directory(restored.path):
            self._take_published_best((0, 0))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if `save_freq` batches have passed; raises what an earlier write ended with."""
        self._report()
        self._names.after_batch(logs or {})
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves if it is due; raises what an earlier write ended with."""
        self._report()
        self._names.after_epoch(epoch, logs or {})
        failed = self._unpublished
        super().on_epoch_end(epoch, logs)
        if failed is not None and self._unpublished is failed:
            self._try_again(failed)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Waits until all files are in place, and notes the end of training; raises what a write ended with."""
        super().on_train_end(logs)
        shared_writer().wait()
        self._report()
        self._finish()
        self._report()
        if self._writes:
            ownership.check(self._storage, self._template)
            last = self._kept[-1].name if self._kept else None
            end_note.write(self._storage, self._template, self._generation, is_ended=True, last=last)

    def get_state(self) -> dict[str, Any]:
        """Returns what a backup keeps: the best value, the counters and the order of the last file."""
        best, last = (self.best, self._last_saved) if self._unpublished is None else self._in_place
        return {
            "best": None if best is None else float(best),
            "counters": self.counters,
            "last_saved": None if last is None else list(last),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes back what `get_state` returned.

        A file published after that backup was made holds a better value than the backup knows: it becomes
        `best`, so that a worse model does not replace it.
        """
        saved: _State = validation.convert(state, _State)
        self.best = self.threshold if saved.best is None else saved.best
        self.counters = list(saved.counters)
        generation, sequence = saved.last_saved or (0, 0)
        self._last_saved = (generation, sequence) if generation else None
        self._take_published_best((generation, sequence))
        self._in_place = (self.best, self._last_saved)

    def why_unnamed(self, epoch: int, logs: dict[str, Any]) -> str | None:
        """Returns why no file can be named in this epoch, though in a later one; raises where that is never."""
        missing = next((name for name in names_in(self._template) if name not in logs), None)
        if missing is not None and not self._names.comes_later(missing, epoch):
            raise self._names.error(missing, logs)
        return None if missing is None else f"{not_reported(missing, logs)}, and it is in the filepath"

    def _compare_names(self) -> ReportedNames:
        used = {self.monitor: "monitor"} if self.save_best_only else {}
        used = {**dict.fromkeys(names_in(self._template), "filepath"), **used}
        is_epoch = self.save_freq == "epoch"
        return ReportedNames(_TAG, used, find_fit(self.model), of_batches=not is_epoch, warns=self.reports)

    def write(self, filepath: str, epoch: int, batch: int | None, logs: dict[str, Any]) -> bool:
        """Serialises the model to a temporary file and hands it to the queue, on a worker that writes.

        Returns:
            Whether it is, or will be, in place; not where no thread can be started, which is a warning.
        """
        record = Record(
            template=self._template,
            published_name=files.split_filepath(filepath)[1],
            run_token=self._run_token,
            generation=self._generation,
            sequence=files.next_sequence(),
            epoch=epoch + 1 if batch is None else epoch,
            step=steps_trained(self.model) if self._writes else 0,
            monitor=self.monitor,
            value=_scalar(logs.get(self.monitor)),
            best_only=self.save_best_only,
        )
        self._last_saved = record.order
        if not self._writes:
            return True
        if not self._has_named_missing:
            self._has_named_missing = True
            self._name_missing()
        shared_writer().wait_for(self._ticket)  # one file at a time: a slow store must not fill the local disk
        self._forget_unpublished()  # this one takes its place
        directory = temporary.make_directory("checkpoint")
        try:
            with temporary.writing(f"the file for {self._storage.display(record.published_name)}", within=directory):
                self._serialise(directory / record.published_name)
        except BaseException:
            shutil.rmtree(directory)
            raise
        what, shown = f"saving {self._storage.display(record.published_name)}", is_shown(self.verbose)
        is_submitted = False
        try:
            is_submitted = self._submit(directory, record, what, shown)
        finally:
            if not is_submitted:
                shutil.rmtree(directory)
        return is_submitted

    def _submit(self, directory: Path, record: Record, what: str, shown: bool) -> bool:
        """Hands a file to the queue; a warning, and False, where no thread can be started."""
        try:
            publish = functools.partial(self._publish, directory, record, what, shown)
            self._ticket = shared_writer().submit(publish, what, self._owner)
        except RuntimeError as error:
            warn(f"{what} failed and training continues: {error}")
            return False
        return True

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

    def _publish(self, directory: Path, record: Record, what: str, shown: bool) -> None:
        failed = None
        try:
            self._put(directory / record.published_name, record, what, shown)
            self._failures, self._in_place = 0, (record.value if record.best_only else None, record.order)
        except StorageError as error:
            self._failures += 1
            if self._failures == self._most_failures:
                raise StorageError(f"{self._failures} files in a row were not saved, the last one: {error}") from error
            failed = _Unpublished(directory, record, what, shown, error) if self._owner.runs() else None
            self._refused[id(error)] = what
            raise  # the queue keeps it for `_report`, and warns if this fit() has been left
        finally:
            if failed is None:
                shutil.rmtree(directory)
            self._unpublished = failed

    def _put(self, source: Path, record: Record, what: str, shown: bool) -> None:
        with uploads(what, source.stat().st_size, shown=shown) as advance, self._storage.reporting(advance):
            ownership.check(self._storage, self._template)
            published = files.publish(self._storage, source, record)
        self._kept = [one for one in self._kept if one.name != published.name] + [published]
        say(f"Epoch {record.epoch}: saved {self._storage.display(published.name)}", verbose=shown, after_bar=True)
        if self.max_to_keep is not None:
            try:
                self._kept = files.keep_newest(self._storage, self._kept, self.max_to_keep, self._generation)
            except StorageError as error:  # they are there once more after the next file
                self._notes.append(f"old files cannot be deleted: {error}")

    def _try_again(self, failed: _Unpublished) -> None:
        """Publishes a file that the store has not taken, in the background."""
        self._submit(failed.directory, failed.record, failed.what, failed.shown)

    def _finish(self) -> None:
        """Makes sure that the newest file is in place, with a last try if it is not; raises why it cannot be."""
        if self._unpublished is not None:
            self._try_again(self._unpublished)
            shared_writer().wait()
        if (failed := self._unpublished) is not None:
            shared_writer().take_failure(self._owner)
            self._forget_unpublished()
            raise failed.error

    def _forget_unpublished(self) -> None:
        if self._unpublished is not None:
            shutil.rmtree(self._unpublished.directory, ignore_errors=True)
            self._unpublished = None

    def _report(self) -> None:
        """Warns of files that the store has not taken; raises what else a write ended with, or if they are too many."""
        while (failure := shared_writer().take_failure(self._owner)) is not None:
            what = self._refused.pop(id(failure), None)
            if what is None:
                raise failure
            warn(f"{what} failed and training continues; it is tried again unless a newer file comes first: {failure}")
        while self._notes:
            warn(self._notes.popleft())

    def _prepare(self) -> _Found:
        shared_writer().finish_earlier()  # a fit() that was interrupted may still be writing
        self._storage.probe()
        ownership.claim(self._storage, self._template)  # before anything is listed: then no earlier run adds to it
        files.remove_unfinished(self._storage, self._template)
        listing = files.find(self._storage)
        token = files.run_token(listing, self._template)
        self._kept = files.own(listing, self._template, token)
        notes, _ = end_note.read_all(self._storage, {self._template, *listing.templates})
        generation = 1 + max([listing.generation, *(note.generation for note in notes if note.is_ended)])
        end_note.write(self._storage, self._template, generation, is_ended=False)
        return _Found(generation, token, self._latest_best() if self.save_best_only else None)

    def _latest_best(self) -> Record | None:
        for checkpoint in reversed(self._kept):
            record = checkpoint.record
            if record.best_only and record.monitor == self.monitor and record.value is not None:
                try:
                    return files.verify(self._storage, checkpoint.name).record
                except (DamagedBackupError, FileNotFoundError):
                    continue  # it cannot be the best; latest_checkpoint reports it
        return None

    def _is_in_directory(self, path: str) -> bool:
        directory = files.split_filepath(path)[0]
        if self._storage.is_local:
            return str(Path(directory).absolute()) == self._storage.root
        return directory == self._storage.display()

    def _take_published_best(self, known: tuple[int, int]) -> None:
        best = self._published_best
        if best is not None and best.order > known:
            self.best = best.value
            self._last_saved = best.order


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
