"""Runs the blocks of a page of the documentation, as sybil finds them, in an empty directory.

Each block finds what an ended run has left in `runs/` and in `gs://bucket/run1/`, which is a directory; one that trains
finds neither. A page with files of its own has what these make, and nothing else.

python     runs, in one namespace for the page, which begins with the names of `example_names`; or is a file, if it
           begins with a comment that is the name of one, such as `# train.py`
shell      `bash -n`; commands of `kdc` run, and all that follow the first file of a page
text       of a page with files of its own: each line was printed by the last commands; numbers may differ
console    a terminal that was copied; nothing is done
json, toml, yaml    are read; manifests of Kubernetes are validated

`<!-- skip: next "the reason" -->` is sybil's: the block after it does nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import SkipTest

import typer
import yaml
from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer

from keras_dist_callbacks.cli.app import app
from tests.support import ROOT, cli_backups, example_names, forget_runs, manifests
from tests.support.processes import worker_processes

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
STARTERS = {"launch", "run", "rehearse", "export"}  # what starts processes, and takes seconds
KILLED = (-9, 137)
PROGRAM = re.compile(r"((?:\w+=\S+ )*)python (.*)")
FILE = re.compile(r"# ([\w/]+\.\w+)\n")


class Page:
    """A page, and what its blocks have written and printed so far.

    Args:
        path: The page.
        ended: What the ended run has left.
        complete: Whether commands that start processes run too; else only their usage is checked. And whether the
            page's own programs are fresh interpreters, as a reader's.
    """

    def __init__(self, path: Path, ended: Path, *, complete: bool) -> None:
        self.ended, self.complete = ended, complete
        self.files: set[str] = set()
        self.printed = ""
        self.skipped: list[str] = []
        self.document = Sybil(parsers=[SkipParser(), self._blocks]).parse(path)

    def run(self) -> None:
        self.document.namespace.update(example_names.names())
        for example in self.document.examples():
            try:
                example.evaluate()
            except SkipTest as reason:
                self.skipped.append(str(reason))

    def _blocks(self, document: Document) -> Iterator[Region]:
        known: dict[str, Callable[[Example], str | None]] = {
            "console": lambda example: None,
            "json": lambda example: None if json.loads(example.parsed) else "empty",
            "python": self._python,
            "shell": self._shell,
            "text": self._text,
            "toml": lambda example: None if tomllib.loads(example.parsed) else "empty",
            "yaml": self._yaml,
        }
        for block in FencedCodeBlockLexer(language=".*")(document):
            language = block.lexemes["language"]
            if not language.startswith("{"):  # a directive of MyST
                assert language in known, f"{document.path}: a block with the language {language!r}"
                block.parsed, block.evaluator = block.lexemes["source"], known[language]
                yield block

    def _begin(self, *, trains: bool) -> None:
        if not self.files:
            forget_runs()
            for place in ("runs", "bucket/run1"):
                shutil.rmtree(place, ignore_errors=True)
                if not trains:
                    shutil.copytree(self.ended / "run1", place)

    def _python(self, example: Example) -> None:
        if file := FILE.match(example.parsed):
            Path(file[1]).write_text(example.parsed, encoding="utf-8")
            self.files.add(file[1])
        else:
            self._begin(trains=re.search(r"\.fit\(|Checkpointer\(", example.parsed) is not None)
            code = "\n" * example.line + example_names.shortened(example.parsed)  # so that errors name the page's line
            exec(compile(code, example.path, "exec"), example.namespace)  # noqa: S102 - our own documentation

    def _shell(self, example: Example) -> None:
        subprocess.run(["bash", "-n"], input=example.parsed, text=True, check=True)
        self.printed = ""
        self._begin(trains=False)
        for line in commands(example.parsed):
            if self.files:
                program = PROGRAM.fullmatch(line)
                self._fork(program[1].split(), program[2].split()) if program and not self.complete else self._bash(
                    line
                )
            elif line.startswith("kdc "):
                self._kdc(example_names.shortened(line))

    def _kdc(self, line: str) -> None:
        words = shlex.split(line)[1:]
        if words[0] not in STARTERS:
            result = cli_backups.kdc(*words, input="y\n")
            assert result.exit_code == 0, f"{line}\n{result.output}"
        elif self.complete:
            self._bash(line)
        else:
            check_usage(words)

    def _bash(self, line: str) -> None:
        tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": tools, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        command = ["bash", "-c", line]
        ended = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        self._ended(line, ended.returncode, ended.stdout)

    def _fork(self, variables: list[str], program: list[str]) -> None:
        """As `_bash`, without the seconds of TensorFlow's import."""
        with worker_processes([sys.executable, *program], 1, Path("logs")) as process:
            process.start(env=dict(variable.split("=") for variable in variables))
            self._ended(" ".join(program), process.wait(200)[0], process.log(0))

    def _ended(self, line: str, code: int, printed: str) -> None:
        assert code in (0, *KILLED), f"{line}\n{printed}"
        self.printed += printed.replace(f"{Path.cwd()}/", "") + "Killed\n" * (code in KILLED)

    def _text(self, example: Example) -> str | None:
        printed = without_numbers(self.printed)
        shown = without_numbers(example.parsed) if self.files else []
        missing = [line for line in shown if not any(is_shown(line, each) for each in printed)]
        return f"not printed: {missing}; but:\n{self.printed}" if missing else None

    def _yaml(self, example: Example) -> None:
        for document in yaml.safe_load_all(example.parsed):
            manifests.validate(document)


def without_numbers(text: str) -> list[str]:
    """The lines of what was printed; each number and each time is 0."""
    number = r"\d+(?:\.\d+)?(?:e[-+]\d+)?"
    return [
        re.sub(rf"{number}(?: ?(?:h|min|[mu]?s)\b)?(?: {number} (?:min|s)\b)?", "0", line.strip())
        for line in text.splitlines()
    ]


def is_shown(line: str, printed: str) -> bool:
    """Whether a page shows a line that was printed; `...` stands for the rest of it, or for lines of their own."""
    start, dots, _ = line.partition("...")
    return printed.startswith(start) if dots else printed == line


def commands(block: str) -> list[str]:
    """The commands of a block, in their order, without comments."""
    lines = block.replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := line.partition(" #")[0].strip()) and command[0] != "#"]


def check_usage(words: list[str]) -> None:
    """Fails if `kdc` would refuse these arguments before it starts anything."""
    group = typer.main.get_command(app)
    with group.make_context("kdc", list(words)) as context:
        name, command, rest = group.resolve_command(context, list(words))
        command.make_context(name, rest, parent=context)
