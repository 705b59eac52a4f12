"""A rollback that is killed after some of its changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from keras_dist_callbacks.storage.storage import Storage

MUTATING = ("create", "delete")


class KilledError(BaseException):
    """Stands for SIGKILL."""


def killed_after(monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[[], None]) -> bool:
    """Whether an action was killed after so many of its changes."""
    left = itertools.count(count, -1)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(left) <= 0:
                raise KilledError
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in MUTATING:
            patch.setattr(Storage, name, counted(getattr(Storage, name)))
        try:
            act()
        except KilledError:
            return True
    return False
