"""What the processes of a rehearsal tell the command: one JSON object per line, in a file for each process."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.rehearsal.plan import Plan

Record = dict[str, Any]


@dataclass
class _Files(Shared):
    """By directory, the descriptor of this process' file."""

    open: dict[str, int] = field(default_factory=dict)

    def in_child(self) -> _Files:
        """A forked process has a file of its own."""
        for descriptor in self.open.values():
            os.close(descriptor)
        return _Files()


def note(plan: Plan, event: str, **values: Any) -> None:
    """Writes one line, which a kill right afterwards does not lose.

    Args:
        plan: The plan in force.
        event: What has happened.
        **values: More about it; JSON.
    """
    files, directory = shared(_Files).open, plan.records
    if directory not in files:
        path = Path(directory) / f"{os.getpid()}.jsonl"
        files[directory] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    line = json.dumps({"event": event, "time": time.time(), **values}) + "\n"
    os.write(files[directory], line.encode())


def read(directory: Path) -> list[list[Record]]:
    """The records of each process, in their order; a last line that a kill has cut off is dropped."""
    written = [path.read_bytes().splitlines(keepends=True) for path in sorted(directory.glob("*.jsonl"))]
    return [[json.loads(line) for line in lines if line.endswith(b"\n")] for lines in written]
