"""TensorBoard's event files, written by the chief to any store."""

from __future__ import annotations

import os
import shutil
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from keras_dist_callbacks._compat import keras_in_use
from keras_dist_callbacks._compat.running_fit import find_fit
from keras_dist_callbacks._compat.tensorboard_state import (
    TensorBoardWithState,
    create_files,
    get_counters,
    set_counters,
)
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.callbacks import event_files
from keras_dist_callbacks.callbacks.backup_and_restore import engine_among
from keras_dist_callbacks.callbacks.rebuild_on_copy import RebuiltOnCopy
from keras_dist_callbacks.callbacks.write_policy import Writers, agree_on_writers
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.strategy import enable_for_cluster
from keras_dist_callbacks.options import WriteOptions, explains_arguments, group_of, open_to_write
from keras_dist_callbacks.rehearsal.scratch import place_of
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.redaction import redact, reject_credentials
from keras_dist_callbacks.storage.storage import Storage


class EventSync:
    """Puts every file of a local directory that changed into a store, in the background.

    Objects cannot be appended to, so a file that grew is uploaded again completely. A store that fails costs a
    warning, not the training: logs are not worth a job.

    Args:
        local: The directory that TensorFlow writes to.
        storage: Where its files go, under the same relative names.
        every: Least seconds between two rounds of `now_and_then`.
    """

    def __init__(self, local: Path, storage: Storage, every: float) -> None:
        self._local = local
        self._storage = storage
        self._every = every
        self._last = time.monotonic()
        self._sent: dict[Path, tuple[int, int]] = {}
        self._failure: Exception | None = None

    def is_due(self) -> bool:
        """Returns whether the last round is long enough ago."""
        return time.monotonic() - self._last >= self._every

    def start(self) -> None:
        """Queues a round; warns if an earlier one failed."""
        self._report("they are tried again")
        self._last = time.monotonic()
        try:
            shared_writer().submit(self._round, f"copying event files to {self._storage.display()}")
        except RuntimeError as error:
            self._failure = error

    def finish(self) -> bool:
        """Runs a last round and waits for it; whether all files arrived."""
        self.start()
        shared_writer().wait()
        arrived = self._failure is None
        if not arrived:
            self._local = temporary.keep(self._local)
        self._report(f"they stay in {self._local}")
        return arrived

    def _round(self) -> None:
        try:
            for path in sorted(p for p in self._local.rglob("*") if p.is_file()):
                state = (path.stat().st_size, path.stat().st_mtime_ns)
                if self._sent.get(path) != state:
                    self._put(path)
                    self._sent[path] = state
        except (OSError, RuntimeError) as error:  # of the store or of the local disk; no thread for an upload
            self._failure = error

    def _put(self, path: Path) -> None:
        # A copy, because clients that are given a size at the start fail on a file that grows meanwhile.
        with temporary.file("events") as copy:
            with temporary.writing("a copy of an event file", path.stat().st_size):
                shutil.copyfile(path, copy.name)
            self._storage.replace(path.relative_to(self._local).as_posix(), Path(copy.name))

    def _report(self, then: str) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            warn(f"TensorBoard event files could not be copied, {then}: {failure}", UserWarning)


_TAG = "TensorBoard"
_EPOCHS = validation.number_of("epochs")
_UPDATE_FREQ = Literal["epoch", "batch"] | validation.number_of("batches", 1)


@dataclass
class _ActiveBoards(Shared):
    """The TensorBoard of each model's running fit, and all that were not closed."""

    active: WeakKeyDictionary[Any, weakref.ref[TensorBoard]] = field(default_factory=WeakKeyDictionary)
    open: weakref.WeakSet[TensorBoard] = field(default_factory=weakref.WeakSet)


@explains_arguments
class TensorBoard(RebuiltOnCopy, TensorBoardWithState):
    """Writes logs for TensorBoard, like `keras.callbacks.TensorBoard`.

    Every argument of Keras keeps its meaning. Different from Keras: in a cluster the chief writes to
    `log_dir` and each other worker to a directory of its own; with `BackupAndRestore` in the same `fit()`
    the step counters continue after a restart, and what a backup covers is in the event files before it. A
    store that TensorFlow cannot write (all but local paths, `ram://` and, without `storage_options`,
    `gs://`) gets copies of local event files, while training continues and once more at its end. An evaluator
    writes to `log_dir` too. With `BackupAndRestore`, `goodput/goodput` is the share of training in all time so far,
    restarts included, `badput/...` are the seconds of all else, and `backup/...` what the newest backup took.

    A restarted run repeats the steps after its backup. On a local disk, what the event files of the interrupted process
    hold beyond the backup is cut off, so that no step is shown twice; elsewhere, and of a process that was killed
    before its first backup, their events are in both files.

    Args:
        log_dir: Where the chief writes: a path or URL. Defaults to `"logs"`.
        histogram_freq: Epochs between histograms of the weights; 0 for none. Defaults to 0.
        write_graph: Whether to write the graph. Defaults to True.
        write_images: Whether to write weights as images. Defaults to False.
        write_steps_per_second: Whether to log training steps per second. Defaults to False.
        update_freq: `"epoch"`, `"batch"` or a number of batches. Defaults to `"epoch"`.
        profile_batch: The batch, or pair of first and last batch, to profile, as numbers or in a string such as
            `"10,20"`; 0 for none. Defaults to 0.
        embeddings_freq: Epochs between visualised embeddings; 0 for none. Defaults to 0.
        embeddings_metadata: Metadata of embedding layers. Defaults to None.
        worker_log_dir: Below it each other worker writes to `worker-<n>`, and an evaluator to `evaluator`. Defaults to
            None: workers write to a temporary local directory that is removed at the end, an evaluator to `log_dir`.
        storage_options: Passed to the fsspec file system (credentials, endpoint, ...).
        write_options: Retries, `fsync` and the rate of uploads. Defaults to `WriteOptions()`.
        sync_seconds: Least time between two rounds of copying. Defaults to 30.
        write_on: `"chief"`, or `"all"` workers, each to a `log_dir` of its own. Defaults to `"chief"`.

    Raises:
        ConfigError: An argument is wrong, `write_on="all"` has a `worker_log_dir`, a protocol is unknown, or a
            package is not installed: tensorboard, or the protocol's.
        CompatError: The installed Keras is not supported.

    Example:
        ```python
        board = kdc.TensorBoard("gs://bucket/run1/tb", update_freq=100)
        model.fit(dataset, epochs=12, callbacks=[board, kdc.BackupAndRestore("gs://bucket/run1/backup")])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: Literal["epoch", "batch"] | int = "epoch",
        profile_batch: int | str | tuple[int, int] = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: str | dict[str, str] | None = None,
        *,
        worker_log_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        write_options: WriteOptions | None = None,
        sync_seconds: float = 30.0,
        write_on: Writers = "chief",
    ) -> None:
        enable_for_cluster()
        validation.check("write_on", write_on, Writers)
        self._chief_dir = validation.path("log_dir", log_dir)
        self._worker_dir = None if worker_log_dir is None else validation.path("worker_log_dir", worker_log_dir)
        self._storage_options = validation.mapping("storage_options", storage_options)
        self._write_options = group_of("write_options", write_options, WriteOptions)
        self._sync_seconds = validation.check("sync_seconds", sync_seconds, validation.Seconds, default=30.0)
        super().__init__(
            redact(self._chief_dir),
            histogram_freq=validation.check("histogram_freq", histogram_freq, _EPOCHS, default=0),
            write_graph=validation.check("write_graph", write_graph, bool),
            write_images=validation.check("write_images", write_images, bool),
            write_steps_per_second=validation.check("write_steps_per_second", write_steps_per_second, bool),
            update_freq=validation.check("update_freq", update_freq, _UPDATE_FREQ),
            profile_batch=_profile_batch(profile_batch),
            embeddings_freq=validation.check("embeddings_freq", embeddings_freq, _EPOCHS, default=0),
            embeddings_metadata=_metadata(embeddings_metadata),
        )
        if write_on == "all" and worker_log_dir is not None:
            raise ConfigError("write_on='all' writes to each worker's own log_dir; remove worker_log_dir")
        self._write_on, self._writes = write_on, True
        self._sync: EventSync | None = None
        self._local: Path | None = None
        self._training = False
        self._event_directory: Path | None = None  # where this worker writes, on a local disk, for a run of its own
        self._known_files: list[str] = []  # those of the processes before
        self._check_protocols()

    def _follow_log_dir(self) -> None:
        """The user may have set `log_dir`: tuners give each trial a directory below the one that they find there."""
        given, shown = validation.path("log_dir", self.log_dir), redact(self._chief_dir)
        if given == shown:
            return
        below = given.startswith(f"{shown.rstrip('/')}/")  # what is shown has no credentials
        self._chief_dir = f"{self._chief_dir.rstrip('/')}{given[len(shown.rstrip('/')) :]}" if below else given
        self._check_protocols()

    def _check_protocols(self) -> None:
        """A wrong protocol or name is an error when the callback is made, not in fit()."""
        for directory in (self._chief_dir, self._worker_dir):
            if directory is None:
                continue
            reject_credentials(directory)
            if not self._is_native(directory, self._storage_options):
                Storage.open(directory, self._storage_options)
            elif _is_local(directory):
                Storage.open(directory)

    def set_model(self, model: Any) -> None:
        """Chooses this worker's directory and opens the event files.

        Raises:
            ConfigError: TF_CONFIG names several workers, but the model was made for one; or it is of another Keras.
            StorageError: A directory cannot be used; raised on every worker.
        """
        keras_in_use.require_model(model)
        self._training = False
        self._follow_log_dir()
        cluster = Cluster.detect()
        if not cluster.is_evaluator:
            cluster.require_connection(model.distribute_strategy)
        own = redact(self._chief_dir) if "://" in self._chief_dir else str(Path(self._chief_dir).absolute())
        elsewhere = self._worker_dir is not None
        self._writes = agree_on_writers(cluster, "TensorBoard", self._write_on, own, elsewhere=elsewhere)
        if cluster.is_evaluator:
            self._writes = not elsewhere  # no other worker was given this directory to write to
        target, options = self._place(cluster)
        storage = (
            None
            if target is None or self._is_native(target, options)
            else open_to_write(target, options, self._write_options)
        )
        if cluster.is_evaluator:
            self._probe(target, storage)
        else:
            cluster.agree(lambda: self._probe(target, storage), _TAG)
        shown = redact(self._chief_dir)
        is_lasting = target is not None and storage is None and _is_local(target)
        self.log_dir = self._directory(target, storage)
        self._event_directory = Path(self.log_dir.removeprefix("file://")) if is_lasting else None
        boards = shared(_ActiveBoards).open
        for left in [board for board in boards if board._event_directory == self._event_directory is not None]:
            left.flush()  # of a fit() that was interrupted: what it still holds must not be written later
        boards.add(self)
        try:
            super().set_model(model)
        finally:
            self.log_dir = shown
        shared(_ActiveBoards).active[model] = weakref.ref(self)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to count steps."""
        self._training = True
        super().on_train_begin(logs)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Logs what `evaluate()` found."""
        super().on_test_end(logs)
        if not self._training:  # evaluate() alone: no other hook follows
            self.close()
            shared(_ActiveBoards).open.discard(self)
            self._finish_copies()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the batch if `update_freq` asks for it."""
        super().on_train_batch_end(batch, logs)
        if self._sync is not None and self._sync.is_due():
            self._publish()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the epoch, and what backups and restarts cost."""
        super().on_epoch_end(epoch, logs)
        self._log_costs(epoch)
        if self._sync is not None and self._sync.is_due():
            self._publish()

    def _log_costs(self, epoch: int) -> None:
        fit = find_fit(self.model) if self._training and self._writes else None
        engine = None if fit is None else engine_among(fit.callback_list.callbacks)
        if engine is None:
            return
        for name, value in engine.costs().items():
            self.scalar(name, value, epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the event files; copied ones are complete when this returns."""
        super().on_train_end(logs)
        self._training = False
        shared(_ActiveBoards).active.pop(self.model, None)
        shared(_ActiveBoards).open.discard(self)
        self._finish_copies()

    def get_state(self) -> dict[str, Any]:
        """Returns what a backup keeps: the steps of batch-level logs, and how long local event files are.

        Writes out the events up to here first.
        """
        fit = find_fit(self.model) if self._training and self._event_directory is not None else None
        if fit is not None:  # a backup must know them all: what is written to them after it counts as repeated
            create_files(self, of_validation=fit.validation_source is not None)
        self._publish()
        files: dict[str, int] = {}
        if self._event_directory is not None:
            files = event_files.sizes(
                self._event_directory, {*self._known_files, *event_files.of_this_process(self._event_directory)}
            )
        return {**get_counters(self), "files": files}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues at the steps that `get_state` returned; local event files are shortened to what they held then."""
        set_counters(self, {"counters": validation.convert(state["counters"], list[int])})
        known = validation.convert(state.get("files", {}), dict[str, validation.Count])
        if self._event_directory is not None:
            self._known_files = list(known)
            event_files.shorten(self._event_directory, known)

    def _publish(self) -> None:
        self.flush()
        if self._sync is not None:
            self._sync.start()

    def _finish_copies(self) -> None:
        arrived = self._sync is None or self._sync.finish()
        if arrived and self._local is not None:
            shutil.rmtree(self._local)
        self._sync, self._local = None, None

    def _target(self, cluster: Cluster) -> str | None:
        if self._writes:
            return self._chief_dir
        if self._worker_dir is None:
            return None
        name = cluster.name.replace(" ", "-")
        return f"{self._worker_dir.rstrip('/')}/{name}"

    def _place(self, cluster: Cluster) -> tuple[str | None, Mapping[str, Any] | None]:
        target = self._target(cluster)
        return (None, None) if target is None else place_of(target, self._storage_options)

    def _directory(self, target: str | None, storage: Storage | None) -> str:
        """Returns where TensorFlow shall write."""
        if target is not None and storage is None:
            return target
        if self._local is None:
            self._local = temporary.make_directory("tensorboard")
            if storage is not None:
                self._sync = EventSync(self._local, storage, self._sync_seconds)
            else:
                weakref.finalize(self, shutil.rmtree, self._local, ignore_errors=True)  # fit() may raise
        return str(self._local)

    def _probe(self, target: str | None, storage: Storage | None) -> None:
        if storage is None and target is not None and _is_local(target):
            storage = Storage.open(target)
        if storage is not None:
            storage.probe()

    def _is_native(self, directory: str, options: Mapping[str, Any] | None) -> bool:
        scheme = directory.split("://", 1)[0] if "://" in directory else ""
        return scheme in {"", "file", "ram"} or (scheme == "gs" and not options)


def _is_local(directory: str) -> bool:
    return directory.split("://")[0] in {directory, "file"}


def _profile_batch(given: Any) -> int | tuple[int, int]:
    try:
        batches = [int(part) for part in given.split(",")] if isinstance(given, str) else given
        if isinstance(batches, list | tuple) and (isinstance(given, str) or len(batches) == 2):
            found = [validation.check("profile_batch", batch, validation.Count) for batch in batches]
        else:
            found = [validation.check("profile_batch", given, validation.Count)]
    except ValueError:
        found = []
    if len(found) not in (1, 2) or found[0] > found[-1]:
        allowed = "a batch from 0 on, or a pair of a first and a last batch such as (10, 20) or '10,20'; 0 for none"
        raise validation.invalid_argument("profile_batch", given, allowed)
    return found[0] if len(found) == 1 else (found[0], found[1])


def _metadata(given: Any) -> str | dict[str, Any] | None:
    if given is None or isinstance(given, str):
        return None if given is None else validation.path("embeddings_metadata", given)
    if isinstance(given, Mapping):
        found = validation.mapping("embeddings_metadata", given)
        return {layer: validation.path(f"embeddings_metadata[{layer!r}]", file) for layer, file in found.items()}
    raise validation.invalid_argument(
        "embeddings_metadata", given, "a path, or a dict of paths by names of layers, or None"
    )


def active_tensorboard(model: Any) -> TensorBoard | None:
    """Returns the TensorBoard callback of the running `fit()` of `model`."""
    reference = shared(_ActiveBoards).active.get(model)
    return None if reference is None else reference()
