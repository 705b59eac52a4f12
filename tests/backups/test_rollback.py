"""Going back: one create decides, whatever ends the command, and whatever a run does meanwhile."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups import rollback
from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError, FencedError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.storage.storage import Storage
from tests.support.cli_backups import begin, commit, kdc, kdc_json, publish
from tests.support.rollbacks import MUTATING, killed_after

READING = ("read", "files", "exists")


def opened(directory: Path) -> BackupStore:
    return BackupStore(Storage.open(directory, fsync=False))


def trained(directory: Path, backups: int = 4) -> BackupStore:
    """A run that has saved some backups, one each epoch, which share a tensor."""
    store, known = begin(directory), None
    for number in range(1, backups + 1):
        known = save(store, number, known)
    return store


def save(store: BackupStore, number: int, known: Any = None) -> Any:
    tensors = {"variables/w@0": np.full(100, number, "float32"), "variables/frozen@0": np.arange(100.0)}
    return commit(store, number, tensors, position=Position("between", number, 0, number * 10), known=known)


def newest(directory: Path) -> str:
    """What a restart would take, verified; "" for none."""
    store = opened(directory)
    found = store.commits()
    if not found:
        return ""
    store.verify(store.manifest(found[-1]))
    return found[-1].label


def go_back(directory: Path, to: str) -> None:
    store = opened(directory)
    rollback.roll_back(store, rollback.plan(store, rollback.named(store, to)))


def undo(directory: Path) -> None:
    store = opened(directory)
    rollback.undo(store, rollback.plan_undo(store))


def next_run(directory: Path) -> list[str]:
    """The labels of what is left once a new run has saved."""
    store = opened(directory)
    store.delete_orphans()  # as before a first commit
    store.prepare()
    store.claim({})
    store.delete_orphans()
    save(store, 9)
    store.prune(Rules(max_to_keep=5))
    store.collect_orphans()
    left = opened(directory)
    for one in left.commits():
        left.verify(left.manifest(one))
    return [one.label for one in left.commits()]


def test_the_named_backup_is_the_newest_and_what_came_later_is_set_aside(tmp_path: Path) -> None:
    trained(tmp_path)
    go_back(tmp_path, "1-2")
    assert newest(tmp_path) == "1-2"
    assert len(list(tmp_path.glob("rolled-back/*"))) == 2
    assert next_run(tmp_path) == ["1-1", "1-2", "3-9"]
    assert not (tmp_path / "rolled-back").exists() or not list(tmp_path.glob("rolled-back/*"))
    assert len(list(tmp_path.glob("owners/000002*"))) == 0


def test_the_start_is_a_fresh_one_and_can_be_undone(tmp_path: Path) -> None:
    trained(tmp_path)
    go_back(tmp_path, "start")
    assert newest(tmp_path) == ""
    undo(tmp_path)
    assert newest(tmp_path) == "1-4"
    go_back(tmp_path, "start")
    assert next_run(tmp_path) == ["5-9"]


def test_a_rollback_within_a_rollback_and_their_undoing(tmp_path: Path) -> None:
    trained(tmp_path)
    go_back(tmp_path, "1-3")
    go_back(tmp_path, "1-1")
    assert newest(tmp_path) == "1-1"
    undo(tmp_path)
    assert newest(tmp_path) == "1-3"


def test_after_a_new_backup_nothing_can_be_undone(tmp_path: Path) -> None:
    trained(tmp_path)
    go_back(tmp_path, "1-2")
    store = opened(tmp_path)
    store.claim({})
    save(store, 9)
    with pytest.raises(ConfigError, match="can be undone no more"):
        undo(tmp_path)


@pytest.mark.parametrize(
    ("to", "error", "says"),
    [("1-4", ConfigError, "is the newest backup already"), ("1-9", ConfigError, "no backup is named")],
)
def test_what_there_is_not_is_an_error_that_changes_nothing(tmp_path: Path, to: str, error: Any, says: str) -> None:
    trained(tmp_path)
    with pytest.raises(error, match=says):
        go_back(tmp_path, to)
    assert newest(tmp_path) == "1-4"
    assert not list(tmp_path.glob("owners/000002*"))


def test_a_damaged_backup_is_refused(tmp_path: Path) -> None:
    store = trained(tmp_path)
    (blob,) = [b for b in store.manifest(store.commits()[1]).blobs if b.path not in _blobs(store, 0)]
    (tmp_path / blob.path).write_bytes(b"damaged")
    with pytest.raises(DamagedBackupError):
        go_back(tmp_path, "1-2")
    assert newest(tmp_path) == "1-4"


def _blobs(store: BackupStore, number: int) -> set[str]:
    return {blob.path for blob in store.manifest(store.commits()[number]).blobs}


def test_a_run_that_still_writes_is_fenced_by_name(tmp_path: Path) -> None:
    store = trained(tmp_path)
    go_back(tmp_path, "1-2")
    with pytest.raises(FencedError, match="was rolled back to 1-2: what this run has trained since does not count"):
        save(store, 5)
    assert newest(tmp_path) == "1-2"


# --- killed at each operation


@pytest.mark.parametrize("to", ["1-2", "start"])
def test_a_rollback_that_is_killed_has_happened_or_not_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    trained(tmp_path / "whole")
    wanted = "" if to == "start" else to
    for count in itertools.count():
        place = tmp_path / str(count)
        shutil.copytree(tmp_path / "whole", place)
        was_killed = killed_after(monkeypatch, count, lambda place=place: go_back(place, to))
        assert newest(place) == ("1-4" if count == 0 else wanted)
        shutil.copytree(place, place / "run")
        left = next_run(place / "run")
        assert left[-1].endswith("-9")
        assert left[:-1] == [name for name in ("1-1", "1-2", "1-3", "1-4") if name <= (newest(place) or "")]
        if count:  # what was left is tidied
            rollback.tidy(opened(place))
            assert newest(place) == wanted
        if not was_killed:
            break
    assert count > 4


def test_an_undoing_that_is_killed_has_happened_or_not_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "whole")
    go_back(tmp_path / "whole", "1-2")
    for count in itertools.count():
        place = tmp_path / str(count)
        shutil.copytree(tmp_path / "whole", place)
        was_killed = killed_after(monkeypatch, count, lambda place=place: undo(place))
        assert newest(place) == ("1-2" if count < 2 else "1-4")
        if was_killed:
            undo(place)
        assert newest(place) == "1-4"
        assert [one.label for one in opened(place).commits()] == ["1-1", "1-2", "1-3", "1-4"]
        if not was_killed:
            break
    assert count > 4


# --- a run that saves meanwhile


class Turns:
    """Two threads that take turns at each storage operation: the other one goes on where a plan says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: Iterator[int]) -> None:
        self._turn, self._ended, self._ready = 0, [False, False], threading.Condition()
        self._plan = plan
        self._left = next(plan)
        self._number = threading.local()
        for name in (*MUTATING, *READING):
            monkeypatch.setattr(Storage, name, self._wrapped(getattr(Storage, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            number = getattr(self._number, "value", None)
            if number is not None:
                with self._ready:
                    self._ready.wait_for(lambda: self._turn == number or self._ended[1 - number])
                    self._left -= 1
                    if self._left <= 0 and not self._ended[1 - number]:
                        self._turn, self._left = 1 - number, next(self._plan, 10**9)
                        self._ready.notify_all()
                        self._ready.wait_for(lambda: self._turn == number or self._ended[1 - number])
            return real(*arguments, **named)

        return call

    def run(self, *actions: Callable[[], None]) -> list[BaseException | None]:
        failed: list[BaseException | None] = [None, None]

        def act(number: int) -> None:
            self._number.value = number
            with self._ready:
                self._ready.wait_for(lambda: self._turn == number or self._ended[1 - number])
            try:
                actions[number]()
            except Exception as error:  # noqa: BLE001 - the test looks at it
                failed[number] = error
            with self._ready:
                self._ended[number] = True
                self._turn = 1 - number
                self._ready.notify_all()

        threads = [threading.Thread(target=act, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        return failed


@pytest.mark.parametrize("first", [1, 6, 11, *(pytest.param(n, marks=pytest.mark.chaos) for n in range(2, 24))])
def test_a_run_that_saves_at_any_moment_of_a_rollback_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The save stops before its n-th operation, the rollback before its m-th; then the save ends, then the rollback."""
    for second in range(1, 24, 3):
        place = tmp_path / str(second)
        store = trained(place)

        def saves(store: BackupStore = store) -> None:
            save(store, 5)
            store.prune(Rules(max_to_keep=9))

        with monkeypatch.context() as patch:
            turns = Turns(patch, iter([first, second, 10**9]))
            failed = turns.run(saves, lambda place=place: go_back(place, "1-2"))
        assert isinstance(failed[0], FencedError | None), failed[0]
        assert failed[1] is None
        assert newest(place) == "1-2"
        with pytest.raises(FencedError, match="was rolled back to 1-2"):
            save(store, 6)
        assert next_run(place) == ["1-1", "1-2", "3-9"]


# --- the command


def test_the_command_says_what_it_changes_and_what_continues(tmp_path: Path) -> None:
    trained(tmp_path)
    told = kdc_json("rollback", tmp_path, "--before-step", "30", "--dry-run")
    assert (told["newest"], told["before"], told["moved"]) == ("1-2", "1-4", ["1-4", "1-3"])
    assert newest(tmp_path) == "1-4"
    shown = kdc("rollback", tmp_path, "--before-epoch", "2")
    assert shown.exit_code == 0
    assert "training continues from 1-1, after epoch 1 (it was 1-4)" in shown.stdout
    assert newest(tmp_path) == "1-1"
    assert kdc("rollback", tmp_path, "--undo").exit_code == 0
    assert newest(tmp_path) == "1-4"


def test_a_value_of_the_target_that_no_save_has_looked_at_is_found(tmp_path: Path) -> None:
    weights = np.zeros(100_000, "float32")
    weights[77_777] = np.nan  # between the samples of 4 KiB
    store = begin(tmp_path)
    for number in (1, 2):
        position = Position("between", number, 0, number)
        commit(store, number, {"variables/dense/kernel@0": weights}, position=position)
    assert kdc_json("rollback", tmp_path, "--to", "1-1", "--dry-run")["not_finite"] == ["variables/dense/kernel@0"]
    shown = kdc("rollback", tmp_path, "--to", "1-1")
    assert "1-1 holds values that are not finite (dense/kernel), and training would continue" in shown.stdout
    assert newest(tmp_path) == "1-1"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name one of to, before_step, before_epoch and undo: got none of them"),
        (["--to", "1-2", "--undo"], "got to, undo"),
        (["--before-step", "5"], "holds no backup before step 5"),
        (["--undo"], "there is no rollback"),
    ],
)
def test_wrong_usage_is_code_2(tmp_path: Path, words: list[str], says: str) -> None:
    trained(tmp_path)
    result = kdc("rollback", tmp_path, *words)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
    assert newest(tmp_path) == "1-4"


def test_prune_and_doctor_leave_what_an_undoing_needs(tmp_path: Path) -> None:
    trained(tmp_path)
    go_back(tmp_path, "1-2")
    go_back(tmp_path, "1-1")
    opened(tmp_path).claim({})  # a run that died before its first backup
    assert "not named" not in kdc("doctor", tmp_path).stdout
    assert kdc("prune", tmp_path, "--keep", "1", "--force").exit_code == 0
    assert opened(tmp_path).rollback_to(opened(tmp_path).commits()[-1]) is not None
    undo(tmp_path)
    undo(tmp_path)
    assert newest(tmp_path) == "1-4"
    assert len(opened(tmp_path).commits()) == 4
    for one in opened(tmp_path).commits():
        opened(tmp_path).verify(opened(tmp_path).manifest(one))


def test_a_directory_with_a_live_run_is_left_alone_but_by_force(tmp_path: Path) -> None:
    store = begin(tmp_path)
    for number in (1, 2):
        commit(store, number, position=Position("between", number, 0, number), age=1.0)
    result = kdc("rollback", tmp_path, "--to", "1-1")
    assert result.exit_code == 1
    assert "a run may still be writing" in result.stderr
    assert kdc("rollback", tmp_path, "--to", "1-1", "--force").exit_code == 0
    assert newest(tmp_path) == "1-1"


def test_later_checkpoints_are_set_aside_and_come_back(tmp_path: Path) -> None:
    trained(tmp_path / "backup")
    place = tmp_path / "checkpoints"
    place.mkdir()
    for epoch in range(1, 5):
        publish(place, f"ckpt-{epoch}.keras", epoch, tmp_path, step=epoch * 10)
    words = ["rollback", tmp_path / "backup", "--checkpoints", place]
    assert kdc_json(*words, "--to", "1-2")["checkpoints"] == ["ckpt-4.keras", "ckpt-3.keras"]
    assert sorted(path.name for path in place.glob("*.keras")) == ["ckpt-1.keras", "ckpt-2.keras"]
    assert kdc(*words, "--undo").exit_code == 0
    assert sorted(path.name for path in place.glob("*.keras")) == [f"ckpt-{epoch}.keras" for epoch in range(1, 5)]
    assert files.find(Storage.open(place)).problems == ()
