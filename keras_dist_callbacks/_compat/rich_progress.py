"""The tasks of a `rich.progress.Progress`, which callbacks know by number and add again when an epoch begins."""

from __future__ import annotations

from typing import Any


def is_progress(value: Any) -> bool:
    """Whether an object is one, without importing rich."""
    return any(f"{base.__module__}.{base.__name__}" == "rich.progress.Progress" for base in type(value).__mro__)


def numbers(progress: Any) -> list[int]:
    """The number of the next task, and those of the tasks that are there."""
    return [int(progress._task_index), *map(int, progress._tasks)]


def renumber(progress: Any, saved: list[int]) -> None:
    """Gives the tasks the numbers that they had."""
    following, *wanted = saved
    with progress._lock:
        tasks = dict(zip(wanted, progress._tasks.values(), strict=False))
        for number, task in tasks.items():
            task.id = number
        progress._tasks, progress._task_index = tasks, following
