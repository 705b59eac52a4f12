"""Making the file system that a URL names, whatever its client raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec

from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.storage.redaction import Redactor, check_place, redact
from keras_dist_callbacks.storage.store_errors import refusal


def _protocol_of(url: str) -> str:
    return url.split("://", 1)[0].split("::")[-1] if "://" in url else "file"


def open_filesystem(url: str, options: Mapping[str, Any], redactor: Redactor) -> tuple[Any, str]:
    """The file system and the path in it; nothing is contacted yet.

    Raises:
        ConfigError: The protocol is unknown, its package is missing, or its client does not take the options.
    """
    check_place(url)
    protocol = _protocol_of(url)
    try:
        cache = {} if protocol == "file" else {"use_listings_cache": False}
        fs, root = fsspec.core.url_to_fs(url, **cache, **options)
    except Exception as error:  # noqa: BLE001 - clients look at their options here, each with errors of its own
        why = refusal(protocol, error, redactor.reason(error))
        failure = redactor.caused(ConfigError(f"{redact(url)!r} {why}"), error)
    else:
        return fs, str(root)
    raise failure
