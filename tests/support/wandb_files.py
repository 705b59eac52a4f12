"""What wandb has written offline: its files are LevelDB logs of protobuf records."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

_PATIENCE = 30.0  # seconds
_BLOCK, _HEADER = 32768, 7  # bytes; the file's own header is as long as a record's


def rows(directory: Path) -> list[str]:
    """Each row of the newest process, a row that was logged twice twice.

    `wandb.finish()` returns some milliseconds before its service has written the last of them.
    """
    path = max(directory.glob("wandb/offline-run-*/*.wandb"))  # they are named by their time
    deadline = time.monotonic() + _PATIENCE
    while not (found := _rows_until_exit(path)):
        assert time.monotonic() < deadline, f"{path} has no record of its run's end"
        time.sleep(0.05)
    return found


def _rows_until_exit(path: Path) -> list[str]:
    """Nothing as long as the run's end is not in the file."""
    from wandb.proto import wandb_internal_pb2 as records

    found = []
    for content in _records(path.read_bytes()):
        record = records.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "exit":
            return found
        if record.WhichOneof("record_type") == "history":
            values = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            shown = {name: value for name, value in sorted(values.items()) if name.startswith("epoch/")}
            found.append(f"step {record.history.step.num}: {shown}")
    return []


def _records(content: bytes) -> Iterator[bytes]:
    at, parts = _HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size
        if kind in (1, 4):  # a complete record, or the last part of one
            yield parts
            parts = b""
