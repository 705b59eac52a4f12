"""The bar of long uploads: on a terminal only, and only if it takes long."""

from __future__ import annotations

import io
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_dist_callbacks import progress
from keras_dist_callbacks.progress import uploads


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_upload_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHOW_AFTER", 0.05)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with uploads("saving x", 1000) as bar:
        bar.advance(400)
        assert not bar.shown
        time.sleep(0.5)
        bar.advance(100)
        assert bar.shown
    assert "saving x" in sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert bar.done == 500


def test_a_quick_upload_and_a_log_file_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHOW_AFTER", 0.05)
    for stream, pause in ((Terminal(), 0.0), (io.StringIO(), 0.3)):
        monkeypatch.setattr(sys, "stderr", stream)
        with uploads("saving x", 1000) as bar:
            bar.advance(1000)
            time.sleep(pause)
        time.sleep(0.15)
        assert stream.getvalue() == ""


def test_bytes_of_many_threads_are_all_counted() -> None:
    with uploads("saving x", 8000) as bar, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [bar.advance(1) for _ in range(1000)], range(8)))
    assert bar.done == 8000
