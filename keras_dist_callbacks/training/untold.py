"""Which callbacks an exception in one of them kept from hearing of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_dist_callbacks.training.callback_state import may_keep_state

_BEGIN, _END = ("on_train_batch_begin", "on_batch_begin"), ("on_train_batch_end", "on_batch_end")


def untold(error: BaseException, callbacks: Sequence[Any]) -> list[str]:
    """Names of callbacks with a state that were told of a batch's begin, or not of its end, before an exception.

    Args:
        error: It came out of a callback's hook around a batch, or from elsewhere.
        callbacks: All of the fit, in their order.
    """
    trace = error.__traceback__
    while trace is not None:
        local, hook = trace.tb_frame.f_locals, trace.tb_frame.f_code.co_name.lstrip("_")
        if isinstance(local.get("self"), keras.callbacks.CallbackList) and hook in (*_BEGIN, *_END):
            place = next((n for n, callback in enumerate(callbacks) if callback is local.get("callback")), None)
            if place is not None:
                hooks, found = (_BEGIN, callbacks[: place + 1]) if hook in _BEGIN else (_END, callbacks[place:])
                return [type(c).__name__ for c in found if may_keep_state(c) and _has_own(c, hooks)]
        trace = trace.tb_next
    return []


def _has_own(callback: Any, hooks: tuple[str, str]) -> bool:
    base = keras.callbacks.Callback
    return any(getattr(type(callback), hook, None) is not getattr(base, hook) for hook in hooks)
