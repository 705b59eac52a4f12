"""Signals are seen at once, and given back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

from keras_dist_callbacks.run.shutdown.signals import SignalListener, has_non_python_handler

SOON = 10.0


class Seen:
    """What a watch has called back with."""

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []
        self.in_handler: list[signal.Signals] = []
        self.thread = ""
        self.came = threading.Event()

    def __call__(self, number: signal.Signals) -> None:
        self.signals.append(number)
        self.thread = threading.current_thread().name
        self.came.set()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def watch(seen: Seen) -> Iterator[SignalListener]:
    made = SignalListener(seen, seen.in_handler.append)
    yield made
    made.remove()


def test_a_signal_is_reported_in_a_thread_and_in_the_handler(seen: Seen, watch: SignalListener) -> None:
    watch.install([signal.SIGUSR1])
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen.came.wait(SOON)
    assert seen.signals == [signal.SIGUSR1]
    assert seen.in_handler == [signal.SIGUSR1]
    assert seen.thread == "kdc-signals"


def test_a_second_signal_changes_nothing(seen: Seen, watch: SignalListener) -> None:
    watch.install([signal.SIGUSR1, signal.SIGUSR2])
    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    deadline = time.monotonic() + SOON
    while len(seen.signals) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen.signals == [signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.process
def test_it_is_seen_while_the_main_thread_runs_no_bytecode() -> None:
    """A step may take longer than the grace period; Python's own handlers wait for its end."""
    code = """
        import ctypes, os, signal, threading, time
        from keras_dist_callbacks.run.shutdown.signals import SignalListener
        seen = []
        watch = SignalListener(lambda number: seen.append(time.monotonic()), lambda number: None)
        watch.install([signal.SIGUSR1])
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        begin = time.monotonic()
        libc = ctypes.CDLL(None)
        while time.monotonic() - begin < 3:  # a signal ends the call early, and the handler runs between two only
            libc.usleep(3_000_000)
        assert 0.3 < seen[0] - begin < 2.5, seen[0] - begin
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_signals_are_given_back(seen: Seen) -> None:
    def own(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGUSR1, own)
    try:
        watch = SignalListener(seen, seen.in_handler.append)
        watch.install([signal.SIGUSR1, signal.SIGUSR2])
        assert watch.previous_handler(signal.SIGUSR1) is own
        assert watch.previous_handler(signal.SIGUSR2) is None
        watch.remove()
        assert signal.getsignal(signal.SIGUSR1) is own
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_outer_watch_gets_signals_again_when_the_inner_one_is_removed(seen: Seen, watch: SignalListener) -> None:
    within = Seen()
    inner = SignalListener(within, within.in_handler.append)
    watch.install([signal.SIGUSR1])
    inner.install([signal.SIGUSR1])
    os.kill(os.getpid(), signal.SIGUSR1)
    assert within.came.wait(SOON)
    assert seen.signals == seen.in_handler == []
    inner.remove()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen.came.wait(SOON)
    assert seen.in_handler == within.in_handler == [signal.SIGUSR1]
    watch.remove()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


def test_watches_may_be_removed_in_any_order(seen: Seen, watch: SignalListener) -> None:
    within = Seen()
    inner = SignalListener(within, within.in_handler.append)
    watch.install([signal.SIGUSR1])
    inner.install([signal.SIGUSR1])
    watch.remove()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert within.came.wait(SOON)
    assert (within.in_handler, seen.in_handler) == ([signal.SIGUSR1], [])
    inner.remove()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.process
def test_a_forked_child_has_the_users_handlers_and_says_nothing_to_its_parent() -> None:
    """A fork of another thread too, as pools make them; and a child that gets a signal as it begins."""
    code = """
        import os, signal, threading, time
        from keras_dist_callbacks.run.shutdown.signals import SignalListener
        signal.signal(signal.SIGUSR2, lambda number, frame: os._exit(7))
        seen = []
        watch = SignalListener(seen.append, seen.append)
        watch.install([signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
        ends = watch._pipe
        def fork(number, expected):
            pid = os.fork()
            if pid == 0:
                if number is None:
                    os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler
                             and signal.set_wakeup_fd(-1) == -1
                             and not any(os.path.exists(f"/proc/self/fd/{end}") for end in ends) else 1)
                time.sleep(60)
                os._exit(0)
            if number is not None:
                os.kill(pid, number)
            found = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert found == expected, (found, expected)
        for number, expected in [(signal.SIGTERM, -15), (signal.SIGUSR2, 7), (None, 0)] * 20:
            fork(number, expected)
        thread = threading.Thread(target=fork, args=(signal.SIGTERM, -15))
        thread.start()
        thread.join()
        assert seen == [], seen
        os.kill(os.getpid(), signal.SIGTERM)
        while len(seen) < 2:
            time.sleep(0.01)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_a_handler_that_was_set_meanwhile_stays(seen: Seen) -> None:
    def own(number: int, frame: object) -> None: ...

    watch = SignalListener(seen, seen.in_handler.append)
    watch.install([signal.SIGUSR1])
    signal.signal(signal.SIGUSR1, own)
    try:
        watch.remove()
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_an_event_loop_keeps_its_signals(seen: Seen, watch: SignalListener) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR2, came.set)
        watch.install([signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.wait_for(came.wait(), SOON)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.to_thread(seen.came.wait, SOON)
        loop.remove_signal_handler(signal.SIGUSR2)

    asyncio.run(main())
    assert seen.signals == [signal.SIGUSR1]


@pytest.mark.process
def test_a_handler_of_another_language_is_distinguished_from_pythons() -> None:
    code = """
        import ctypes, signal
        from keras_dist_callbacks.run.shutdown.signals import has_non_python_handler
        assert not has_non_python_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        assert not has_non_python_handler(signal.SIGUSR1)
        handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
        ctypes.CDLL(None).signal(int(signal.SIGUSR2), handler)
        assert has_non_python_handler(signal.SIGUSR2)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
    assert not has_non_python_handler(signal.SIGUSR1)
