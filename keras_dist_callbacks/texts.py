"""Texts of unknown origin, made fit for a terminal; warnings that name the user's line."""

from __future__ import annotations

import sys
import unicodedata
import warnings
from collections.abc import Sequence

_UNITS = ("KiB", "MiB", "GiB", "TiB")
_NOT_THE_USERS = {"keras_dist_callbacks", "keras", "tensorflow", "contextlib", "threading"}


def printable(text: str, keep: str = "") -> str:
    r"""`text` with everything that a terminal would obey, or not show, written as an escape such as `\x1b`.

    Control characters, line breaks, marks that turn the direction of writing, characters without width and halves
    of surrogate pairs; letters, signs and spaces of any language stay. A text that is shown already stays as it is.

    Args:
        text: Names or messages out of a store, or from another process.
        keep: Characters that stay although they would be escaped, such as `"\n"` in a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep or _is_space(c) else _escape(c) for c in text)


def first_few(texts: Sequence[str], most: int = 4) -> list[str]:
    """The first of many texts, and how many more there are."""
    more = len(texts) - most
    return [*texts[:most], *([f"and {more} more such differences"] if more > 0 else [])]


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the line of the user's that called Keras or this package, mostly that of `fit()`.

    Args:
        text: What to say; made fit for a terminal.
        category: The class of the warning.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_not_the_users(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(text), category, stacklevel=level)


def data_size(count: int) -> str:
    """A number of bytes, as `812 B` or `6.9 MiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def _is_not_the_users(module: str) -> bool:
    return module.partition(".")[0] in _NOT_THE_USERS


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
