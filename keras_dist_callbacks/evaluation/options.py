"""The arguments of `SidecarEvaluator`, checked, and the directories that follow from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_dist_callbacks import validation
from keras_dist_callbacks.checkpoints.files import split_filepath
from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.storage.redaction import redact, reject_credentials
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage

_DATA = "a tf.data.Dataset, a PyDataset, an array, another iterable that can be run through again, or a tuple (x, y)"
_BELOW_LOG_DIR = "evaluator"
_HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "f_beta", "fbeta", "iou", "r2")


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
        path, self.series = validation.path("checkpoint_dir", checkpoint_dir), None
        reject_credentials(path)
        self._options = validation.mapping("storage_options", storage_options)
        self._retry = None if retry is None else validation.instance("retry", retry, RetryPolicy, also="None")
        if path.endswith(EXTENSIONS):
            path, name = split_filepath(path)
            path, self.series = path.replace("{{", "{").replace("}}", "}"), name
        self._path = path
        self.checkpoints = Storage.open(path, self._options, retry=self._retry)

    def of_results(self, log_dir: Any, state_dir: Any) -> tuple[Storage, Storage | None]:
        """Where records go, and where event files go."""
        events = None if log_dir is None else self.open("log_dir", log_dir, _BELOW_LOG_DIR)
        if state_dir is not None:
            return self.open("state_dir", state_dir), events
        return events or self.open("checkpoint_dir", self._sibling()), events

    def open(self, name: str, given: Any, below: str = "") -> Storage:
        """A directory of the evaluator's own.

        Args:
            name: Of the argument.
            given: Its value.
            below: What of it is the evaluator's.

        Raises:
            ConfigError: It is none, or lies where the training writes.
        """
        path = validation.path(name, given)
        reject_credentials(path)
        same = _scheme(path) == _scheme(self._path)
        storage = Storage.open(path, self._options if same else None, retry=self._retry)
        storage = storage.child(below) if below else storage
        if _is_inside(storage, self.checkpoints):
            raise ConfigError(
                f"{name}={redact(path)!r} is in the checkpoints' directory {self.checkpoints.display()}, where the "
                "training alone writes: give the evaluator a directory of its own beside it"
            )
        return storage

    def _sibling(self) -> str:
        """A directory for the evaluator beside that of the checkpoints.

        Raises:
            ConfigError: That is a bucket, or the root of the file system.
        """
        path = self.checkpoints.root if self.checkpoints.is_local else self._path.rstrip("/")
        inner = path.split("://", 1)[-1] if _scheme(path) == "memory" else path.split("://", 1)[-1].partition("/")[2]
        if not inner:
            raise ConfigError(f"checkpoint_dir={redact(self._path)!r} has nothing beside it: give log_dir or state_dir")
        return f"{path}-evaluator"


def checked_data(data: Any, steps: int | None) -> Any:
    """What `evaluate` is given each time.

    Raises:
        ConfigError: It is no data, or can be run through once only.
    """
    is_tuple = isinstance(data, tuple) and len(data) in (2, 3)
    is_array = hasattr(data, "shape") and hasattr(data, "dtype")
    is_refused = isinstance(data, str | bytes | Mapping | list | tuple)
    if not (is_tuple or is_array or isinstance(data, keras.utils.PyDataset)):
        if is_refused or not (isinstance(data, Iterable) or hasattr(data, "__getitem__")):
            raise validation.invalid_argument("data", data, _DATA)
        if steps is None and iter(data) is data:
            raise ConfigError(
                "data can be run through once only, but is needed for every checkpoint: give a dataset that begins "
                "anew each time, or with a generator that has no end steps"
            )
    return data


def checked_verbose(verbose: Any) -> int | str:
    """As Keras' `evaluate` takes it."""
    return "auto" if isinstance(verbose, str) and verbose == "auto" else validation.verbosity("verbose", verbose)


def checked_callbacks(callbacks: Any) -> list[Any]:
    """A list of callbacks."""
    if callbacks is None:
        return []
    if not isinstance(callbacks, list | tuple) or not all(isinstance(c, keras.callbacks.Callback) for c in callbacks):
        raise validation.invalid_argument("callbacks", callbacks, "a list of Keras callbacks, or None")
    return list(callbacks)


def direction(mode: Any, monitor: str) -> str:
    """`"min"` or `"max"`."""
    given = validation.choice("mode", mode, ("auto", "min", "max"))
    if given != "auto":
        return given
    return "max" if any(word in monitor.lower() for word in _HIGHER_IS_BETTER) else "min"


def _is_inside(storage: Storage, other: Storage) -> bool:
    if storage.is_local != other.is_local or _scheme(storage.url) != _scheme(other.url):
        return False
    inner, outer = storage.root, other.root
    if storage.is_local:
        inner, outer = os.path.realpath(inner), os.path.realpath(outer)
    return inner == outer or inner.startswith(f"{outer.rstrip('/')}/")


def _scheme(url: str) -> str:
    scheme = url.split("://", 1)[0] if "://" in url else "file"
    return "file" if scheme == "local" else scheme
