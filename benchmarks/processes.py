"""Each measurement in a process of its own, so that none leaves memory, threads or caches to the next."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import machine
from benchmarks.config import Case, Config, Outcome

_TIMEOUT_SECONDS = 900
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore"}
_LINES_OF_ERROR = 15


class MeasurementError(RuntimeError):
    """A measurement ended with an error.

    Args:
        ending: How, in one line without paths.
        last_lines: What it printed last.
    """

    def __init__(self, ending: str, last_lines: str) -> None:
        super().__init__(ending)
        self.last_lines = last_lines


def cases(table: str, config: Config) -> list[Case]:
    """What a table measures."""
    from benchmarks.tables import TABLES

    found: list[Case] = TABLES[table].cases(config)
    return found


def run(table: str, case: Case, scratch: Path | None) -> Outcome:
    """Measures one case of a table.

    Raises:
        MeasurementError: It failed.
    """
    with tempfile.TemporaryDirectory(dir=scratch, prefix="kdc-bench-") as directory:
        result = Path(directory) / "result.json"
        code = machine.measured_code()
        command = [sys.executable, "-m", "benchmarks.processes", table, json.dumps(case), str(result)]
        try:
            done = subprocess.run(  # noqa: S603 - this package itself
                command,
                env={**os.environ, **_QUIET, **case.get("environment", {})},
                cwd=Path(__file__).parent.parent,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"it took more than {_TIMEOUT_SECONDS} s", "") from None
        if not result.exists():
            ending = _ending(done.returncode, done.stderr)
            if "attempt" in case:
                return {"case": case, "failed": ending}
            raise MeasurementError(ending, "\n".join(done.stderr.splitlines()[-_LINES_OF_ERROR:]))
        mixed = machine.measured_code() != code
        return {"case": case, "code": "changed meanwhile" if mixed else code, **json.loads(result.read_text())}


def _ending(code: int, errors: str) -> str:
    """How a process ended, with the last line that names an error; without paths."""
    lines = [line.strip() for line in errors.splitlines() if "Error" in line or "Check failed" in line]
    named = re.sub(r"\S*/", "", lines[-1])[:200].replace("|", " ") if lines else "no message"
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the process failed ({how}): {named}"


def _main(table: str, case: str, result: str) -> None:
    from benchmarks.tables import TABLES

    directory = Path(result).parent / "saves"
    directory.mkdir()
    found = TABLES[table].measure(directory, **json.loads(case))
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])
