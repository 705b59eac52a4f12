"""Modules whose names are loaded from elsewhere when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def exports(namespace: dict[str, Any], home: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a module's `__getattr__` and `__dir__`; type checkers read its imports under `TYPE_CHECKING` instead.

    Args:
        namespace: The module's `globals()`.
        home: Each public name, and the module that defines it, or that it is.
    """
    module = namespace["__name__"]

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = importlib.import_module(home[name])
        value = found if home[name] == f"{module}.{name}" else getattr(found, name)
        namespace[name] = value
        return value

    return load, lambda: sorted(namespace["__all__"])
