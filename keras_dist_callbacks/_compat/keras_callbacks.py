"""What Keras' own callbacks carry from one step to the next, and how it is put back.

Some of it is private (`_ema_weights_in_model`, TensorBoard's counters), which is why it lives here.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_dist_callbacks._compat import csv_logger, histories, tensorboard


class Prepared(NamedTuple):
    """What was done to a callback before its `on_train_begin`.

    Attributes:
        after: To be called after `on_train_begin`; takes back what must not outlive it.
        note: What could not be prepared, as a sentence, or None.
    """

    after: Callable[[], None]
    note: str | None


class Known(NamedTuple):
    """How to save and restore a callback class.

    Attributes:
        get: Returns the state.
        set: Puts a state back, after `on_train_begin`.
        identity: Names of attributes that tell two callbacks of the class apart.
        finer: Names of further attributes, asked where `identity` does not do.
        prepare: Called with the state before `on_train_begin`, for what that would destroy.
    """

    get: Callable[[Any], dict[str, Any]]
    set: Callable[[Any, dict[str, Any]], None]
    identity: tuple[str, ...] = ()
    finer: tuple[str, ...] = ()
    prepare: Callable[[Any, dict[str, Any]], Prepared] | None = None


UNANNOUNCED = ("ProgbarLogger", "History")
"""Added by fit() itself, `verbose` deciding: nobody needs to be told when one is new or gone."""


_COUNT = (int, np.integer)
_NUMBER = (int, float, np.number)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("wait", "stopped_epoch", "best_epoch", "cooldown_counter", "seen"), _COUNT),
    **dict.fromkeys(("_batches_seen_since_last_saving", "_last_batch_seen"), (*_COUNT, types.NoneType)),
    "best": (*_NUMBER, np.ndarray, types.NoneType),
    "best_weights": (list, types.NoneType),
    "_ema_weights_in_model": (bool,),
    "epoch": (list,),
    "history": (dict,),
    "target": (*_COUNT, types.NoneType),
    "size": (*_COUNT, types.NoneType),
    "digest": (str, types.NoneType),
    "keys": (list, types.NoneType),
    "counters": (list,),
}
_ITEMS: dict[str, tuple[type, ...]] = {
    "best_weights": (np.ndarray, np.generic), "epoch": _COUNT, "history": (list,), "keys": (str,), "counters": _COUNT
}  # fmt: skip


def require_kind(name: str, value: Any) -> None:
    """Refuses a value that Keras' callback would stumble over later.

    Raises:
        TypeError: It is of another kind than what the callback keeps under that name.
    """
    items = list(value.values() if isinstance(value, dict) else value) if isinstance(value, list | dict) else []
    wrong = [item for item in items if not _is(item, _ITEMS.get(name, (object,)))]
    if not _is(value, _KINDS[name]) or wrong:
        raise TypeError(f"{name} cannot be {wrong[0] if wrong else value!r}")


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds or object in kinds)


def _attributes(*names: str, identity: tuple[str, ...] = (), finer: tuple[str, ...] = ()) -> Known:
    def get(callback: Any) -> dict[str, Any]:
        return {name: getattr(callback, name) for name in names if hasattr(callback, name)}

    def put(callback: Any, state: dict[str, Any]) -> None:
        for name in names:
            if name in state:
                require_kind(name, state[name])
        for name in names:
            if name in state:
                setattr(callback, name, state[name])

    return Known(get, put, identity, finer)


def _get_progress(callback: Any) -> dict[str, Any]:
    return {"seen": callback.seen, "target": callback.target}


def _set_progress(callback: Any, state: dict[str, Any]) -> None:
    require_kind("seen", state["seen"])
    require_kind("target", state["target"])
    callback.seen = state["seen"]
    if callback.target is None:  # an input whose length an earlier epoch has shown
        callback.target = state["target"]
        if callback.progbar is not None:
            callback.progbar.target = callback.target


def _set_histories(history: Any, state: dict[str, Any]) -> None:
    for fit in [*state.get("earlier", []), state]:
        require_kind("epoch", fit["epoch"])
        require_kind("history", fit["history"])
    histories.set_back(history, state)


def _prepare_rows(callback: Any, state: dict[str, Any]) -> Prepared:
    append = callback.append
    for name in ("size", "digest", "keys"):
        require_kind(name, state[name])
    if state["size"] is None:
        return Prepared(lambda: None, None)
    note = csv_logger.cut(callback, state["size"], state["digest"])
    callback.append = True
    return Prepared(lambda: setattr(callback, "append", append), note)


def _prepare_steps(board: Any, state: dict[str, Any]) -> Prepared:
    require_kind("counters", state["counters"])
    # Within an epoch the state itself comes back later only, and on_epoch_begin would log at step 0.
    return Prepared(lambda: tensorboard.set_counters(board, state), None)


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
        tensorboard.get_counters, tensorboard.set_counters, finer=("log_dir", "update_freq"), prepare=_prepare_steps
    ),
    "SwapEMAWeights": _attributes("_ema_weights_in_model", finer=("swap_on_epoch",)),
    "CSVLogger": Known(csv_logger.get_rows, csv_logger.set_rows, ("filename",), prepare=_prepare_rows),
    "ProgbarLogger": Known(_get_progress, _set_progress),
    "History": Known(histories.get, _set_histories),
    # Without a state; known so that one that is new or gone is named.
    "LearningRateScheduler": _attributes(),
    "TerminateOnNaN": _attributes(finer=("raise_error",)),
    "RemoteMonitor": _attributes(identity=("root", "path")),
}


def known(callback: Any) -> Known | None:
    """How to save and restore a Keras callback or a subclass of one; None if the class is not known."""
    import keras

    for name, entry in _TABLE.items():
        if isinstance(callback, getattr(keras.callbacks, name)):
            return entry
    return None


def describe(callback: Any, names: tuple[str, ...]) -> str:
    """The values of identifying attributes, as `name=value, ...`; those that are None are left out.

    Of a path only the last part: workers have directories of their own, and a restart may have another one.
    """
    values = {name: getattr(callback, name, None) for name in names}
    for name in _PATHS & values.keys():
        values[name] = None if values[name] is None else str(values[name]).rpartition("/")[2]
    delta = values.get("min_delta")
    if isinstance(delta, int | float):
        values["min_delta"] = abs(delta)  # Keras flips its sign while it trains
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def is_of_functions(callback: Any) -> bool:
    """Whether it is a `LambdaCallback`, whose functions may hold on to anything."""
    import keras

    return isinstance(callback, keras.callbacks.LambdaCallback)


def names_used_by_keras(cls: type) -> frozenset[str]:
    """Names of attributes that the Keras classes which a user's callback extends work with."""
    functions = (f for base in cls.__mro__ if base.__module__.startswith("keras.") for f in vars(base).values())
    return frozenset(name for f in functions if isinstance(f, types.FunctionType) for name in f.__code__.co_names)


def never_changes_arrays(callback: Any) -> bool:
    """Whether the arrays in its state are replaced, never written to, so that they need no copy."""
    return type(callback).__module__.startswith("keras.")
