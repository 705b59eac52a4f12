"""The texts that the package shows are listed in one file, so that each change of wording can be reviewed."""

from __future__ import annotations

from tests.support import findings_table, messages


def test_every_text_is_in_the_list_of_messages() -> None:
    written = messages.SNAPSHOT.read_text(encoding="utf-8")
    assert messages.collect() == written, "review the texts, then run: python -m tests.support.messages"


def test_each_finding_is_a_row_of_the_documentation() -> None:
    assert findings_table.documented() == findings_table.table(), "run: python -m tests.support.findings_table"
