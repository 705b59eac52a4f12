"""Where a rehearsal puts what a script would save: the same place for the same directory, in a scratch directory.

Only what writes asks here, and what a script reads back to start from. `Storage.open` itself redirects nothing: it also
opens what is only read, such as the data of a run to compare with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.audit import watch_files
from keras_dist_callbacks.rehearsal.plan import Plan, plan_in_force

OPTIONS_VARIABLE = "KDC_STORAGE_OPTIONS"
"""Holds the options of a scratch directory in a store."""

_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 40


def place_of(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> tuple[str, Mapping[str, Any] | None]:
    """The directory to use instead of `url`, and its storage options; both as they are unless a plan is in force.

    Args:
        url: A directory that the script writes to, or starts from.
        options: Its storage options.

    Raises:
        ConfigError: The environment names a plan that is not in force.
    """
    given, plan = validation.path("the directory", url), plan_in_force()
    if plan is None:
        return given, options
    watch_files(plan)
    records.note(plan, "place")
    place, scratch = _absolute(given), _absolute(plan.scratch)
    if place == scratch or place.startswith(f"{scratch}/"):
        return given, options
    readable = _UNUSUAL.sub("-", place.rpartition("/")[2])[:_LONGEST_NAME].strip("-") or "root"
    digest = xxhash.xxh3_64_hexdigest(place.encode("utf-8", "surrogateescape"))
    return f"{plan.scratch.rstrip('/')}/{readable}-{digest}", _options(plan, given, options)


def _absolute(url: str) -> str:
    if url.startswith("file://") or "://" not in url:
        return os.path.normpath(Path(url.removeprefix("file://")).absolute())
    return url.rstrip("/")


def _options(plan: Plan, url: str, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A scratch directory has options of its own, or those of a directory in the same kind of store."""
    scheme = _scheme(plan.scratch)
    if not scheme:
        return None
    own = os.environ.get(OPTIONS_VARIABLE)
    if own:
        try:
            return validation.mapping(OPTIONS_VARIABLE, json.loads(own))
        except ValueError:
            raise ConfigError(f"{OPTIONS_VARIABLE} does not hold a JSON object") from None
    return options if _scheme(url) == scheme else None


def _scheme(url: str) -> str:
    return url.partition("://")[0] if "://" in url and not url.startswith("file://") else ""
