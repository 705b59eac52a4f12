"""The documentation site, built into build/docs. It fails if a page asks another host for something."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_type_hints

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # autodoc imports TensorFlow: the same on each machine
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.inspect import stringify_signature

import keras_dist_callbacks as kdc
from keras_dist_callbacks import advanced, testing

DOCS = Path(__file__).parent

project = "keras_dist_callbacks"
author = "The keras_dist_callbacks authors"
version = release = kdc.__version__
html_title = f"keras_dist_callbacks {release}"
highlight_language = "none"  # of blocks that name no language, such as a tree of directories
default_role = "literal"  # of single backticks in docstrings
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme = "furo"
html_show_sphinx = html_show_copyright = html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.typer"]
exclude_patterns: list[str] = []

myst_heading_anchors = 4  # links such as launch.md#a-time-limit, with GitHub's anchors
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Types of other packages have no pages here: their inventories would have to be downloaded.
nitpick_ignore_regex = [("py:.*", r".*")]

linkcheck_timeout = 20

# docs/repository/security.md is a link to SECURITY.md; its page shows what that file holds.
FILES = {}
for stub in (DOCS / "repository").glob("*.md"):
    (link,) = re.findall(r"\]\((.*?)\)", stub.read_text(encoding="utf-8"))
    FILES[(stub.parent / link).resolve()] = stub

NAMES = {name for module in (kdc, advanced, testing) for name in module.__all__}


def link_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links are paths, as on GitHub: to a file that is a page too, or to any other file, which is a download."""
    page = DOCS / f"{docname}.md"
    file = next((file for file, stub in FILES.items() if stub == page), page)
    if file != page:
        app.env.note_dependency(file)
        source[0] = file.read_text(encoding="utf-8")

    def link(written: re.Match[str]) -> str:
        target = (file.parent / written[1]).resolve()
        return f"]({os.path.relpath(FILES.get(target, target), page.parent)}" if target.is_file() else written[0]

    source[0] = re.sub(r"\]\(([^)#:]+)", link, source[0])


def code_block(fenced: re.Match[str]) -> str:
    """A fenced block in the words of reStructuredText."""
    return f"{fenced[1]}.. code-block:: {fenced[2]}\n\n" + re.sub(r"^(?=.)", "    ", fenced[3], flags=re.MULTILINE)


def read_markdown(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are Markdown: fenced blocks, and names in single backticks, of which public ones are links."""
    text = re.sub(r"^( *)```(\w+)\n(.*?)^ *```$", code_block, "\n".join(lines), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<![:`\w])`(\w+)`", lambda word: f":py:obj:{word[0]}" if word[1] in NAMES else word[0], text)
    lines[:] = text.splitlines()


def show_signature(app: Sphinx, what: str, name: str, obj: Any, *rest: Any) -> tuple[str, str] | None:
    """Of a class the arguments of `__init__`, as `help()` shows them: some have a `__new__` that takes anything."""
    if what != "class":
        return None
    signature = inspect.signature(obj).replace(return_annotation=inspect.Signature.empty)
    with contextlib.suppress(NameError):  # a name that is imported for type checkers alone: as it is written
        hints = get_type_hints(obj.__init__)  # without what `Annotated` adds
        signature = signature.replace(
            parameters=[p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()]
        )
    return stringify_signature(signature, unqualified_typehints=True), ""


class Requests(HTMLParser):
    """What a browser asks other hosts for when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Everything but where a link leads, and what only names a namespace."""
        for name, value in attrs:
            if tag != "a" and not name.startswith("xmlns") and re.search(r"(^|url\(['\"]?)(https?:)?//", value or ""):
                self.found.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        """The text of style elements; that of scripts and blocks of code is not a request."""
        self.found += re.findall(r"(?:url\(|@import )['\"]?(?:https?:)?//[^)'\"]*", data)


def ask_no_other_host(app: Sphinx, exception: Exception | None) -> None:
    """Fails the build if a page would load a font, a picture or a script from elsewhere."""
    if exception is not None or app.builder.format != "html":
        return
    for file in sorted(Path(app.outdir).rglob("*")):
        if file.suffix not in {".html", ".svg", ".css"}:
            continue
        parser = Requests()
        if file.suffix == ".css":
            parser.handle_data(file.read_text(encoding="utf-8"))
        else:
            parser.feed(file.read_text(encoding="utf-8"))
        if parser.found:
            raise ExtensionError(f"{file} asks other hosts: {', '.join(parser.found)}")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_pages)
    app.connect("autodoc-process-signature", show_signature)
    app.connect("autodoc-process-docstring", read_markdown, priority=600)  # after napoleon
    app.connect("build-finished", ask_no_other_host)
