"""Texts of unknown origin: nothing that a terminal would interpret or hide is left, and everything else is."""

from __future__ import annotations

import unicodedata

import pytest

from keras_dist_callbacks.base.errors import (
    ClusterError,
    ConfigError,
    DamagedBackupError,
    KdcError,
    Preempted,
    StorageError,
)
from keras_dist_callbacks.base.terminal import escape_controls
from tests.support.hostile import EVIL, MARKUP, READABLE, obeyed_in

ESCAPES = {
    "\x00": "\\x00", "\x1b[31m": "\\x1b[31m", "a\r\nb\tc": "a\\r\\nb\\tc", "\x7f": "\\x7f", "\x9b1m": "\\x9b1m",
    "\u202e": "\\u202e", "\u2066": "\\u2066", "\u200b": "\\u200b", "\u2028": "\\u2028", "\udcff": "\\udcff",
    "\ufeff": "\\ufeff", "\U000e0041": "\\U000e0041",
}  # fmt: skip


@pytest.mark.parametrize("text", sorted(ESCAPES))
def test_what_a_terminal_would_obey_or_hide_becomes_an_escape(text: str) -> None:
    assert escape_controls(text) == ESCAPES[text]
    assert escape_controls(escape_controls(text)) == ESCAPES[text]


def test_every_control_and_format_character_is_escaped() -> None:
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    wanted = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in kinds]
    assert len(wanted) > 2000
    assert escape_controls("".join(wanted)).isascii()


@pytest.mark.parametrize("text", [READABLE, MARKUP, "/a b/ç\u3000\xa0ñ", "e\u0301", "\\x1b", "🙂", ""])
def test_names_in_any_language_stay_readable(text: str) -> None:
    assert escape_controls(text) == text


@pytest.mark.parametrize("kind", [KdcError, ConfigError, StorageError, DamagedBackupError, ClusterError, Preempted])
def test_messages_of_errors_are_printable_and_keep_their_lines(kind: type[BaseException]) -> None:
    text = str(kind(f"first\n{EVIL}"))
    assert obeyed_in(text) == []
    assert text.startswith("first\n")
    assert READABLE in text
