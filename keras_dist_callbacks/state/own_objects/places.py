"""Where values are bound that the user's code names, and the paths under which backups know places and objects.

A path is `root/segment/segment`. The place `callback Ema()/rates` is the attribute; `callback Ema()/rates/`, with a
slash at its end, is what the list holds that the script has put there.
"""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import numpy as np

from keras_dist_callbacks._compat import library_state
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_values import segment

_HIDDEN = ("", "self", "function", "func", "python_function", "__func__", "__wrapped__", "fget", "fset")


class Place(NamedTuple):
    """Where a value is bound.

    Attributes:
        kind: `"attribute"`, `"global"`, `"item"`, `"cell"`, `"default"`, `"magnitude"`: an attribute of which only
            the absolute value counts, or `"option"`: one that is None where nothing was set.
        owner: The object, namespace, dict, cell or function.
        key: Its name, key or index there.
    """

    kind: str
    owner: Any
    key: Any = None

    def bind(self, value: Any) -> None:
        """Puts a value there."""
        if self.kind == "magnitude":
            value = np.copysign(value, static.attribute(self.owner, self.key)).item()
        if self.kind in ("attribute", "magnitude", "option"):
            library_state.set_attribute(self.owner, self.key, value)
        elif self.kind == "cell":
            self.owner.cell_contents = value
        elif self.kind == "default":
            defaults = list(self.owner.__defaults__)
            defaults[self.key] = value
            self.owner.__defaults__ = tuple(defaults)
        else:
            self.owner[self.key] = value

    @property
    def is_bound(self) -> bool:
        """Whether anything is there: code may delete an attribute, a global or a variable of an outer function."""
        if self.kind in ("attribute", "magnitude"):
            return static.holds(self.owner, self.key)
        if self.kind == "option":
            return static.attribute(self.owner, self.key) is not None
        if self.kind == "cell":
            return bool(self.owner != types.CellType())
        return self.kind == "default" or self.key in self.owner

    def unbind(self) -> None:
        """Takes away what is there."""
        if self.kind in ("attribute", "magnitude"):
            delattr(self.owner, self.key)
        elif self.kind == "option":
            library_state.set_attribute(self.owner, self.key, None)
        elif self.kind == "cell":
            del self.owner.cell_contents
        else:
            del self.owner[self.key]


def join(path: str, *segments: object) -> str:
    """Returns a path below another one."""
    return "/".join([path, *map(segment, segments)])


def parent_of(path: str) -> tuple[str, str]:
    """Returns the path above, and the last segment."""
    above, _, last = path.rstrip("/").rpartition("/")
    return above, last.replace("~1", "/").replace("~0", "~")


def with_parents(path: str) -> list[str]:
    """Returns a path and all above it."""
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def words(path: str) -> tuple[str, str]:
    """Returns a path as its owner and its place there, such as `("the callback Ema", "rates")`."""
    root, *segments = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
    shown = ".".join(_in_words(part) for part in segments if part not in _HIDDEN)
    kind, _, name = root.partition(" ")
    if kind == "callback":
        return f"the callback {name.removesuffix('()')}", shown
    if kind == "class":
        return f"the class {name.rpartition('.')[2]}", shown
    return f"the {root}", shown


def _in_words(part: str) -> str:
    kind, _, name = part.partition(" ")
    if kind in ("closure", "default") and name:
        return f"{name} ({kind})"
    return "learning_rate" if part == "_learning_rate" else part.removeprefix(".")  # what hangs on a list, say
