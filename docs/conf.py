"""The documentation site, built into build/docs. It fails if a page asks another host for something."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # autodoc imports TensorFlow: the same on each machine
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import keras_dist_callbacks as kdc
from keras_dist_callbacks import advanced, testing

DOCS = Path(__file__).parent

project = "keras_dist_callbacks"
author = "The keras_dist_callbacks authors"
version = release = kdc.__version__
html_title = f"keras_dist_callbacks {release}"
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
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Types of other packages have no pages here: their inventories would have to be downloaded.
nitpick_ignore_regex = [("py:.*", r".*")]

linkcheck_timeout = 20

# Files of the repository that are pages too. Their names, by how a page links to them, as on GitHub.
PAGES = {
    "../CHANGELOG.md": "repository/changelog.md",
    "../CONTRIBUTING.md": "repository/contributing.md",
    "../SECURITY.md": "repository/security.md",
    "../benchmarks/RESULTS.md": "repository/results.md",
    "../examples/README.md": "repository/examples.md",
}
NAMES = {name for module in (kdc, advanced, testing) for name in module.__all__}


def link_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links to these files lead to their pages; a link to any other file of the repository is a download."""
    if docname == "index":  # without the pages that are still being written
        lines = source[0].splitlines()
        source[0] = "\n".join(x for x in lines if not re.fullmatch(r"[\w/]+", x) or (DOCS / f"{x}.md").exists())
    source[0] = re.sub(r"\]\((\.\./[^)#]+)", lambda link: f"]({PAGES.get(link[1], link[1])}", source[0])


def code_block(fenced: re.Match[str]) -> str:
    """A fenced block in the words of reStructuredText."""
    return f"{fenced[1]}.. code-block:: {fenced[2]}\n\n" + re.sub(r"^(?=.)", "    ", fenced[3], flags=re.MULTILINE)


def read_markdown(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are Markdown: fenced blocks, and names in single backticks, of which public ones are links."""
    text = re.sub(r"^( *)```(\w+)\n(.*?)^ *```$", code_block, "\n".join(lines), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<![:`\w])`(\w+)`", lambda word: f":py:obj:{word[0]}" if word[1] in NAMES else word[0], text)
    lines[:] = text.splitlines()


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
    app.connect("autodoc-process-docstring", read_markdown, priority=600)  # after napoleon
    app.connect("build-finished", ask_no_other_host)
