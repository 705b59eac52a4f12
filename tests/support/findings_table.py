"""The table of all findings in the documentation: `python -m tests.support.findings_table` writes it again."""

from __future__ import annotations

import re

from keras_dist_callbacks.backups.findings import CATALOG
from tests.support import ROOT

DOCUMENT = ROOT / "docs" / "exactness.md"
TITLE = "## Every finding"
_PLACE = re.compile(r"\{[a-z0-9]*\}")
_VERDICTS = {"lost": "not exact", "unknown": "exact if", "known": "exact, with"}


def table() -> str:
    """The rows of the catalog, each with a link to what explains it; what fills a sentence is `...`."""
    rows = ["| Code | Verdict | What it says | What to do |", "|---|---|---|---|"]
    for code, row in CATALOG.items():
        texts = (_PLACE.sub("...", text).replace("|", "\\|") for text in (row.sentence, row.advice))
        rows.append(f"| [`{code}`](troubleshooting.md#{code}) | {_VERDICTS[row.effect]} | {' | '.join(texts)} |")
    return "\n".join(rows)


def documented() -> str:
    """The table as the document has it."""
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"{TITLE}\n")[2].partition("\n## ")[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("|"))


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(text.replace(documented(), table()), encoding="utf-8")
