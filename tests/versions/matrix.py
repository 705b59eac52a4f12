"""`make versions`: the README's first example under each supported Python, TensorFlow and Keras.

Each combination gets a fresh environment with a wheel of this tree and `[tensorboard]`, in which
`kill_and_resume.py` runs; it is deleted afterwards. Prints a table; fails if a combination has failed or none
was run. Only Python's own library is needed; with `uv` on PATH it is faster than with pip.

    python tests/versions/matrix.py                           # python3.11, 3.12 and 3.13 on PATH
    python tests/versions/matrix.py /opt/py312/bin/python --pairs 2.18:3.8 2.21:newest
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("python3.11", "python3.12", "python3.13")
NEWEST = "newest"
# TensorFlow and Keras, each in its latest patch: the oldest Keras that the oldest and the newest TensorFlow take (this
# package requires 3.8, TensorFlow 2.21 requires 3.12), and the newest Keras with each TensorFlow.
PAIRS = ("2.18:3.8", "2.18:newest", "2.19:newest", "2.20:newest", "2.21:3.12", "2.21:newest")
NO_WHEEL = ("no wheels with a matching", "no matching distribution", "no usable wheels")
TIMEOUT = 1800  # seconds for each command


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    python: str
    tensorflow: str
    keras: str
    workers: str
    result: str

    def __str__(self) -> str:
        return f"{self.python:8} {self.tensorflow:11} {self.keras:8} {self.workers:8} {self.result}"


class CommandError(Exception):
    """A command failed; what it printed."""


class Environment:
    """A fresh environment of one interpreter, deleted at the end of the `with` block."""

    def __init__(self, interpreter: str, directory: Path) -> None:
        self.directory, self.python = directory, directory / "bin" / "python"
        self.uv = shutil.which("uv")
        _run(
            [self.uv, "venv", "--python", interpreter, directory] if self.uv else [interpreter, "-m", "venv", directory]
        )

    def install(self, *packages: str | Path, dry: bool = False) -> None:
        """Installs packages; dry, only finds whether they can be."""
        pip = [self.uv, "pip"] if self.uv else [self.python, "-m", "pip"]
        options = ["--python", self.python] if self.uv else []
        # no sdist of TensorFlow exists, and one of another package would need a compiler
        _run(
            [
                *pip,
                "install",
                *options,
                "--only-binary",
                ":all:",
                *(["--dry-run", "--no-deps"] if dry else []),
                *packages,
            ]
        )

    def version(self, package: str) -> str:
        """The installed version of a package."""
        code = f"import importlib.metadata as found; print(found.version({package!r}))"
        return _run([self.python, "-c", code]).strip()

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory)


def _run(command: Sequence[str | Path | None]) -> str:
    """What a command printed, with the environment of a user."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TF_CONFIG")}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=tempfile.gettempdir(),  # not in the tree, whose package would be imported
        env=inherited,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if result.returncode:
        raise CommandError(result.stdout)
    return result.stdout


def pair_rows(interpreter: str, python: str, pair: str, wheel: Path, directory: Path) -> Iterator[Row]:
    """The rows of one Python, TensorFlow and Keras."""
    tensorflow, _, keras = pair.partition(":")
    name = f"{python}-{tensorflow}-{keras}"
    with Environment(interpreter, directory / f"{name}-env") as environment:
        try:
            environment.install(f"tensorflow=={tensorflow}.*", dry=True)
        except CommandError as error:
            if not any(reason in str(error).lower() for reason in NO_WHEEL):
                raise
            yield Row(python, tensorflow, keras, "-", "skipped: TensorFlow has no wheel for this Python")
            return
        wanted = "keras" if keras == NEWEST else f"keras=={keras}.*"
        environment.install(f"tensorflow=={tensorflow}.*", wanted, f"{wheel}[tensorboard]")
        versions = environment.version("tensorflow"), environment.version("keras")
        script = Path(__file__).with_name("kill_and_resume.py")
        printed = _run([environment.python, script, ROOT / "README.md", directory / name])
        results = dict(re.findall(r"^([12]) (.+)$", printed, re.MULTILINE))
        for workers in ("1", "2"):
            yield Row(python, *versions, workers, results.get(workers, f"failed: it printed {printed[-200:]!r}"))


def rows(interpreters: Sequence[str], pairs: Sequence[str], directory: Path) -> Iterator[Row]:
    """All rows, as they come."""
    wheel = build_wheel(directory / "wheel")
    for interpreter in interpreters:
        try:
            python = _run([interpreter, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]).strip()
        except (CommandError, OSError):
            outcome = "skipped" if interpreter in PYTHONS else "failed"
            yield Row(interpreter, "-", "-", "-", f"{outcome}: there is no such interpreter")
            continue
        for pair in pairs:
            try:
                yield from pair_rows(interpreter, python, pair, wheel, directory)
            except (CommandError, subprocess.TimeoutExpired) as error:
                lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
                yield Row(python, *pair.split(":"), "-", f"failed: {' '.join(lines[-3:])}")


def build_wheel(directory: Path) -> Path:
    """A wheel of this tree."""
    uv = shutil.which("uv")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", directory, ROOT]
    _run([uv, "build", "--wheel", "--out-dir", directory, ROOT] if uv else pip)
    (wheel,) = directory.glob("*.whl")
    return wheel


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=PYTHONS, help="interpreters: names on PATH, or paths")
    parser.add_argument("--pairs", nargs="+", default=PAIRS, metavar="TF:KERAS", help="such as 2.20:3.12 2.21:newest")
    parser.add_argument("--directory", type=Path, default=ROOT / "runs" / "versions", help="logs; emptied first")
    arguments = parser.parse_args()
    began = time.monotonic()
    shutil.rmtree(arguments.directory, ignore_errors=True)
    arguments.directory.mkdir(parents=True)
    found = []
    for row in rows(arguments.pythons, arguments.pairs, arguments.directory.resolve()):
        print(f"{time.monotonic() - began:5.0f} s  {row}", flush=True)
        found.append(row)
    print(f"\n{Row('Python', 'TensorFlow', 'Keras', 'workers', 'result')}", *found, sep="\n")
    passed, skipped = (sum(row.result.startswith(word) for row in found) for word in ("ok", "skipped"))
    failed = len(found) - passed - skipped
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped; {time.monotonic() - began:.0f} s")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
