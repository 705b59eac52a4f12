"""What the runs of one process share: one instance of each kind, and what a forked child has instead."""

from __future__ import annotations

import ast
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import keras_dist_callbacks
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.process import PARTS, Shared, shared
from keras_dist_callbacks.cluster import peer_monitor
from keras_dist_callbacks.run.engine import background
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.run.shutdown.signals import SignalListener
from keras_dist_callbacks.storage import direct_io, temporary

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # since Python 3.12
]
PACKAGE = Path(keras_dist_callbacks.__file__).parent


@dataclass
class Kept(Shared):
    values: list[int] = field(default_factory=list)


@dataclass
class New(Shared):
    values: list[int] = field(default_factory=list)

    def in_child(self) -> New:
        return New()


class Fails(Shared):
    def in_child(self) -> Fails:
        raise ValueError("of one kind")


class Waits(Shared):
    def in_child(self) -> Waits:
        time.sleep(60.0)
        return self


@pytest.fixture(autouse=True)
def own_kinds_leave_nothing() -> Iterator[None]:
    yield
    for kind in (Kept, New, Fails, Waits):
        PARTS.pop(kind, None)


def in_fork(check: Callable[[], bool]) -> bool:
    """What a forked child finds; one that waits for a lock is killed."""
    child = os.fork()
    if child == 0:
        threading.Timer(20.0, os._exit, [1]).start()
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_kind_has_one_instance_whichever_thread_asks_first() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: shared(Kept), range(64)))
    assert {id(one) for one in found} == {id(shared(Kept))}


def test_a_forked_child_has_a_copy_or_what_its_kind_says() -> None:
    shared(Kept).values.append(1)
    shared(New).values.append(1)
    assert in_fork(lambda: (shared(Kept).values, shared(New).values) == ([1], []))
    assert (shared(Kept).values, shared(New).values) == ([1], [1])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first", [True, False])
def test_a_kind_that_fails_in_a_child_keeps_no_other_from_being_replaced(first: bool) -> None:
    for kind in (Fails, New) if first else (New, Fails):
        shared(kind)
    shared(New).values.append(1)
    assert in_fork(lambda: shared(New).values == [])


@pytest.mark.parametrize(
    ("lock", "use"),
    [
        (lambda: shared(validation._KnownTypes).lock, lambda: validation.convert({"a": [True]}, dict[str, list[bool]])),
        (lambda: shared(direct_io.Buffers).lock, lambda: direct_io._buffer().__enter__()),
        (lambda: shared(temporary.Directories).lock, lambda: temporary.make_directory("test").exists()),
        (lambda: shared(peer_monitor.PeerMonitor).lock, peer_monitor._is_alive),
        (lambda: shared(background._Pauses).lock, lambda: background.gc_paused().__enter__()),
        (lambda: shared_writer()._condition, lambda: shared_writer().wait(1.0)),
    ],
    ids=["schemas", "buffers", "directories", "peers", "collector", "writer"],
)
def test_a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held(
    lock: Callable[[], threading.Lock], use: Callable[[], object]
) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock():
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_fork(lambda: (use(), True)[1])
    finally:
        done.set()
        thread.join()


def test_a_child_collects_garbage_although_a_thread_of_its_parent_had_paused_it() -> None:
    with background.gc_paused():
        assert in_fork(gc.isenabled)
        assert not gc.isenabled()
    assert gc.isenabled()


CHANGES = {"append", "add", "clear", "pop", "remove", "discard", "update", "setdefault", "insert", "extend"}


def changed_by_functions(tree: ast.Module) -> set[str]:
    """Names of the module that a function binds again, or calls a changing method of, or sets an item of."""
    targets = [t for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in tree.body if isinstance(n, ast.AnnAssign)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found |= set(node.names)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            found |= {n.id for n in [node.func.value] if isinstance(n, ast.Name)}
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found |= {n.id for n in [node.value] if isinstance(n, ast.Name)}
    return found & names


def test_no_other_module_has_state_of_its_own() -> None:
    modules = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    found = {name: changed_by_functions(ast.parse(path.read_text())) for name, path in modules.items()}
    assert {name: names for name, names in found.items() if names} == {"base/process.py": {"PARTS"}}


def test_a_child_frees_nothing_that_it_inherited() -> None:
    ref = weakref.ref(shared(New))
    assert in_fork(lambda: shared(New) is not ref() and ref() is not None)


def test_sigterm_ends_a_child_that_still_replaces_what_it_inherited() -> None:
    shared(Waits)
    watch = SignalListener(lambda number: None, lambda number: None)
    watch.install([signal.SIGTERM])
    try:
        child = os.fork()
        if child == 0:
            os._exit(1)
        os.kill(child, signal.SIGTERM)
        deadline = time.monotonic() + 20.0
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
    finally:
        watch.remove()
    assert os.waitstatus_to_exitcode(ended[1]) == -signal.SIGTERM
