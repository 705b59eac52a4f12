"""What `docs/troubleshooting.md` has an entry for, and what it must have one for.

A heading in backticks is the entry of a finding (fourth level) or of an exception class (third level). What stands in
double backticks is a sentence of the package, or a part of one, with `...` for what varies.
`python -m tests.support.troubleshooting` writes the sentences of findings again.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from keras_dist_callbacks.backups.findings import CATALOG
from tests.support import ROOT, messages

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
_PACKAGE = ROOT / "keras_dist_callbacks"
_QUOTED = re.compile(r"``\s?(.+?)\s?``")
_FINDING = re.compile(r"^#### `(.+)`\n\n``(.+)``$", re.MULTILINE)
_CLASS = re.compile(r"^### `(.+)`$", re.MULTILINE)
_PLACE = re.compile(r"\{[^{}]*\}")
_WARNS = {"warn", "_warn", "_warn_of", "_say_problem"}
_NOTES = "run/engine"  # where `_note` keeps what becomes a warning
_BASES = {"KdcError", "SystemExit"}
_CALLS = 3  # that are followed to a text
_TELLING = 12  # letters of a quote that tell one sentence from others

PASSED_ON = {
    "callbacks/backup_and_restore.py: text",  # findings
    "callbacks/checkpoint_writer.py: what",
    "callbacks/checkpoint_writer.py: self._notes.popleft()",
    "callbacks/reported_names.py: text",
    "evaluation/model.py: text",
    "run/engine/committer.py: self._store.notes.pop()",
    "run/engine/engine.py: note",
    "run/engine/engine.py: self._notes.get()",
    "run/session.py: note",  # of run/divergence.py
    "state/step_variables.py: text",  # findings
    "storage/store_errors.py: text",  # parts alone
}
"""Where a warning is made of a text that a caller, or a queue of notes, has."""


def sentences() -> dict[str, str]:
    """What the page quotes of each finding."""
    return {code: " ".join(text.split()) for code, text in _FINDING.findall(_page())}


def expected_sentences() -> dict[str, str]:
    """What findings say."""
    return {code: _plain(row.sentence) for code, row in CATALOG.items()}


def classes() -> list[str]:
    """The exception classes that the page has an entry for."""
    return _CLASS.findall(_page())


def expected_classes() -> set[str]:
    """Exceptions of the package, by what they extend."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for tree in _trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found: set[str] = set()
    while new := {name for name, of in bases.items() if of & (found | _BASES)} - found:
        found |= new
    return found | {"KdcError"}


@functools.cache
def quotes() -> tuple[str, ...]:
    """What the page quotes of the package's texts."""
    return tuple(_plain(text) for text in _QUOTED.findall(" ".join(_page().split())))


@functools.cache
def texts() -> tuple[str, ...]:
    """All texts of the package."""
    listed = (line.strip() for line in messages.collect().splitlines() if line.startswith(" "))
    return (*map(_plain, listed), *expected_sentences().values())


def warnings() -> dict[str, str]:
    """The text of each warning, by where it is made; `PASSED_ON` are left out."""
    return {where: text for where, text in _warnings() if text}


def passed_on() -> set[str]:
    """Where a warning's text cannot be found out from the code around it."""
    return {where for where, text in _warnings() if not text}


def is_quoted(text: str) -> bool:
    """Whether the page has an entry for a text of the package."""
    return any(
        quote in text and (len(_letters(quote)) >= _TELLING or _letters(quote) == _letters(text)) for quote in quotes()
    )


def _page() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


@functools.cache
def _trees() -> dict[str, ast.Module]:
    paths = sorted(_PACKAGE.rglob("*.py"))
    return {path.relative_to(_PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _plain(text: str) -> str:
    """A text with `...` for each placeholder, also for those within others."""
    while (shorter := _PLACE.sub("...", text)) != text:
        text = shorter
    return " ".join(text.split())


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text))


@functools.cache
def _warnings() -> tuple[tuple[str, str], ...]:
    return tuple(_find_warnings())


def _find_warnings() -> Iterator[tuple[str, str]]:
    for module, tree in _trees().items():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and _warns(module, node)):
                found = list(_made(call.args[0], module, function, _CALLS))
                yield from ((f"{module}: {text}", text) for text in found)
                if not found:
                    yield f"{module}: {ast.unparse(call.args[0])}", ""


def _warns(module: str, call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if last == "_note":
        return module.startswith(_NOTES)
    if last == "say":
        return any(keyword.arg == "level" and "WARNING" in ast.unparse(keyword.value) for keyword in call.keywords)
    return (last in _WARNS and name != "warnings.warn") or name.endswith("notes.append")


def _made(node: ast.expr | None, module: str, function: ast.FunctionDef, calls: int) -> Iterator[str]:
    """The texts that an expression may be; a name is what its function assigns to it, a call what is returned."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        text = _plain(messages._text(node))
        if _letters(text):
            yield text
    elif isinstance(node, ast.BinOp):
        yield from _made(node.left, module, function, calls)
    elif isinstance(node, ast.IfExp):
        yield from _made(node.body, module, function, calls)
        yield from _made(node.orelse, module, function, calls)
    elif isinstance(node, ast.Name):
        for value in _assigned(node.id, function):
            yield from _made(value, module, function, calls)
    elif isinstance(node, ast.Call) and calls:
        name = ast.unparse(node.func).rpartition(".")[2]
        for place, found in _functions(name, module):
            for one in (inner for inner in ast.walk(found) if isinstance(inner, ast.Return)):
                yield from _made(one.value, place, found, calls - 1)


def _assigned(name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            yield node.value
        if isinstance(node, ast.NamedExpr) and node.target.id == name:
            yield node.value


def _functions(name: str, module: str) -> list[tuple[str, ast.FunctionDef]]:
    """The functions of a name: those of the module, else the only one that there is."""
    found = _by_name().get(name, [])
    return [pair for pair in found if pair[0] == module] or (found if len(found) == 1 else [])


@functools.cache
def _by_name() -> dict[str, list[tuple[str, ast.FunctionDef]]]:
    found: dict[str, list[tuple[str, ast.FunctionDef]]] = {}
    for module, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append((module, node))
    return found


def _write() -> None:
    expected = expected_sentences()
    text = _FINDING.sub(lambda found: f"#### `{found[1]}`\n\n``{expected.get(found[1], '')}``", _page())
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
