"""The bar of long uploads: on a terminal only, and only if it takes long."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from keras_dist_callbacks.base import terminal
from keras_dist_callbacks.base.terminal import uploads


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Timers:
    """Stands in for `threading.Timer`: time passes when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def __call__(self, seconds: float, action: Any) -> Any:
        timer = SimpleNamespace(action=action, daemon=False, ident=1)
        timer.start, timer.cancel = lambda: self.waiting.append(timer), self.waiting.clear
        timer.join = lambda: None
        return timer

    def pass_by(self) -> None:
        for timer in list(self.waiting):
            timer.action()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    found = Timers()
    monkeypatch.setattr(terminal.threading, "Timer", found)
    return found


def test_a_long_upload_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, timers: Timers) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = sys.stdout
    with uploads("saving x", 1000) as advance:
        advance(400)
        assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
        timers.pass_by()
        advance(100)
        assert sys.stdout is before, "what a script prints, or redirects, is its own"
    assert "saving x" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_a_quick_upload_and_a_log_file_show_nothing(monkeypatch: pytest.MonkeyPatch, timers: Timers) -> None:
    for stream, is_long in ((Terminal(), False), (io.StringIO(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with uploads("saving x", 1000) as advance:
            advance(1000)
            if is_long:
                timers.pass_by()
        timers.pass_by()
        assert stream.getvalue() == ""


def test_bytes_of_many_threads_are_all_counted(monkeypatch: pytest.MonkeyPatch, timers: Timers) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with uploads("saving x", 8000) as advance, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [advance(1) for _ in range(1000)], range(8)))
        timers.pass_by()
    assert "8.0/8.0 kB" in sys.stderr.getvalue()  # type: ignore[attr-defined]
