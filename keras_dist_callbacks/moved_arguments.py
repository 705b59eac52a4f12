"""A misspelt argument, or one that is given in another place, is a `TypeError` that names the right place."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_C = TypeVar("_C", bound=Callable[..., Any])

OF_WRITE_OPTIONS = {
    name: f"write_options=kdc.WriteOptions({name}={{0}})"
    for name in (
        "retry",
        "fsync",
        "max_bytes_per_second",
        "max_failed_saves",
        "when_busy",
        "max_held_bytes",
        "max_local_state",
    )
}
OF_SHUTDOWN_OPTIONS = {
    "save_before_preemption": "shutdown_options=kdc.ShutdownOptions(save_before_preemption={0})",
    "preemption_signals": "shutdown_options=kdc.ShutdownOptions(signals={0})",
    "signals": "shutdown_options=kdc.ShutdownOptions(signals={0})",
    "preemption_notice": "shutdown_options=kdc.ShutdownOptions(notice={0})",
    "notice": "shutdown_options=kdc.ShutdownOptions(notice={0})",
    "grace_period": "shutdown_options=kdc.ShutdownOptions(grace_period={0})",
    "save_on_exception": "shutdown_options=kdc.ShutdownOptions(save_on_exception={0})",
}
OF_STRATEGY = {
    name: f"kdc.make_strategy({name}={{0}}), or KDC_{name.upper()} in the environment"
    for name in ("startup_timeout", "heartbeat_timeout", "peer_timeout", "timeout")
}
OF_READERS = {"write_options": "retry=kdc.RetryPolicy(...); the other options are about writing"}


def explains_arguments(moved: Mapping[str, str] | None = None) -> Callable[[_C], _C]:
    """Decorates a function, or a class for its constructor; its signature stays as it is.

    Args:
        moved: For arguments that are given in another place: that place, with `{0}` where the value goes.
    """

    def decorate(target: _C) -> _C:
        call: Callable[..., Any] = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        known = [name for name in inspect.signature(call).parameters if name != "self"]

        @functools.wraps(call)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    raise TypeError(_advice(target.__name__, name, kwargs[name], known, moved or {}))
            return call(*args, **kwargs)

        if not isinstance(target, type):
            return checked  # type: ignore[return-value]
        target.__init__ = checked  # type: ignore[misc]
        return target

    return decorate


def _advice(owner: str, name: str, value: Any, known: list[str], moved: Mapping[str, str]) -> str:
    text = f"{owner}() has no argument {name!r}"
    if name in moved:
        shown = repr(value) if isinstance(value, bool | int | float | str | None) else "..."
        return f"{text}: give {moved[name].format(shown)}"
    close = difflib.get_close_matches(name, [*known, *moved], n=1)
    if close and close[0] in moved:
        return f"{text}: give {moved[close[0]].format('...')}"
    return f"{text}: did you mean {close[0]!r}?" if close else f"{text}; it has {', '.join(known)}"
