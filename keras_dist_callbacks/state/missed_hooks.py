"""What callbacks did not do around a batch, because an exception came in between."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType
from typing import Any

import keras

from keras_dist_callbacks._compat.keras_callbacks import known
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.callback_state import may_keep_state

_BEGIN, _END = ("on_train_batch_begin", "on_batch_begin"), ("on_train_batch_end", "on_batch_end")
_STORES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR")


def missed_hooks(error: BaseException, callbacks: Sequence[Any]) -> list[Finding]:
    """Returns which callbacks got a batch's begin, or not its end, before an exception, where that may matter.

    Args:
        error: It came out of a callback's hook around a batch, or from elsewhere.
        callbacks: All of the fit, in their order.
    """
    trace = error.__traceback__
    while trace is not None:
        local, name = trace.tb_frame.f_locals, trace.tb_frame.f_code.co_name.lstrip("_")
        if isinstance(local.get("self"), keras.callbacks.CallbackList) and name in (*_BEGIN, *_END):
            place = next((n for n, callback in enumerate(callbacks) if callback is local.get("callback")), None)
            if place is not None:
                hooks, others = (_BEGIN, callbacks[:place]) if name in _BEGIN else (_END, callbacks[place + 1 :])
                return [
                    *_missed(callbacks[place], hooks, is_cut=True),  # how far it came is not known
                    *(finding for callback in others for finding in _missed(callback, hooks, is_cut=False)),
                ]
        trace = trace.tb_next
    return []


def _missed(callback: Any, hooks: tuple[str, str], *, is_cut: bool) -> list[Finding]:
    base = keras.callbacks.Callback
    own = {name: hook for name in hooks if (hook := static.attribute(callback, name)) is not getattr(base, name)}
    is_shown_only = type(callback) is keras.callbacks.ProgbarLogger
    if (
        not own
        or is_shown_only
        or not (may_keep_state(callback) or isinstance(callback, keras.callbacks.LambdaCallback))
    ):
        return []
    changes = known(callback) is not None or any(_stores(static.attribute(hook, "__code__")) for hook in own.values())
    code = "missed-hooks" if changes and not is_cut else "cut-hooks"
    return [Finding(code, detail=(f"{type(callback).__name__}.{next(iter(own))}",))]


def _stores(code: CodeType | None) -> bool:
    """Returns whether a function, or one within it, assigns to what outlives a call."""
    if code is None:
        return True
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(one.opname in _STORES for one in dis.get_instructions(code)) or any(map(_stores, inner))
