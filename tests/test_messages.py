"""The texts that the package shows are listed in one file, so that each change of wording can be reviewed."""

from __future__ import annotations

import re

from keras_dist_callbacks.backups.findings import CATALOG
from tests.support import findings_table, finds, messages

_OWN_REASON = re.compile(r"\b(?:not (?:be )?exact|exact if|exact only if):? *(?!\{|$| |:)")


def test_every_text_is_in_the_list_of_messages() -> None:
    written = messages.SNAPSHOT.read_text(encoding="utf-8")
    assert messages.collect() == written, "review the texts, then run: python -m tests.support.messages"


def test_what_is_not_exact_has_its_reasons_from_the_catalog_alone() -> None:
    """In texts of other modules, a placeholder follows these words, or nothing."""
    for section in messages.collect().split("\n\n"):
        module, *texts = section.splitlines()
        for text in texts if module != "keras_dist_callbacks/backups/findings.py" else ():
            assert not _OWN_REASON.search(text), f"{module}:{text}: make it a row of CATALOG"


def test_each_finding_is_a_row_of_the_documentation() -> None:
    assert findings_table.documented() == findings_table.table(), "run: python -m tests.support.findings_table"


def test_each_finding_is_made_by_a_test_that_is_marked_with_it() -> None:
    assert finds.marked() == CATALOG.keys(), "mark the test that makes the package find it: @pytest.mark.finds(CODE)"
