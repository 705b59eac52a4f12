"""Workers of one process, and what they say to each other instead of through the coordination service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from keras_dist_callbacks.cluster import messaging

_SLICE = 0.1  # seconds between two looks at whether to give up


class Service:
    """Holds values; as there, one can be set once, until it is deleted.

    Attributes:
        values: By key; empty when nothing is left behind.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        monkeypatch.setattr(messaging, "publish", self.publish)
        monkeypatch.setattr(messaging, "publish_once", self.publish_once)
        monkeypatch.setattr(messaging, "fetch", self.fetch)
        monkeypatch.setattr(messaging, "delete_key", lambda key, chunks=1: self.values.pop(key, None))

    def publish(self, key: str, value: bytes, timeout: float) -> int:
        with self._changed:
            assert key not in self.values, "a key can be set once"
            return self._set(key, value)

    def publish_once(self, key: str, value: bytes, timeout: float) -> bool:
        with self._changed:
            return key not in self.values and bool(self._set(key, value))

    def _set(self, key: str, value: bytes) -> int:
        self.values[key] = value
        self._changed.notify_all()
        return 1

    def fetch(self, key: str, timeout: float, give_up: Callable[[], bool] = lambda: False) -> bytes | None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while key not in self.values and not give_up() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, _SLICE))
            return None if give_up() else self.values.get(key)

    def is_set(self, key: str, seconds: float = 10.0) -> bool:
        """Whether a key gets a value in time."""
        return self.fetch(key, seconds) is not None
