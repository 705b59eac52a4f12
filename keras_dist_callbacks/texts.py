"""Texts of unknown origin, made fit for a terminal."""

from __future__ import annotations

import unicodedata


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


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
