"""What the runs of one process share: the one place where such state is kept.

A module that shares something declares a subclass of `Shared` and reaches its instance with `shared`, at each use:

    @dataclass
    class _Files(Shared):
        hashes: dict[str, str] = field(default_factory=dict)

    shared(_Files).hashes[name] = digest

The instance is made at the first use and kept for the life of the process. A forked child inherits a copy; a class that
holds what does not survive a fork, such as a lock or a thread, says in `in_child` what the child has instead. A test
puts in a fresh one with `monkeypatch.setitem(PARTS, _Files, _Files())`.

Pure caches (`functools.cache`) stay where they are.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, ClassVar, Self, TypeVar


class Shared:
    """Something of which a process has one.

    To make one has no effect elsewhere: of two that two threads make at once, one is dropped.

    Attributes:
        first_in_child: Whether a child replaces it before the others.
    """

    first_in_child: ClassVar[bool] = False

    def in_child(self) -> Self:
        """Returns what a forked child has instead; called there, in its only thread."""
        return self


_S = TypeVar("_S", bound=Shared)
PARTS: dict[type[Shared], Any] = {}


def shared(kind: type[_S]) -> _S:
    """This process' instance of a class.

    Args:
        kind: A class that is made without arguments.
    """
    found = PARTS.get(kind)
    part: _S = PARTS.setdefault(kind, kind()) if found is None else found
    return part


def _after_fork() -> None:
    with contextlib.ExitStack() as every:  # which calls all of them, even if one raises; the last one first
        for kind in sorted(PARTS, key=lambda kind: kind.first_in_child):
            every.callback(_replace, kind)


def _replace(kind: type[Shared]) -> None:
    inherited = PARTS[kind]
    part = PARTS[kind] = inherited.in_child()
    if part is not inherited:
        # It is kept: to free what it holds, such as tensors, could wait for a lock of a thread that is not here.
        part._inherited = inherited


os.register_at_fork(after_in_child=_after_fork)
