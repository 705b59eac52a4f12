"""Killed at any storage operation, nothing that was committed is lost.

A recording store keeps every operation of a scenario. For each prefix of them, with the last write torn in
several ways, and for every set of concurrent uploads that may have arrived, a new run must restore the newest
commit bit by bit and continue.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from keras_dist_callbacks.backups import packing, reading
from keras_dist_callbacks.backups.manifest import decode_manifest
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest
from keras_dist_callbacks.base.errors import DamagedBackupError, FencedError
from keras_dist_callbacks.run.engine.committer import EngineOptions
from keras_dist_callbacks.storage.local_files import temporary_name
from tests.support.recording import ROOT, Files, Operation, RecordingStore, Run, tensors_at

Scenario = Callable[[RecordingStore], None]


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*quarantined:RuntimeWarning"),  # torn manifests are named
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def several_blobs_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOB_BYTES", 150)
    monkeypatch.setattr(reading, "_REMOTE_READERS", 1)  # thousands of restores: threads for each took most of the time


def ten_saves(store: RecordingStore) -> None:
    run = Run(store)
    run.begin()
    run.save(10)
    run.finish(delete=False)


def ten_saves_that_share_nothing(store: RecordingStore) -> None:
    run = Run(store, options=EngineOptions(double_checkpoint=True))
    run.begin()
    run.save(10)
    run.finish(delete=False)


def two_workers_resumed_and_deleted_at_the_end(store: RecordingStore) -> None:
    for _ in range(3):
        run = Run(store, workers=2)
        run.begin()
        run.save(5)
    run.finish(delete=True)


def the_owner_changes(store: RecordingStore) -> None:
    older = Run(store)
    older.begin()
    older.save(3)
    newer = Run(store)
    newer.begin()
    with pytest.raises(FencedError):
        older.save()
    newer.save(4)
    newest = Run(store)
    newest.begin()
    newest.save(2)
    with pytest.raises(FencedError):
        newer.save()


def a_run_that_was_thought_dead_writes_on(store: RecordingStore, at: int) -> None:
    """Another run takes over while the older one is at operation `at` of its fourth save."""
    older = Run(store)
    older.begin()
    older.save(3)
    seen, busy = itertools.count(), False

    def take_over(operation: Operation) -> None:
        nonlocal busy
        if busy or next(seen) != at:
            return
        busy = True
        newer = Run(store)
        newer.begin()
        newer.save(3)

    store.before = take_over
    try:
        older.save(2)
    except FencedError:
        return
    if busy:  # after the last look at the owners
        with pytest.raises(FencedError):
            older.save()


def crash_states(log: list[Operation], start: Files | None = None) -> Iterator[tuple[str, Files]]:
    """Every state of the store that a crash may leave, with a name for messages."""
    files: Files = dict(start or {})
    group: list[Operation] = []
    group_base = dict(files)
    for index, operation in enumerate(log):
        is_blob = operation.content is not None and operation.name.startswith("blobs/")
        if not is_blob:
            group = []
        elif not group:
            group_base = dict(files)
        yield f"before operation {index}", dict(files)
        if operation.content is not None:
            yield from _torn(index, operation, files)
        if is_blob:
            # Others of the same save may have arrived in any order, and this one alone of them.
            for arrived in _subsets(group):
                yield (
                    f"operation {index} with {len(arrived)} of {len(group)} others",
                    {**group_base, **{o.path: o.content or b"" for o in arrived}, operation.path: operation.content},
                )
            group.append(operation)
        _apply(files, operation)
    yield "at the end", dict(files)


def _torn(index: int, operation: Operation, files: Files) -> Iterator[tuple[str, Files]]:
    content = operation.content or b""
    aside = temporary_name(operation.path)
    for percent in (0, 50, 99):
        part = content[: len(content) * percent // 100]
        if len(part) < len(content):
            yield f"operation {index} torn at {percent} %", {**files, operation.path: part}
            yield f"operation {index} torn at {percent} % aside", {**files, aside: part}
    yield f"operation {index} complete aside", {**files, aside: content}
    yield f"operation {index} complete, and still aside", {**files, operation.path: content, aside: content}


def _subsets(group: list[Operation]) -> Iterator[tuple[Operation, ...]]:
    for size in range(len(group)):  # all of them is the plain prefix
        yield from itertools.combinations(group, size)


def _apply(files: Files, operation: Operation) -> None:
    if operation.content is None:
        del files[operation.path]
    else:
        files[operation.path] = operation.content


def whole_commits(files: Files) -> list[Manifest]:
    """Manifests that are complete, the newest last, found without the code under test but for its decoder."""
    found = []
    for path, content in files.items():
        commit = CommitId.parse(path.rpartition("/")[2]) if path.startswith(f"{ROOT}/commits/") else None
        if commit is None:
            continue
        try:
            found.append(decode_manifest(content, path))
        except DamagedBackupError:
            continue
    return sorted(found, key=lambda manifest: manifest.id)


def check(where: str, files: Files, workers: int = 1, *, late: bool = False) -> Manifest | None:
    """A new run on that state takes the newest intact commit, bit by bit, and continues from it.

    With `late`, a run that was fenced may have left a manifest whose blobs the newer one had collected.
    """
    whole = whole_commits(files)
    expected = whole[-1:]
    store = RecordingStore(files)
    run = Run(store, workers)
    for manifest in expected if late else whole:
        assert_state(run, manifest.id, f"{where}: whatever manifest is there is that of a whole commit")
    picked = run.begin()
    if not expected:
        assert picked is None, where
    else:
        assert picked is not None, where
        assert picked[0] == expected[0].id, where
    if expected and expected[0].done:
        return expected[0]
    before = run.step
    run.save(2)
    again = Run(store, workers)
    resumed = again.begin()
    assert resumed is not None, where
    assert resumed[1].position.step == before + 2, where
    assert_state(again, resumed[0], where)
    return expected[0] if expected else None


def assert_state(run: Run, commit: CommitId, where: str) -> None:
    manifest = run.backups.manifest(commit)
    for worker in range(len(manifest.workers)):
        state = run.backups.load(manifest, worker)
        wanted = tensors_at(manifest.position.step, worker)
        assert list(state.tensors) == list(wanted), where
        for name, array in wanted.items():
            assert state.tensors[name].dtype == array.dtype, where
            np.testing.assert_array_equal(state.tensors[name], array, err_msg=where)


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.chaos)])
@pytest.mark.parametrize(
    ("scenario", "workers"),
    [
        (ten_saves, 1),
        (ten_saves_that_share_nothing, 1),
        (two_workers_resumed_and_deleted_at_the_end, 2),
        (the_owner_changes, 1),
    ],
)
def test_killed_at_any_operation_a_new_run_restores_the_newest_commit(
    scenario: Scenario,
    workers: int,
    every: int,
    count: Callable[[str], None],
) -> None:
    store = RecordingStore()
    scenario(store)
    steps, points = [0], 0
    for where, files in itertools.islice(crash_states(store.log), 0, None, every):
        newest = check(where, files, workers)
        points += 1
        if where.startswith("before") and newest is not None:
            steps.append(newest.position.step)
    assert steps == sorted(steps), "a later crash never restores an earlier step"
    assert max(steps) >= 7
    count(f"{points} crash points, {len(store.log)} operations")


@pytest.mark.parametrize(("every", "state"), [(4, 4), pytest.param(1, 1, marks=pytest.mark.chaos)])
def test_a_late_writer_never_harms_the_run_that_took_over(every: int, state: int, count: Callable[[str], None]) -> None:
    points = places = 0
    for at in range(0, 40, every):
        store = RecordingStore()
        a_run_that_was_thought_dead_writes_on(store, at)
        generations = {manifest.id.generation for manifest in whole_commits(store.files)}
        if 2 not in generations:
            break  # the older run's two saves have no more operations
        places += 1
        taken_over = next(i for i, o in enumerate(store.log) if o.name == "owners/000002.json")
        start: Files = {}
        for operation in store.log[:taken_over]:
            _apply(start, operation)
        for where, files in itertools.islice(crash_states(store.log[taken_over:], start), points % state, None, state):
            check(f"taken over at {at}, {where}", files, late=True)
            points += 1
    assert places * every > 14
    count(f"{points} crash points, taken over at {places} places")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("recoveries", "every"), [(8, 8), pytest.param(40, 1, marks=pytest.mark.chaos)])
def test_killed_while_it_recovers_from_a_kill_nothing_is_lost(
    recoveries: int, every: int, count: Callable[[str], None]
) -> None:
    store = RecordingStore()
    two_workers_resumed_and_deleted_at_the_end(store)
    states = list(crash_states(store.log))
    points = 0
    for where, files in random.Random(5).sample(states, recoveries):  # noqa: S311 - a reproducible choice
        recovering = RecordingStore(files)
        run = Run(recovering, workers=2)
        run.begin()
        run.save(2)
        for again, state in itertools.islice(crash_states(recovering.log, files), points % every, None, every):
            check(f"{where}, then {again}", state, workers=2)
            points += 1
    count(f"{points} crash points in {recoveries} recoveries")


def test_after_the_end_a_new_run_finds_the_end_or_nothing_at_all() -> None:
    store = RecordingStore()
    two_workers_resumed_and_deleted_at_the_end(store)
    ended = [i for i, o in enumerate(store.log) if o.content is not None and b'"kind":"end"' in o.content]
    assert len(ended) == 1
    assert [*store.files] == ["backup/journals/000001.json"]
    files: Files = {}
    for operation in store.log[: ended[0] + 1]:
        _apply(files, operation)
    for operation in store.log[ended[0] + 1 :]:
        newest = check("deleting", files, workers=2)
        assert newest is None or newest.done
        _apply(files, operation)
