"""The page that explains every message: it has an entry for each, and no entry for what the package does not say."""

from __future__ import annotations

from tests.support import troubleshooting


def test_each_finding_has_an_entry_with_its_sentence() -> None:
    found, expected = troubleshooting.sentences(), troubleshooting.expected_sentences()
    assert list(found) == list(expected), "docs/troubleshooting.md: write an entry, in the order of CATALOG"
    assert found == expected, "run: python -m tests.support.troubleshooting"


def test_each_exception_class_has_an_entry() -> None:
    assert sorted(troubleshooting.classes()) == sorted(troubleshooting.expected_classes())


def test_each_warning_has_an_entry() -> None:
    missing = [where for where, text in troubleshooting.warnings().items() if not troubleshooting.is_quoted(text)]
    assert not missing, "docs/troubleshooting.md: write an entry for these warnings"


def test_the_text_of_each_warning_is_found() -> None:
    assert troubleshooting.passed_on() == troubleshooting.PASSED_ON, "follow the text, or name where it is made"


def test_each_quoted_sentence_is_one_of_the_package() -> None:
    unknown = [
        quote for quote in troubleshooting.quotes() if not any(quote in text for text in troubleshooting.texts())
    ]
    assert not unknown, "docs/troubleshooting.md: no text of the package has these words"
