"""SidecarEvaluator: a process that evaluates each checkpoint while training continues."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import keras

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError, StorageError
from keras_dist_callbacks.base.terminal import say, warn
from keras_dist_callbacks.base.validation import Seconds, SecondsFromZero, Text
from keras_dist_callbacks.checkpoints.files import Problem, split_directory, split_filepath
from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.evaluation.model import EvaluatedModel, check_model
from keras_dist_callbacks.evaluation.results import BestExport, Evaluation, EvaluationLog
from keras_dist_callbacks.evaluation.sources import Backups, Candidate, ModelFiles, PollResult, Source
from keras_dist_callbacks.options import explains_arguments
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.redaction import redact, reject_credentials
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage

_T = TypeVar("_T")
_DATA = "a tf.data.Dataset, a PyDataset, an array, another iterable that can be iterated again, or a tuple (x, y)"
_BELOW_LOG_DIR = "evaluator"
_HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "f_beta", "fbeta", "iou", "r2")


@explains_arguments
class SidecarEvaluator:
    """Evaluates every checkpoint of a training, in a process of its own that the training does not notice.

    Keras 3 has no evaluator any more; this is what `tf.keras.utils.SidecarEvaluator` was. It runs as the `evaluator`
    task of TF_CONFIG, or in any process that can read the checkpoints. Each complete checkpoint is copied to a local
    temporary directory, compared with its digest and evaluated, the oldest first; one that is deleted before it was
    copied is skipped, a damaged one with a warning. The same model is evaluated once, even if a training that was
    killed and restarted saves it again; another model at the same step takes the place of the earlier result.

    It ends when the training, one `fit()`, has ended and its last checkpoint is evaluated: when `ModelCheckpoint` has
    written its end note (next to the directory, or in it where the parent cannot be written), or without such files
    when the backup says so or is deleted (`delete_checkpoint=False` keeps the last one for it). Killed and started
    again with the same arguments, it continues: no result is lost or doubled, at most the evaluation that was running
    is repeated. There is one result for each training step.

    Args:
        model: A built, compiled Keras model that weights are loaded into, made within the strategy that is to evaluate
            it. None takes complete models out of `.keras` files, with `safe_mode=True`, or of backups of `fit()`, which
            hold the architecture where Keras has one, under the current strategy or that of `make_strategy()`.
        data: What `model.evaluate` takes as `x`, or a tuple `(x, y)` or `(x, y, sample_weight)`. It is run through for
            each checkpoint.
        checkpoint_dir: Where `ModelCheckpoint` or `BackupAndRestore` writes: a path or any fsspec URL. With the
            `filepath` of a `ModelCheckpoint`, only its files count.
        steps: Batches of each evaluation. Defaults to None: all.
        max_evaluations: Ends when there are that many results, those before a restart included. Defaults to None.
        callbacks: Keras callbacks for `model.evaluate`. Defaults to None.
        timeout: Seconds without a new checkpoint after which it ends; where a result cannot be written for so long,
            with the reason. Defaults to None: as long as it takes.
        poll_seconds: Seconds between two looks for checkpoints. Defaults to 10.
        rerun_seconds: Where all was evaluated before this process started, the end of the training may be that of the
            run before: how many seconds to wait for a new one to begin. Defaults to 300.
        verbose: As in `model.evaluate`; unless it is 0, a line is printed for each result. Defaults to `"auto"`.
        log_dir: TensorBoard's directory, that of the training or another: an event file of each process goes to
            `evaluator/` below it, with each value at the training step and under the name that Keras' TensorBoard gives
            it. Defaults to None: no logs.
        export_best: A path or URL that ends in `.keras` or `.weights.h5`: where the best model is put, with a
            record as `ModelCheckpoint` writes it. Defaults to None.
        monitor: The metric that decides, with `val_` before it or not. Defaults to `"val_loss"`.
        mode: `"min"`, `"max"` or, by the metric's name, `"auto"`. Defaults to `"auto"`.
        state_dir: Where results are kept for a restart. Defaults to `evaluator/` below `log_dir`, without one to
            `<checkpoint_dir>-evaluator`.
        storage_options: Passed to the fsspec file system of `checkpoint_dir`, and of the other directories that have
            the same protocol.
        retry: How long a request may take, and one that fails is tried again. Defaults to `RetryPolicy()`.

    Raises:
        ConfigError: An argument is wrong, or a directory for results lies in `checkpoint_dir`.

    Example:
        ```python
        evaluator = kdc.SidecarEvaluator(
            model, dataset, "gs://bucket/run1/checkpoints", log_dir="gs://bucket/run1/tb"
        )
        for result in evaluator.start():
            print(result.step, result.metrics["loss"])
        ```
    """

    def __init__(
        self,
        model: keras.Model | None,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        timeout: float | None = None,
        poll_seconds: float = 10.0,
        rerun_seconds: float = 300.0,
        verbose: Literal["auto"] | int = "auto",
        log_dir: str | os.PathLike[str] | None = None,
        export_best: str | os.PathLike[str] | None = None,
        monitor: str = "val_loss",
        mode: Literal["auto", "min", "max"] = "auto",
        state_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        check_model(model)
        self._model = EvaluatedModel(model)
        self._steps = validation.check("steps", steps, validation.number_of("batches", 1) | None)
        self._data = _checked_data(data, self._steps)
        self._most = validation.check("max_evaluations", max_evaluations, validation.number_of("results", 1) | None)
        self._callbacks = _checked_callbacks(callbacks)
        self._timeout = validation.check("timeout", timeout, Seconds | None)
        self._poll_seconds = validation.check("poll_seconds", poll_seconds, Seconds, default=10.0)
        self._rerun_seconds = validation.check("rerun_seconds", rerun_seconds, SecondsFromZero, default=300.0)
        self._verbose = validation.check("verbose", verbose, Literal["auto"] | validation.Verbosity)
        places = EvaluatorDirectories(checkpoint_dir, storage_options, retry)
        self._state, events = places.of_results(log_dir, state_dir)
        self._log = EvaluationLog(self._state, events)
        monitor = validation.check("monitor", monitor, Text, "the name of a metric")
        self._best = _best(places, export_best, monitor, mode)
        self._checkpoints, self._series = places.checkpoints, places.series
        self._sources: list[Source] = []
        self._settled: set[str] = set()  # evaluated, or known to be damaged
        self._reported: set[Problem] = set()
        self._has_evaluated = self._is_waiting = False

    def start(self) -> list[Evaluation]:
        """Evaluates until the training has ended, `max_evaluations` are there or `timeout` is over.

        Returns:
            All results, those of earlier processes with the same `state_dir` included, in the order of training.

        Raises:
            ConfigError: This process is a training worker by TF_CONFIG; Keras makes no compiled model of a checkpoint,
                such as one of weights alone, and no `model` was given; `monitor` is not a metric.
            BackupMismatchError: A checkpoint is of another model.
            StorageError: A directory for results cannot be used. What may pass is a warning, and is tried again.
        """
        cluster = Cluster.detect()
        if cluster.num_workers > 1 and not cluster.is_evaluator:
            raise ConfigError(
                f"by its TF_CONFIG, this process is {cluster.name}, which trains: run SidecarEvaluator in a task of "
                "the type 'evaluator', or in a process without TF_CONFIG"
            )
        self._log.open()
        if self._best is not None:
            self._best.storage.probe()
        self._sources = [ModelFiles(self._checkpoints, self._series)]
        if self._series is None:
            self._sources.append(Backups(self._checkpoints, self._log.keys))
        self._settled = self._log.keys
        self._say(f"evaluating {self._checkpoints.display()}; results are kept in {self._state.display()}")
        if self._most is None and self._timeout is None:
            self._say(
                "evaluation ends when it finds the note that training has ended; if training cannot write it, or it "
                "cannot be read here, set timeout or max_evaluations"
            )
        self._run()
        return self._log.results

    def _run(self) -> None:
        began = news = time.monotonic()
        while not self._is_enough():
            looks = {source: self._poll(source) for source in self._sources}
            found = [(source, one) for source in looks for one in looks[source].candidates]
            new = [(source, one) for source, one in found if one.key not in self._settled]
            if sum([self._evaluate(source, one) for source, one in new]):
                news = time.monotonic()
                continue
            if not new and self._has_ended(list(looks.values()), began):
                return
            left = math.inf if self._timeout is None else news + self._timeout - time.monotonic()
            if left <= 0:
                self._say(f"no new checkpoint within {self._timeout:g} s; evaluation ends")
                return
            time.sleep(min(self._poll_seconds, left))

    def _is_enough(self) -> bool:
        return self._most is not None and len(self._log) >= self._most

    def _poll(self, source: Source) -> PollResult:
        try:
            look = source.poll()
        except StorageError as error:
            if not error.unavailable:
                raise
            warn(f"cannot read the checkpoints, and will try again: {error}")
            return PollResult(failed=True)
        for problem in look.problems:
            if problem not in self._reported:
                self._reported.add(problem)
                warn(f"a damaged file is skipped: {problem}", UserWarning)
        return look

    def _has_ended(self, looks: Sequence[PollResult], began: float) -> bool:
        """Returns whether nothing more will come, as far as the first source that has anything says."""
        deciding = next((look for look in looks if look.candidates or look.is_ended), PollResult())
        if not deciding.is_ended or any(look.failed for look in looks):
            return False
        if not self._has_evaluated and time.monotonic() - began < self._rerun_seconds:
            if not self._is_waiting:
                text = "training has ended and all of it is evaluated; waiting for a new run to start"
                self._say(f"{text}, at most {self._rerun_seconds:g} s")
            self._is_waiting = True
            return False
        self._say("training has ended and all its checkpoints are evaluated")
        return True

    def _evaluate(self, source: Source, candidate: Candidate) -> bool:
        """Evaluates a checkpoint; whether there is a new result."""
        if self._is_enough():
            return False
        with temporary.directory("evaluator") as directory:
            taken = self._take(source, candidate, directory)
            if taken is None or taken.key in self._settled:
                return False
            weights = self._model.weights_digest()
            if self._write(lambda: self._log.has_result(taken, weights)):
                self._settled.add(taken.key)
                return False
            metrics, best = self._model.evaluate(self._data, self._steps, self._callbacks, self._verbose), self._best
            if best is not None:  # first: once there is a record, it is not looked at again
                self._write(lambda: best.export_if_best(taken, metrics, self._model))
            result = self._write(lambda: self._log.add(taken, weights, metrics))
        self._settled.add(taken.key)
        self._has_evaluated = True
        values = ", ".join(f"{name} {value:.6g}" for name, value in result.metrics.items())
        self._say(f"evaluated {result.name} (epoch {result.epoch}, step {result.step}): {values}")
        return True

    def _write(self, write: Callable[[], _T]) -> _T:
        """Does what may be done twice, until the store takes it: the checkpoint may be deleted meanwhile.

        Raises:
            StorageError: It will not, or did not within `timeout`.
        """
        began = time.monotonic()
        while True:
            try:
                return write()
            except StorageError as error:
                left = math.inf if self._timeout is None else began + self._timeout - time.monotonic()
                if not error.unavailable or left <= 0:
                    raise
                warn(f"cannot write a result, and will try again: {error}")
            time.sleep(min(self._poll_seconds, left))

    def _take(self, source: Source, candidate: Candidate, directory: Path) -> Candidate | None:
        try:
            return source.take(candidate, self._model, directory)
        except DamagedBackupError as error:
            warn(f"a damaged checkpoint is skipped: {error}", UserWarning)
            self._settled.add(candidate.key)
        except StorageError as error:
            if not error.unavailable:
                raise
            warn(f"cannot read a checkpoint, and will try again: {error}")
        return None

    def _say(self, what: str) -> None:
        say(what, verbose=self._verbose)


def _best(places: EvaluatorDirectories, export_best: Any, monitor: str, mode: Any) -> BestExport | None:
    monitor = monitor.removeprefix("val_")
    mode = _direction(mode, monitor)
    if export_best is None:
        return None
    path = validation.path("export_best", export_best)
    directory, name = split_filepath(path)
    if not name.endswith(EXTENSIONS) or name in EXTENSIONS:
        raise ConfigError(f"export_best must name a file that ends in .keras or .weights.h5, got {redact(path)!r}")
    storage = places.open("export_best", directory)
    storage.require_name(name)
    return BestExport(storage, name, monitor, mode)


class EvaluatorDirectories:
    """Opens the directories.

    Args:
        checkpoint_dir: Where the checkpoints are, or the template or name of their files.
        storage_options: For the file system of `checkpoint_dir`, and for others of the same protocol.
        retry: The policy for remote requests.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self, checkpoint_dir: Any, storage_options: Mapping[str, Any] | None, retry: RetryPolicy | None
    ) -> None:
        path = validation.path("checkpoint_dir", checkpoint_dir)
        reject_credentials(path)
        self._options = validation.mapping("storage_options", storage_options)
        self._retry = None if retry is None else validation.instance("retry", retry, RetryPolicy, also="None")
        self._path, self.series = split_directory(path)
        self.checkpoints = Storage.open(self._path, self._options, retry=self._retry)

    def of_results(self, log_dir: Any, state_dir: Any) -> tuple[Storage, Storage | None]:
        """Returns where records go, and where event files go."""
        events = None if log_dir is None else self.open("log_dir", log_dir, _BELOW_LOG_DIR)
        if state_dir is not None:
            return self.open("state_dir", state_dir), events
        return events or self.open("checkpoint_dir", self._sibling()), events

    def open(self, name: str, given: Any, below: str = "") -> Storage:
        """Returns a directory of the evaluator's own.

        Args:
            name: Of the argument.
            given: Its value.
            below: What of it is the evaluator's.

        Raises:
            ConfigError: It is not a directory, or lies where the training writes.
        """
        path = validation.path(name, given)
        reject_credentials(path)
        same = _scheme(path) == _scheme(self._path)
        storage = Storage.open(path, self._options if same else None, retry=self._retry)
        storage = storage.child(below) if below else storage
        if _is_inside(storage, self.checkpoints):
            raise ConfigError(
                f"{name}={redact(path)!r} is in the checkpoints' directory {self.checkpoints.display()}, where only "
                "the training writes: give the evaluator its own directory next to it"
            )
        return storage

    def _sibling(self) -> str:
        """Returns a directory for the evaluator next to that of the checkpoints."""
        path = self.checkpoints.root if self.checkpoints.is_local else self._path.rstrip("/")
        inner = path.split("://", 1)[-1] if _scheme(path) == "memory" else path.split("://", 1)[-1].partition("/")[2]
        if not inner:
            raise ConfigError(
                f"checkpoint_dir={redact(self._path)!r} has nothing next to it: give log_dir or state_dir"
            )
        return f"{path}-evaluator"


def _checked_data(data: Any, steps: int | None) -> Any:
    """Returns what `evaluate` is given each time."""
    is_tuple = isinstance(data, tuple) and len(data) in (2, 3)
    is_array = hasattr(data, "shape") and hasattr(data, "dtype")
    is_refused = isinstance(data, str | bytes | Mapping | list | tuple)
    if not (is_tuple or is_array or isinstance(data, keras.utils.PyDataset)):
        if is_refused or not (isinstance(data, Iterable) or hasattr(data, "__getitem__")):
            raise validation.invalid_argument("data", data, _DATA)
        if steps is None and iter(data) is data:
            raise ConfigError(
                "data can be iterated only once, but is needed for every checkpoint: give a dataset that can be "
                "iterated again, or, with an endless generator, set steps"
            )
    return data


def _checked_callbacks(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if not isinstance(callbacks, list | tuple) or not all(isinstance(c, keras.callbacks.Callback) for c in callbacks):
        raise validation.invalid_argument("callbacks", callbacks, "a list of Keras callbacks, or None")
    return list(callbacks)


def _direction(mode: Any, monitor: str) -> str:
    given: str = validation.check("mode", mode, Literal["auto", "min", "max"])
    if given != "auto":
        return given
    return "max" if any(word in monitor.lower() for word in _HIGHER_IS_BETTER) else "min"


def _is_inside(storage: Storage, other: Storage) -> bool:
    if storage.is_local != other.is_local or _scheme(storage.url) != _scheme(other.url):
        return False
    inner, outer = (os.path.realpath(one.root) if one.is_local else one.root for one in (storage, other))
    return PurePosixPath(inner).is_relative_to(outer)


def _scheme(url: str) -> str:
    scheme = url.split("://", 1)[0] if "://" in url else "file"
    return "file" if scheme == "local" else scheme
