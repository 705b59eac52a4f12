"""The texts that the package shows are listed in one file, so that each change of wording can be reviewed."""

from __future__ import annotations

from tests.support import messages


def test_every_text_is_in_the_list_of_messages() -> None:
    written = messages.SNAPSHOT.read_text(encoding="utf-8")
    assert messages.collect() == written, "review the texts, then run: python -m tests.support.messages"
