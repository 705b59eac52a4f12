"""What the background thread spends its processor time on, save by save.

Looking at each part costs time itself, so only every other save is looked into; of the rest the whole is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.run.engine import committer
from keras_dist_callbacks.storage import direct_io

PARTS = ("hash", "copy", "write", "flush")
_MS = 1e3


@dataclass
class Watch:
    """Notes each backup that this process makes from now on.

    Attributes:
        made: Of each one the processor time of its thread in ms, whole and, of every other one, by part.
        complete: When the newest one was there to be restored, as `time.perf_counter` tells it; what is not needed any
            more is deleted after that.
    """

    made: list[dict[str, float]] = field(default_factory=list)
    complete: float = 0.0
    _spent: dict[str, float] | None = None

    def begin(self, *, by_part: bool = True) -> None:
        """Replaces what is looked at; it stays so until the process ends.

        Args:
            by_part: Look into parts.
        """
        commit, publish = committer.Committer.commit, BackupStore.commit

        def watched(writer: Any, *given: Any) -> None:
            self._spent = dict.fromkeys(PARTS, 0.0) if by_part and len(self.made) % 2 else None
            began = time.thread_time()
            commit(writer, *given)
            self.made.append({"whole": _rounded(time.thread_time() - began), **self._parts()})
            self._spent = None

        def published(store: BackupStore, manifest: Any) -> None:
            publish(store, manifest)
            self.complete = time.perf_counter()

        committer.Committer.commit = watched  # type: ignore[method-assign]
        BackupStore.commit = published  # type: ignore[method-assign]
        if not by_part:
            return
        committer.fingerprints = self._part("hash", committer.fingerprints)  # type: ignore[attr-defined]
        direct_io._Stream._copy = self._part("copy", direct_io._Stream._copy)  # type: ignore[method-assign]
        for name, part in {"pwrite": "write", "write": "write", "ftruncate": "write", "fsync": "flush"}.items():
            setattr(os, name, self._part(part, getattr(os, name)))

    def _parts(self) -> dict[str, float]:
        return {name: _rounded(seconds) for name, seconds in (self._spent or {}).items()}

    def _part(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            spent = self._spent
            if spent is None:
                return function(*given, **options)
            began = time.thread_time()
            try:
                return function(*given, **options)
            finally:
                spent[name] += time.thread_time() - began

        return call


def _rounded(seconds: float) -> float:
    return round(seconds * _MS, 3)
