"""Lists the texts that the package shows: `python -m tests.support.messages` writes `messages.txt` again.

Messages are also made of parts, so this takes every text of two words or more that is not a docstring, and the help of
each `kdc` command.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from tests.support import ROOT, SUPPORT

SNAPSHOT = SUPPORT / "messages.txt"
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_WORDS = re.compile(r"[a-z]{2,}\W* \S|\S \W*[a-z]{2,}", re.IGNORECASE)
_NOT_A_TEXT = re.compile(r"^\n|\\d|\[0-9|import sys")  # lists of names, patterns, code


@functools.cache
def collect() -> str:
    """The texts of each module in their order; a placeholder has the name of what fills it."""
    sections = []
    for path in sorted((ROOT / "keras_dist_callbacks").rglob("*.py")):
        texts = dict.fromkeys(_texts(ast.parse(path.read_text(encoding="utf-8"))))
        if texts:
            sections.append("\n".join([path.relative_to(ROOT).as_posix(), *(f"    {text}" for text in texts)]))
    return "\n\n".join(sections) + "\n"


def _texts(tree: ast.Module) -> Iterator[str]:
    taken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in _in_order(tree):
        if isinstance(node, ast.FunctionDef) and any("app.command" in ast.unparse(d) for d in node.decorator_list):
            yield " ".join((ast.get_docstring(node) or "").split())
        if isinstance(node, ast.JoinedStr):
            taken.update(id(branch) for part in node.values for branch in (part, *_branches(part)))
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in taken:
            text = _text(node)
            if _WORDS.search(_PLACEHOLDER.sub("x", text)) and not _NOT_A_TEXT.search(text):
                yield text.strip().replace("\n", r"\n")


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def _text(node: ast.expr) -> str:
    """The text of an expression; what is not a text is a placeholder in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return "{" + ("|".join(_text(branch).strip("{}") for branch in _branches(node)) or _name(node)) + "}"


def _branches(node: ast.expr) -> list[ast.expr]:
    """The alternatives that a placeholder chooses from."""
    value = node.value if isinstance(node, ast.FormattedValue) else node
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else []


def _name(node: ast.expr) -> str:
    """A short name of an expression, the same in every version of Python."""
    if isinstance(node, ast.FormattedValue | ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Call):
        is_join = isinstance(node.func, ast.Attribute) and node.func.attr == "join"
        return _name(node.args[0] if is_join else node.func)
    return str(getattr(node, "id", getattr(node, "attr", "...")))


if __name__ == "__main__":
    SNAPSHOT.write_text(collect(), encoding="utf-8")
