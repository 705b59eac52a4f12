"""`make versions`: kills, resumes and quick tests under each supported Python, TensorFlow and Keras.

Each combination gets a fresh environment, deleted afterwards, in which these run:

- example: the README's example of a cluster, killed and resumed on one worker and on two (`kill_and_resume.py`), with
  a wheel of this tree and `[tensorboard]` alone
- quick: the tests of `make quick`
- kills: one SIGKILL and resume under each strategy
- inputs: each kind of input, interrupted in its fourth epoch and resumed

What came of it is kept in `results.json` next to this script, in place of earlier results, and the table in
docs/limits.md is written from that. Fails if a check has failed or none was run. Only Python's own library is needed;
with `uv` on PATH it is faster than with pip.

    python tests/versions/matrix.py                           # python3.11, 3.12 and 3.13 on PATH
    python tests/versions/matrix.py /opt/py312/bin/python --pairs 2.18:3.8 2.21:newest
    python tests/versions/matrix.py --checks kills inputs
    python tests/versions/matrix.py --table                   # runs nothing: the table of what is kept
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
DOCUMENT = ROOT / "docs" / "limits.md"
TITLE = "## Supported versions"
PYTHONS = ("python3.11", "python3.12", "python3.13")
NEWEST = "newest"
# TensorFlow and Keras, each in its latest patch: the oldest Keras that both this package (3.8) and that TensorFlow
# take, and the newest one.
PAIRS = (
    "2.18:3.8",
    "2.18:newest",
    "2.19:3.8",
    "2.19:newest",
    "2.20:3.10",
    "2.20:newest",
    "2.21:3.12",
    "2.21:newest",
)
# What else a pair is installed with. The oldest one stands for the oldest NumPy, too.
CONSTRAINTS = {"2.18:3.8": ("numpy==1.26.*",)}
STRATEGIES = (
    "default-plain-1",
    "one device-plain-1",
    "mirrored-plain-1",
    "central storage-plain-1",
    "multi-worker-DATA-2",
)
_KILLS = "tests/stress/test_strategies.py::test_a_killed_job_ends_as_if_never_interrupted"
_INPUTS = "tests/state/inputs/test_position.py::test_an_input_continues_exactly_where_it_was"
TESTS = {  # pytest's arguments
    "quick": ("-m", "not (chaos or cluster or kill or process or slow)"),
    "kills": ("-m", "", *(f"{_KILLS}[{strategy}]" for strategy in STRATEGIES)),
    "inputs": ("-m", "", "-k", "epoch3", _INPUTS),
}
CHECKS = ("example", *TESTS)
OK, NO_WHEEL = "ok", "no wheel of TensorFlow"
_NO_WHEEL = ("no wheels with a matching", "no matching distribution", "no usable wheels")
TIMEOUT = 3600  # seconds for each command


@dataclass(frozen=True)
class Row:
    """One combination, and what came of it.

    Attributes:
        python: The interpreter's version.
        pair: TensorFlow and Keras, as in `PAIRS`.
        versions: Those that were installed.
        results: By check `OK` or what failed; by "install" why nothing could be run.
    """

    python: str
    pair: str
    versions: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What a later run replaces: the pair under a minor version of Python."""
        return self.pair, ".".join(self.python.split(".")[:2])

    @property
    def failed(self) -> list[str]:
        """What was run and has failed."""
        return [name for name, result in self.results.items() if result not in (OK, NO_WHEEL)]

    @property
    def cell(self) -> str:
        """What the table says: what has failed, else what has passed."""
        if self.failed:
            return f"fails: {', '.join(self.failed)}"
        if NO_WHEEL in self.results.values():
            return f"not tested: {NO_WHEEL}"
        passed = [check for check in CHECKS if check in self.results]
        return "all" if passed == list(CHECKS) else ", ".join(passed) or "not tested"

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items()) or self.pair
        return f"Python {self.python}, {versions}: {self.results}"


class CommandError(Exception):
    """A command failed; what it printed."""


class Environment:
    """A fresh environment of one interpreter, deleted at the end of the `with` block."""

    def __init__(self, interpreter: str, directory: Path) -> None:
        self.directory, self.python = directory, directory / "bin" / "python"
        self.uv = shutil.which("uv")
        run(
            [self.uv, "venv", "--python", interpreter, directory] if self.uv else [interpreter, "-m", "venv", directory]
        )

    def install(self, *packages: str | Path, dry: bool = False) -> None:
        """Installs packages; dry, only finds whether they can be."""
        pip = [self.uv, "pip"] if self.uv else [self.python, "-m", "pip"]
        options = ["--python", self.python] if self.uv else []
        # no sdist of TensorFlow exists, and one of another package would need a compiler
        run(
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
        return run([self.python, "-c", code]).strip()

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory)


def run(command: Sequence[str | Path | None], cwd: Path | None = None) -> str:
    """What a command printed, with the environment of a user."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TF_CONFIG")}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd or tempfile.gettempdir(),  # outside of the tree, whose package would be imported
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


def check_pair(interpreter: str, row: Row, wheel: Path, directory: Path, checks: Sequence[str], processes: int) -> Row:
    """Runs checks of one combination."""
    tensorflow, _, keras = row.pair.partition(":")
    logs = directory / f"{row.python}-{tensorflow}-{keras}"
    logs.mkdir()
    with Environment(interpreter, directory / f"{logs.name}-env") as environment:
        wanted = [f"tensorflow=={tensorflow}.*", *CONSTRAINTS.get(row.pair, ())]
        try:
            environment.install(wanted[0], dry=True)
        except CommandError as error:
            if not any(reason in str(error).lower() for reason in _NO_WHEEL):
                raise
            return replace(row, results={"install": NO_WHEEL})
        wanted.append("keras" if keras == NEWEST else f"keras=={keras}.*")
        environment.install(*wanted, f"{wheel}[tensorboard]")
        versions = {name: environment.version(name) for name in ("tensorflow", "keras", "numpy")}
        results = {"example": _example(environment, logs / "example")} if "example" in checks else {}
        environment.install(*(f"{name}=={version}" for name, version in versions.items()), f"{wheel}[test]")
        for check in [check for check in TESTS if check in checks]:
            command = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes)]
            results[check] = _tested([*command, *TESTS[check]], logs / f"{check}.log")
    return replace(row, versions=versions, results=results)


def _example(environment: Environment, directory: Path) -> str:
    """`OK`, or what failed."""
    script = Path(__file__).with_name("kill_and_resume.py")
    printed = run([environment.python, script, ROOT / "README.md", directory])
    found = dict(re.findall(r"^([12]) (.+)$", printed, re.MULTILINE))
    return "; ".join(found.get(n, printed[-200:]) for n in ("1", "2") if found.get(n) != OK) or OK


def _tested(command: Sequence[str | Path], log: Path) -> str:
    """`OK`, or pytest's last line; a log has all that it printed."""
    try:
        printed = run(command, cwd=ROOT)
    except CommandError as error:
        printed = str(error)
        log.write_text(printed, encoding="utf-8")
        return printed.strip().splitlines()[-1].strip("= ")
    log.write_text(printed, encoding="utf-8")
    return OK


def rows(
    interpreters: Sequence[str], pairs: Sequence[str], directory: Path, checks: Sequence[str], processes: int
) -> Iterator[Row]:
    """All rows, as they come."""
    wheel = build_wheel(directory / "wheel")
    for interpreter in interpreters:
        try:
            python = run([interpreter, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]).strip()
        except (CommandError, OSError):
            if interpreter not in PYTHONS:
                raise SystemExit(f"{interpreter}: there is no such interpreter") from None
            print(f"{interpreter} is not on PATH", flush=True)
            continue
        for pair in pairs:
            try:
                yield check_pair(interpreter, Row(python, pair), wheel, directory, checks, processes)
            except (CommandError, subprocess.TimeoutExpired) as error:
                lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
                yield Row(python, pair, results={"install": " ".join(lines[-3:])})


def build_wheel(directory: Path) -> Path:
    """A wheel of this tree."""
    uv = shutil.which("uv")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", directory, ROOT]
    run([uv, "build", "--wheel", "--out-dir", directory, ROOT] if uv else pip)
    (wheel,) = directory.glob("*.whl")
    return wheel


def kept() -> list[Row]:
    """The results of all runs, in the table's order."""
    if not RESULTS.exists():
        return []
    return [Row(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))]


def keep(row: Row) -> None:
    """Adds a row; of an earlier one of the same versions, what was not run now stays."""
    found = {one.key: one for one in kept()}
    earlier = found.get(row.key)
    if earlier is not None and earlier.versions == row.versions:
        row = replace(row, results=earlier.results | row.results)
    found[row.key] = row
    ordered = sorted(
        found.values(), key=lambda one: (PAIRS.index(one.pair) if one.pair in PAIRS else len(PAIRS), one.key)
    )
    RESULTS.write_text(json.dumps([asdict(one) for one in ordered], indent=1) + "\n", encoding="utf-8")


def table(found: Sequence[Row]) -> str:
    """What is known of each pair under each Python, as Markdown."""
    pythons = [name.removeprefix("python") for name in PYTHONS]
    lines = [f"| TensorFlow | Keras | NumPy | {' | '.join(f'Python {python}' for python in pythons)} |"]
    lines.append("|" + "---|" * (3 + len(pythons)))
    by_key = {row.key: row for row in found}
    for pair in dict.fromkeys((*PAIRS, *(row.pair for row in found))):
        of_pair = [by_key.get((pair, python), Row(python, pair)) for python in pythons]
        cells = []
        for name, otherwise in zip(("tensorflow", "keras", "numpy"), (*pair.split(":"), "-"), strict=True):
            cells.append(", ".join(dict.fromkeys(row.versions[name] for row in of_pair if row.versions)) or otherwise)
        cells += [row.cell for row in of_pair]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def documented() -> str:
    """The table as docs/limits.md has it."""
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"{TITLE}\n")[2].partition("\n## ")[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("|"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=PYTHONS, help="interpreters: names on PATH, or paths")
    parser.add_argument("--pairs", nargs="+", default=PAIRS, metavar="TF:KERAS", help="such as 2.20:3.12 2.21:newest")
    parser.add_argument("--checks", nargs="+", default=CHECKS, choices=CHECKS)
    parser.add_argument("--processes", type=int, default=2, help="of pytest")
    parser.add_argument("--directory", type=Path, default=ROOT / "runs" / "versions", help="logs; emptied first")
    parser.add_argument("--table", action="store_true", help="only write the table of what is kept")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = []
    if not arguments.table:
        shutil.rmtree(arguments.directory, ignore_errors=True)
        arguments.directory.mkdir(parents=True)
        directory, checks = arguments.directory.resolve(), arguments.checks
        for row in rows(arguments.pythons, arguments.pairs, directory, checks, arguments.processes):
            print(f"{time.monotonic() - began:5.0f} s  {row}", flush=True)
            keep(row)
            found.append(row)
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(text.replace(documented(), table(kept())), encoding="utf-8")
    print(f"\n{documented()}")
    if arguments.table:
        return 0
    failed = sum(bool(row.failed) for row in found)
    print(f"\n{len(found)} combinations, {failed} failed; {time.monotonic() - began:.0f} s")
    return 0 if any(row.versions for row in found) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
