"""The tables: each module has `cases`, `measure` (in a process of its own) and `summarise`."""

from __future__ import annotations

from types import ModuleType

from benchmarks.tables import all_in, blocking, dispatch, frozen, memory, restore, small, thread, write

TABLES: dict[str, ModuleType] = {
    "blocking": blocking,
    "all_in": all_in,
    "thread": thread,
    "small": small,
    "restore": restore,
    "dispatch": dispatch,
    "write": write,
    "frozen": frozen,
    "memory": memory,
}
"""By the name that `--only` takes, in the order of the report."""
