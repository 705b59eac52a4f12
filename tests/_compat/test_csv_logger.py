"""CSVLogger's file over interruptions: no row twice, none lost, one header, and no one's file is harmed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError
from keras_dist_callbacks.testing.local_cluster import run_until_done
from tests.support import forget_runs, tiny
from tests.support.early_exits import ActionAt, fail
from tests.support.processes import worker_processes
from tests.support.resume_helpers import assert_same_files, attempts, close_files, records

pytestmark = pytest.mark.slow  # complete fits

OLD = b"epoch,of an earlier job\r\n0,1\r\n"


def logger(directory: Path, *, append: bool = False) -> keras.callbacks.CSVLogger:
    return keras.callbacks.CSVLogger(directory / "rows.csv", append=append)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("uninterrupted")
    tiny.fit(tiny.model(), None, [logger(directory)])
    return (directory / "rows.csv").read_bytes()


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run that logged epochs 0 and 1, of which the backup knows epoch 0 alone."""
    rows = logger(tmp_path)

    stop = ActionAt("on_epoch_end", (1, 0), fail)
    tiny.stopped(tiny.fit, tiny.model(), tmp_path / "backup", [rows, stop], save_freq="epoch")
    close_files([rows])
    assert (tmp_path / "rows.csv").read_bytes().count(b"\r\n") == 3
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    import gc

    yield
    gc.collect()  # an unclosed file is a warning, and so an error, here


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("append", [False, True])
def test_rows_of_epochs_that_run_again_are_not_written_twice(interrupted: Path, expected: bytes, append: bool) -> None:
    tiny.fit(tiny.model(), interrupted / "backup", [logger(interrupted, append=append)])
    assert (interrupted / "rows.csv").read_bytes() == expected


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("append", [False, True])
def test_a_run_interrupted_before_its_first_row_writes_one_header(
    tmp_path: Path, expected: bytes, append: bool
) -> None:
    (tmp_path / "rows.csv").write_bytes(OLD)
    for batch in (1, 2):
        rows = logger(tmp_path, append=append)
        tiny.interrupt(tmp_path / "backup", 0, batch, callbacks=[rows])
        close_files([rows])
    tiny.fit(tiny.model(), tmp_path / "backup", [logger(tmp_path, append=append)])
    without_header = expected.partition(b"\r\n")[2]
    assert (tmp_path / "rows.csv").read_bytes() == (OLD + without_header if append else expected)


def test_columns_stay_as_the_first_epoch_made_them(tmp_path: Path) -> None:
    x, y = tiny.data()

    def with_few_validations(directory: Path) -> list[Any]:
        directory.mkdir(exist_ok=True)  # the rate gets a column of its own, and one for a validation it never has
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2), logger(directory)]

    given: dict[str, Any] = {"validation_data": (x, y), "validation_freq": 2, "epochs": 4, "expects": None}
    callbacks = attempts(with_few_validations, tmp_path, [0] * 4)
    tiny.resumes(tmp_path / "backup", at=((1, 2), (2, 1, "epoch"), (3, 0)), callbacks=callbacks, **given)
    assert_same_files(tmp_path / "resumed", tmp_path / "uninterrupted")


@pytest.mark.filterwarnings("ignore:.*runs no step:RuntimeWarning")  # a rerun is in a process of its own
def test_the_rows_of_a_finished_job_stay_when_it_is_started_again(tmp_path: Path, expected: bytes) -> None:
    for _ in range(2):
        forget_runs()  # as in another process
        tiny.fit(tiny.model(), tmp_path / "backup", [logger(tmp_path)], options={"delete_checkpoint": False})
        assert (tmp_path / "rows.csv").read_bytes() == expected


def test_a_later_fit_overwrites_the_file_as_the_user_has_asked_for(interrupted: Path, expected: bytes) -> None:
    rows = logger(interrupted)
    tiny.fit(tiny.model(), interrupted / "backup", [rows])
    assert rows.append is False
    tiny.fit(tiny.model(), None, [rows])
    assert (interrupted / "rows.csv").read_bytes() == expected


def test_a_fit_that_fails_before_it_begins_leaves_the_users_argument_alone(interrupted: Path, expected: bytes) -> None:
    fails = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: fail())
    rows, backup = logger(interrupted), kdc.BackupAndRestore(interrupted / "backup", save_freq=1)
    tiny.stopped(tiny.fit, tiny.model(), None, [fails, rows, backup])
    tiny.fit(tiny.model(), None, [rows, backup])
    assert rows.append is False
    assert (interrupted / "rows.csv").read_bytes() == expected


@pytest.mark.filterwarnings("ignore:an earlier fit:RuntimeWarning")
def test_a_backup_that_is_refused_leaves_all_rows(interrupted: Path) -> None:
    before = (interrupted / "rows.csv").read_bytes()
    rows = logger(interrupted)
    with pytest.raises(BackupError):
        tiny.fit(tiny.model(units=9), interrupted / "backup", [rows])
    close_files([rows])
    assert (interrupted / "rows.csv").read_bytes() == before


@pytest.mark.finds("rows-missing")
def test_a_file_that_is_gone_is_named_and_begun_again(interrupted: Path, expected: bytes) -> None:
    (interrupted / "rows.csv").unlink()
    with pytest.warns(RuntimeWarning, match=r"rows\.csv has 0 of the \d+ bytes .* earlier epochs are missing"):
        tiny.fit(tiny.model(), interrupted / "backup", [logger(interrupted)])
    header, _, *others = expected.splitlines(keepends=True)
    assert (interrupted / "rows.csv").read_bytes() == b"".join([header, *others])


@pytest.mark.finds("rows-changed")
def test_a_file_that_was_changed_is_kept_and_named(interrupted: Path, expected: bytes) -> None:
    changed = b"# edited by hand\r\n" + (interrupted / "rows.csv").read_bytes()
    (interrupted / "rows.csv").write_bytes(changed)
    with pytest.warns(RuntimeWarning, match=r"rows\.csv was changed since the backup; it is kept"):
        tiny.fit(tiny.model(), interrupted / "backup", [logger(interrupted)])
    assert (interrupted / "rows.csv").read_bytes() == changed + b"".join(expected.splitlines(keepends=True)[2:])


def test_another_file_name_is_another_log(interrupted: Path, expected: bytes) -> None:
    before = (interrupted / "rows.csv").read_bytes()
    other, backup = keras.callbacks.CSVLogger(interrupted / "other.csv"), kdc.BackupAndRestore(interrupted / "backup")
    tiny.fit(tiny.model(), None, [other, backup])
    assert backup.restored is not None
    assert backup.restored.notes == ()
    assert "CSVLogger" not in str(backup.restored.conditions)
    assert (interrupted / "rows.csv").read_bytes() == before
    assert (interrupted / "other.csv").read_bytes().count(b"\r\n") == 3


def test_a_file_that_cannot_be_cut_is_a_clear_error(interrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, size: int) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr("os.truncate", refuse)
    rows = logger(interrupted)
    with pytest.raises(
        BackupError, match=r"cannot remove the rows of .*rows\.csv that training writes again: read-only file system"
    ):
        tiny.fit(tiny.model(), interrupted / "backup", [rows])
    close_files([rows])


def test_in_a_list_that_the_user_has_built_all_is_exact_but_the_file_which_is_named(
    tmp_path: Path, uninterrupted: Any, expected: bytes
) -> None:
    def fit(*others: keras.callbacks.Callback) -> keras.Model:
        model, rows = tiny.model(), logger(tmp_path)
        arguments = {"epochs": 3, "steps": tiny.STEPS, "verbose": 0}
        every = keras.callbacks.CallbackList([*others, rows], add_history=True, model=model, **arguments)
        try:
            model.fit(tiny.shuffled(), epochs=3, verbose=0, callbacks=every, shuffle=False)
        finally:
            close_files([rows])
        return model

    with pytest.warns(RuntimeWarning, match=r"rows\.csv has 0 of the \d+ bytes"):
        ended = tiny.resumes(tmp_path / "backup", run=fit, expects=None, alike=False)
    tiny.assert_same(ended.model, uninterrupted[0])
    header, _, *others = expected.splitlines(keepends=True)
    assert (tmp_path / "rows.csv").read_bytes() == b"".join([header, *others])


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(600)
def test_a_job_killed_with_sigkill_leaves_the_files_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """KillAt strikes while a save may be running: what the backup does not know was written already, too."""
    script = [sys.executable, "-m", "tests.support.callback_workload"]
    kills = ["epoch=0,batch=3", "phase=epoch_end,epoch=1", "epoch=2,batch=1", "phase=train_end"]
    for directory, extra in ((tmp_path / "killed", kills), (tmp_path / "uninterrupted", [])):
        directory.mkdir()
        with worker_processes([*script, str(directory)], 1, directory / "logs") as cluster:
            attempts = run_until_done(
                cluster, len(extra), 300.0, extra_args=[["--kill", f"{kill},after_commit=false"] for kill in extra]
            )
            assert [attempt.returncodes[0] for attempt in attempts] == [-9] * len(extra) + [0], cluster.tails()
    assert records(tmp_path / "uninterrupted")
    assert_same_files(tmp_path / "killed", tmp_path / "uninterrupted")
