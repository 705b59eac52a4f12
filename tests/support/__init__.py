"""What tests share: models, workloads of real processes, stores; no test lives here."""

import dataclasses
import importlib.metadata
from pathlib import Path
from typing import Any

from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.base.process_runs import ProcessRuns

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
KERAS = tuple(int(number) for number in importlib.metadata.version("keras").split(".")[:2])  # for what older ones lack


def forget_runs() -> None:
    """What follows knows nothing of the fits before it, as in another process."""
    PARTS.pop(ProcessRuns, None)


def files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, with its content."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def refuse_plain_text(case: Any) -> None:
    """The `__post_init__` of a case: a string in place of several would be taken for its characters."""
    for field in dataclasses.fields(case):
        value = getattr(case, field.name)
        if isinstance(value, str) and str(field.type).startswith(("tuple[", "list[", "Sequence[")):
            raise TypeError(f"{field.name} is {value!r}: a comma is missing, ({value!r},)")
