"""The groups of options, made of single options: for helpers of tests that pass any of them on."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_dist_callbacks.options import ShutdownOptions, WriteOptions

_WRITE = {field.name for field in dataclasses.fields(WriteOptions)}
_SHUTDOWN = {field.name for field in dataclasses.fields(ShutdownOptions)}


def grouped(**options: Any) -> dict[str, Any]:
    """Keyword arguments of `BackupAndRestore` or `Checkpointer`."""
    write = {name: options.pop(name) for name in _WRITE & options.keys()}
    shutdown = {name: options.pop(name) for name in _SHUTDOWN & options.keys()}
    if write:
        options["write_options"] = WriteOptions(**write)
    if shutdown:
        options["shutdown_options"] = ShutdownOptions(**shutdown)
    return options
