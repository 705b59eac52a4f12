"""File names with placeholders, tried out before training: a mistake would show only when the first file is saved."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Mapping
from typing import Any

from keras_dist_callbacks.base.errors import ConfigError

_COUNTED: dict[str, Any] = {"epoch": 1, "batch": 1}
_TRIED = range(1, 130)
_OF_LOGS = (0.5, 1, "text")  # what a value that training reports, or a callback adds, may be
_SIMILAR = 0.85


def example_name(template: str, shown: str, *, has_batch: bool, counted: Mapping[str, Any] = _COUNTED) -> str:
    """Returns a name as Keras makes it from a template.

    A placeholder that is not like those of `epoch` and `batch` may be the name of a value that training reports, or
    that another callback adds: which there are is known later.

    Args:
        template: The last part of a `filepath`, as `string.Formatter` can parse it.
        shown: All of it, without credentials.
        has_batch: Whether files are saved after batches, so that `{batch}` has a value.
        counted: Values of `epoch` and `batch`. Defaults to 1 each.

    Raises:
        ConfigError: No value can be put into a placeholder.
    """
    parts = []
    for text, field, spec, conversion in string.Formatter().parse(template):
        parts.append(text)
        if field is not None:
            name = _name_of(field)
            _require_known(name, shown, has_batch=has_batch)
            parts.append(_formatted(name, field, spec or "", conversion, shown, counted))
    return "".join(parts)


def names_in(template: str) -> list[str]:
    """Returns the names of the values that a template needs, but for those that are counted."""
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    return [name for name in dict.fromkeys(map(_name_of, fields)) if name not in _COUNTED]


def _name_of(field: str) -> str:
    return re.split(r"[.\[]", field)[0]


def require_distinct_names(template: str, shown: str, *, has_batch: bool) -> None:
    """Checks that no two files of a run can have one name, whatever is reported meanwhile.

    Args:
        template: As in `example_name`.
        shown: As there.
        has_batch: As there.

    Raises:
        ConfigError: Two may.
    """
    for name in ("epoch", "batch") if has_batch else ("epoch",):
        names = {example_name(template, shown, has_batch=has_batch, counted=_COUNTED | {name: n}) for n in _TRIED}
        if len(names) < len(_TRIED):
            raise ConfigError(
                f"filepath={shown!r} may give two of the files that are to be kept one name: add {{{name}:04d}} to it, "
                "or keep one file, with max_to_keep=1 or keep_best=1 alone"
            )


def _require_known(name: str, shown: str, *, has_batch: bool) -> None:
    if name == "" or name.isdigit():
        raise ConfigError(f"filepath={shown!r}: placeholders need names, such as {{epoch:04d}} or {{val_loss:.3f}}")
    if name == "batch" and not has_batch:
        raise ConfigError(
            f"filepath={shown!r}: {{batch}} has a value only where save_freq is a number of batches; with "
            "save_freq='epoch' use {epoch}"
        )
    close = difflib.get_close_matches(name.strip().lower(), _COUNTED, n=1, cutoff=_SIMILAR)
    if close and name != close[0]:
        raise ConfigError(
            f"filepath={shown!r} has the unknown placeholder {{{name}}}: did you mean {{{close[0]}}}? Others are "
            "names of metrics, such as {val_loss:.3f}"
        )


def _formatted(name: str, field: str, spec: str, conversion: str | None, shown: str, counted: Mapping[str, Any]) -> str:
    if "{" in spec or (name != field and name not in _COUNTED):
        return ""  # what will be there depends on a value that is known later
    reason: Any = None
    for value in (counted[name],) if name in counted else _OF_LOGS:
        try:
            found, _ = string.Formatter().get_field(field, (), {name: value})
            return format(string.Formatter().convert_field(found, conversion), spec)
        except (AttributeError, TypeError, ValueError) as error:
            reason = reason or error
    written = f"{field}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}"
    raise ConfigError(f"filepath={shown!r}: no value can be written as {{{written}}}: {reason}")
