"""What Keras' own callbacks carry from one step to the next, and how it is put back.

Some of it is private (`_ema_weights_in_model`, TensorBoard's counters), which is why it lives here.
"""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from keras_dist_callbacks._compat import tensorboard_state
from keras_dist_callbacks.base.errors import BackupError
from keras_dist_callbacks.base.process_runs import fits_of

_EMPTY: dict[str, Any] = {"epoch": [], "history": {}}


def note_end(model: Any) -> None:
    """A fit of this model has trained to its end."""
    ended = getattr(model, "history", None)
    if ended is None:  # a CallbackList of the user's
        return
    fits_of(model).histories.append({"epoch": list(ended.epoch), "history": dict(ended.history)})


def get(history: Any) -> dict[str, Any]:
    """Returns the state of a running fit's History, with the Histories of the epochs before that fit."""
    state = {"epoch": history.epoch, "history": history.history}
    runs = fits_of(history.model)
    before = [fit for fit in runs.histories if fit["epoch"] and fit["epoch"][-1] < runs.asked[0]]
    return {**state, "earlier": before} if before else state


def set_back(history: Any, state: dict[str, Any]) -> None:
    """Gives a fit the History of the epochs that it asks for."""
    runs = fits_of(history.model)
    first, end = runs.asked
    own = {name: state[name] for name in _EMPTY}
    fits = [*state.get("earlier", []), own]
    if not (own["epoch"] and own["epoch"][0] < end and own["epoch"][-1] >= first):  # it has no epoch of this fit
        own = next((fit for fit in fits if fit["epoch"][:1] == [first] and fit["epoch"][-1] < end), _EMPTY)
    history.epoch, history.history = list(own["epoch"]), dict(own["history"])
    runs.histories = [fit for fit in fits if fit["epoch"] and fit["epoch"] != history.epoch]


def get_rows(callback: Any) -> dict[str, Any]:
    """Size and hash of the file, flushed, and its columns; a size of None without a file."""
    if callback.csv_file is not None and not getattr(callback.csv_file, "closed", True):
        callback.csv_file.flush()
    size = _size(callback.filename)
    digest = None if size is None else _digest(callback.filename, size)
    keys = None if callback.keys is None else list(callback.keys)
    return {"size": size, "digest": digest, "keys": keys}


def other_rows(callback: Any, state: dict[str, Any]) -> tuple[str, ...]:
    """Returns the code of a finding and what fills it, if the file is not the one that was backed up."""
    path, size = callback.filename, state["size"]
    found = _size(path) or 0
    if found < size:
        return "rows-missing", str(path), str(found), str(size)
    return () if _digest(path, size) == state["digest"] else ("rows-changed", str(path))


def set_rows(callback: Any, state: dict[str, Any]) -> None:
    """Takes away the rows after the backup, and continues with the same columns, without a second header.

    Raises:
        BackupError: They cannot be taken away.
    """
    if state["size"] is not None and not other_rows(callback, state):
        try:
            os.truncate(callback.filename, state["size"])
        except OSError as error:
            raise BackupError(
                f"cannot remove the rows of {callback.filename} that training writes again: {error}. The backup is "
                "unchanged"
            ) from error
        if not state["size"]:
            callback.append_header = True
    if state["keys"] is None:
        return
    callback.keys = list(state["keys"])
    if callback.csv_file.tell() > 0:
        callback.writer = csv.DictWriter(callback.csv_file, ["epoch", *callback.keys], delimiter=callback.sep)
        if not callback.append:
            callback.append_header = True  # as it was: a later fit() overwrites the file and needs one


def _digest(path: str, size: int) -> str:
    """Returns the hash of a file's first `size` bytes: a row for each epoch, so there are not many."""
    with Path(path).open("rb") as file:
        return xxhash.xxh3_128_hexdigest(file.read(size))


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


class Prepared(NamedTuple):
    """What was done to a callback before its `on_train_begin`.

    Attributes:
        after: To be called after `on_train_begin`; takes back what must not outlive it.
        found: Of what could not be prepared the code of a finding, and what fills it; else empty.
    """

    after: Callable[[], None]
    found: tuple[str, ...] = ()


class Known(NamedTuple):
    """How to save and restore a callback class.

    Attributes:
        get: Returns the state.
        set: Puts a state back, after `on_train_begin`.
        identity: Names of attributes that distinguish two callbacks of the class.
        finer: Names of further attributes, asked where `identity` does not do.
        prepare: Called with the state before `on_train_begin`, for what that would destroy.
        attributes: Names of the attributes that are saved; None: what the class needs of its own is all saved.
    """

    get: Callable[[Any], dict[str, Any]]
    set: Callable[[Any, dict[str, Any]], None]
    identity: tuple[str, ...] = ()
    finer: tuple[str, ...] = ()
    prepare: Callable[[Any, dict[str, Any]], Prepared] | None = None
    attributes: frozenset[str] | None = None


UNANNOUNCED = ("ProgbarLogger", "History", "CSVLogger", "TensorBoard", "kdc.TensorBoard")
"""That one is new or missing is not reported: fit() adds it by `verbose`, or it only writes a log."""


def _attributes(*names: str, identity: tuple[str, ...] = (), finer: tuple[str, ...] = ()) -> Known:
    def get(callback: Any) -> dict[str, Any]:
        return {name: getattr(callback, name) for name in names if hasattr(callback, name)}

    def put(callback: Any, state: dict[str, Any]) -> None:
        for name in names:
            if name in state:
                setattr(callback, name, state[name])

    return Known(get, put, identity, finer, attributes=frozenset(names))


def _set_progress(callback: Any, state: dict[str, Any]) -> None:
    callback.seen = state["seen"]
    if callback.target is None:  # an input whose length an earlier epoch has shown
        callback.target = state["target"]
        if callback.progbar is not None:
            callback.progbar.target = callback.target


def _prepare_rows(callback: Any, state: dict[str, Any]) -> Prepared:
    append = callback.append
    if state["size"] is None:
        return Prepared(lambda: None)
    callback.append = True
    return Prepared(lambda: setattr(callback, "append", append), other_rows(callback, state))


def _prepare_steps(board: Any, state: dict[str, Any]) -> Prepared:
    # Within an epoch the state itself comes back later only, and on_epoch_begin would log at step 0.
    return Prepared(lambda: tensorboard_state.set_counters(board, state))


_PATHS = {"filepath", "filename", "log_dir"}
_PATIENCE = ("mode", "min_delta", "patience")
_TABLE: dict[str, Known] = {
    "EarlyStopping": _attributes(
        *("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
        identity=("monitor",),
        finer=(*_PATIENCE, "baseline", "start_from_epoch", "restore_best_weights"),
    ),
    "ReduceLROnPlateau": _attributes(
        *("wait", "best", "cooldown_counter"), identity=("monitor",), finer=(*_PATIENCE, "factor", "cooldown", "min_lr")
    ),
    "ModelCheckpoint": _attributes(
        *("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
        identity=("monitor",),
        finer=("mode", "save_best_only", "save_weights_only", "save_freq", "filepath"),
    ),
    "TensorBoard": Known(
        tensorboard_state.get_counters,
        tensorboard_state.set_counters,
        finer=("log_dir", "update_freq"),
        prepare=_prepare_steps,
    ),
    "SwapEMAWeights": _attributes("_ema_weights_in_model", finer=("swap_on_epoch",)),
    "CSVLogger": Known(get_rows, set_rows, ("filename",), prepare=_prepare_rows),
    "ProgbarLogger": Known(lambda bar: {"seen": bar.seen, "target": bar.target}, _set_progress),
    "History": Known(get, set_back, attributes=frozenset(["epoch", "history"])),
    # Without a state; known so that one that is new or gone is named.
    "LearningRateScheduler": _attributes(),
    "TerminateOnNaN": _attributes(finer=("raise_error",)),
    "RemoteMonitor": _attributes(identity=("root", "path")),
}


def known(callback: Any) -> Known | None:
    """Returns how to save and restore a Keras callback or a subclass of one; None if the class is not known."""
    cls: Any = type(callback)
    return _entry(cls)


@functools.lru_cache(maxsize=1024)  # asked for each attribute of each object, in each capture
def _entry(cls: Any) -> Known | None:
    import keras

    return next((entry for name, entry in _TABLE.items() if issubclass(cls, getattr(keras.callbacks, name))), None)


def saved_names(cls: type, set_by_keras: Callable[[type], frozenset[str]]) -> frozenset[str]:
    """Returns names of attributes of a callback class that the table saves, or that hold what a library has for itself.

    Args:
        cls: The class, Keras' own or one that extends it.
        set_by_keras: Returns the names of all attributes that Keras' methods set.
    """
    entry = _entry(cls)
    if entry is None:
        return frozenset()
    saved = set_by_keras(cls) if entry.attributes is None else entry.attributes
    return saved | {"monitor_op"}  # which Keras makes of others when it first needs it


def saved_attributes(callback: Any) -> frozenset[str]:
    """Names of the attributes in which a callback of Keras', or of a class that extends one, keeps its state."""
    entry = known(callback)
    return frozenset() if entry is None else entry.attributes or frozenset()


def describe(callback: Any, names: tuple[str, ...]) -> str:
    """Returns the values of identifying attributes, as `name=value, ...`; those that are None are skipped.

    Of a path only the last part: workers have directories of their own, and a restart may have another one.
    """
    values = {name: getattr(callback, name, None) for name in names}
    for name in _PATHS & values.keys():
        values[name] = None if values[name] is None else str(values[name]).rpartition("/")[2]
    delta = values.get("min_delta")
    if isinstance(delta, int | float):
        values["min_delta"] = abs(delta)  # Keras flips its sign while it trains
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
