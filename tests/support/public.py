"""The names that users import."""

from __future__ import annotations

import operator
from typing import Any

import keras_dist_callbacks as kdc

NAMES = sorted(
    [
        *(name for name in kdc.__all__ if name not in {"__version__", "advanced"}),
        *(f"advanced.{name}" for name in kdc.advanced.__all__),
    ]
)


def find(name: str) -> Any:
    """What is imported by it."""
    return operator.attrgetter(name)(kdc)


def is_result(name: str) -> bool:
    """Whether it is what users get and do not make: an exception, or a record of what happened."""
    found = find(name)
    return name in {"Restored", "Event"} or (isinstance(found, type) and issubclass(found, Exception))
