"""A process is terminated when its time is over, and not if it may continue."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

SCRIPT = """
import ctypes, sys, time
from keras_dist_callbacks.run.shutdown import watchdog
watchdog.GIL_SECONDS = 0.5
dog = watchdog.Watchdog(0.3, lambda: "last words")
{does}
print("went on", flush=True)
"""
HOLDS_THE_GIL = "ctypes.PyDLL(None).sleep(30)"


def end(does: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(does=does)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("hangs", ["time.sleep(30)", HOLDS_THE_GIL])
def test_a_process_that_hangs_is_terminated(hangs: str) -> None:
    began = time.monotonic()
    code, out, err = end(f"dog.start(); {hangs}")
    assert (code, out) == (138, "")
    assert ("last words" in err) == (hangs != HOLDS_THE_GIL)
    assert time.monotonic() - began < 20


@pytest.mark.in_gate(1)
@pytest.mark.process
@pytest.mark.parametrize("does", ["dog.start(); dog.cancel()", "dog.cancel(); dog.start()"])
def test_a_process_that_may_continue_is_not_terminated(does: str) -> None:
    code, out, err = end(f"{does}; ctypes.PyDLL(None).usleep(1500000); time.sleep(0.5)")
    assert (code, out, err) == (0, "went on\n", "")
