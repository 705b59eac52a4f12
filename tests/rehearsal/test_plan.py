"""The plan of a rehearsal counts only while the command that made it holds its lock."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Plan, plan_in_force, published
from tests.support import tiny

OTHER_USER = 65534


def plan(tmp_path: Path) -> Plan:
    return Plan(str(tmp_path / "scratch"), str(tmp_path), "", steps=4, epochs=2, version=1, began=0.0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A plan that is in force, and named in the environment."""
    place = tmp_path / "plan.json"
    monkeypatch.setenv(VARIABLE, str(place))
    with published(place, plan(tmp_path)):
        yield place


def left_behind(path: Path) -> None:
    """Its command has ended: by itself it would have deleted the plan, so it was killed."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)


def of_another_user(path: Path) -> None:
    os.chown(path, OTHER_USER, OTHER_USER)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def of_another_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))


def with_other_numbers(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"steps":4', b'"steps":0'))


def open_to_others(path: Path) -> None:
    path.chmod(0o604)


def deleted(path: Path) -> None:
    path.unlink()


def behind_a_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


NOT_IN_FORCE = {
    left_behind: "the command that made it has ended",
    of_another_user: "it belongs to another user",
    truncated: "it is not complete",
    empty: "it is not complete",
    of_another_version: "it is not complete, or not one of this version",
    with_other_numbers: "it is not complete, or not one of this version",
    open_to_others: "other users may read or write it",
    deleted: "it cannot be opened",
    behind_a_link: "it cannot be opened",
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
CASES = [pytest.param(case, marks=needs_root if case is of_another_user else ()) for case in NOT_IN_FORCE]


def test_without_the_variable_no_plan_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert plan_in_force() is None
    monkeypatch.setenv(VARIABLE, "")
    assert plan_in_force() is None


def test_a_plan_is_in_force_while_its_command_holds_the_lock_and_not_a_moment_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "plan.json"
    monkeypatch.setenv(VARIABLE, str(place))
    with published(place, plan(tmp_path)):
        assert plan_in_force() == plan(tmp_path)
        assert plan_in_force() == plan(tmp_path)  # to ask takes nothing away
    assert not place.exists()
    with pytest.raises(ConfigError, match="cannot be opened"):
        plan_in_force()


@pytest.mark.parametrize("case", CASES)
def test_a_plan_that_is_not_in_force_is_an_error_with_its_reason(path: Path, case: Callable[[Path], None]) -> None:
    case(path)
    with pytest.raises(ConfigError, match=NOT_IN_FORCE[case]) as caught:
        plan_in_force()
    assert f"remove {VARIABLE} from the environment" in str(caught.value)


def test_a_directory_is_not_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="it is not a file"):
        plan_in_force()


def test_a_relative_path_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "plan.json")
    with pytest.raises(ConfigError, match="not the absolute path of a plan"):
        plan_in_force()


def test_two_processes_that_ask_do_not_take_each_other_for_the_command(path: Path) -> None:
    left_behind(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # as another process does while it asks
        with pytest.raises(ConfigError, match="the command that made it has ended"):
            plan_in_force()
    finally:
        os.close(descriptor)


@pytest.mark.process
def test_a_command_that_is_killed_leaves_a_plan_that_is_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "plan.json"
    code = (
        "import sys, time; from pathlib import Path; from keras_dist_callbacks.rehearsal.plan import Plan, published\n"
        "with published(Path(sys.argv[1]), Plan('s', 'r', '', 4, 2, 1, 0.0)):\n    print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        command.stdout.readline()
        monkeypatch.setenv(VARIABLE, str(place))
        assert plan_in_force() == Plan("s", "r", "", 4, 2, 1, 0.0)
        command.send_signal(signal.SIGKILL)
        command.wait(10)
        assert place.exists()
        with pytest.raises(ConfigError, match="the command that made it has ended"):
            plan_in_force()


def make_backup(place: Path) -> object:
    return kdc.BackupAndRestore(place / "backup")


def make_checkpoint(place: Path) -> object:
    return kdc.ModelCheckpoint(place / "last.keras")


def make_model(place: Path) -> object:
    return kdc.make_or_restore_model(tiny.model, place)


def find_checkpoint(place: Path) -> object:
    return kdc.latest_checkpoint(place)


def make_loop(place: Path) -> object:
    return kdc.Checkpointer(place / "backup", model=tiny.model())


MAKERS = [make_backup, make_checkpoint, make_model, find_checkpoint, make_loop]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("case", CASES[:3])
def test_whatever_would_save_refuses_a_plan_that_is_not_in_force(
    path: Path, tmp_path: Path, case: Callable[[Path], None], make: Callable[[Path], object]
) -> None:
    case(path)
    with pytest.raises(ConfigError, match=NOT_IN_FORCE[case]):
        make(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", CASES[:3])
def test_a_plan_that_ends_before_fit_lets_no_step_be_trained(
    path: Path, tmp_path: Path, case: Callable[[Path], None]
) -> None:
    callbacks = [tiny.CountSteps(), kdc.BackupAndRestore(tmp_path / "run")]
    case(path)
    with pytest.raises(ConfigError, match=NOT_IN_FORCE[case]):
        tiny.model().fit(tiny.shuffled(), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    assert callbacks[0].trained == []


def test_a_plan_that_comes_into_force_after_the_callback_was_made_lets_no_step_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, backup = tiny.CountSteps(), kdc.BackupAndRestore(tmp_path / "run")
    place = tmp_path / "plan.json"
    monkeypatch.setenv(VARIABLE, str(place))
    with published(place, plan(tmp_path)), pytest.raises(ConfigError, match="has changed since"):
        tiny.model().fit(tiny.shuffled(), epochs=3, verbose=0, shuffle=False, callbacks=[steps, backup])
    assert steps.trained == []
    assert not (tmp_path / "run").exists()


def test_a_variable_that_was_removed_after_the_callback_was_made_lets_no_step_be_trained(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks: list[keras.callbacks.Callback] = [tiny.CountSteps(), kdc.BackupAndRestore(tmp_path / "run")]
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigError, match="has changed since"):
        tiny.model().fit(tiny.shuffled(), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    assert callbacks[0].trained == []


def test_a_loop_with_checkpointer_is_refused_while_a_plan_is_in_force(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no loop with Checkpointer"):
        make_loop(tmp_path)
