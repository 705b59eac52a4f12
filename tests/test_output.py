"""Where a line goes: printed on the chief while Keras prints its own, and always logged."""

from __future__ import annotations

import functools
import io
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base import terminal
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.terminal import is_shown, say
from keras_dist_callbacks.callbacks import checkpoint_writer
from tests.support import ROOT, evaluator_runs, tiny
from tests.support.callback_helpers import fit, tiny_model
from tests.support.early_exits import FOREVER, ActionAt, raise_signal
from tests.support.grouped import grouped

NAME = "keras_dist_callbacks"
ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2"]


@pytest.fixture(autouse=True)
def interactive(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, NAME)
    yield
    keras.config.enable_interactive_logging()


def be(monkeypatch: pytest.MonkeyPatch, task: str, index: int) -> None:
    cluster = {"worker": ADDRESSES}
    config = {"cluster": cluster, "task": {"type": task, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == NAME]


@pytest.mark.parametrize("on", [True, False], ids=["interactive", "not interactive"])
@pytest.mark.parametrize("verbose", [1, 0])
@pytest.mark.parametrize(
    ("task", "index", "prints"), [("worker", 0, True), ("worker", 1, False), ("evaluator", 0, True)]
)
def test_a_line_is_printed_on_the_chief_while_keras_prints_and_always_logged(
    on: bool,
    verbose: int,
    task: str,
    index: int,
    prints: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    be(monkeypatch, task, index)
    if not on:
        keras.config.disable_interactive_logging()
    say("saved 100%s", verbose=verbose, level=logging.WARNING)
    say("saved", verbose=verbose, to_stderr=True)
    shown = prints and on and verbose == 1
    assert capsys.readouterr() == (("kdc: saved 100%s\n", "kdc: saved\n") if shown else ("", ""))
    assert logged(caplog) == [(logging.WARNING, "saved 100%s"), (logging.INFO, "saved")]


def test_a_malformed_tf_config_is_not_reported_by_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    say("saved")
    assert capsys.readouterr().out == "kdc: saved\n"


def test_the_log_has_no_level_and_no_handler_that_prints() -> None:
    log = logging.getLogger(NAME)
    log.setLevel(logging.NOTSET)  # what caplog has set for this test
    assert [type(handler) for handler in log.handlers] == [logging.NullHandler]
    assert log.propagate


class Broken(io.StringIO):
    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error("broken")

    def isatty(self) -> bool:
        return True


class RaisesItself(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("error", [BrokenPipeError, OSError, ValueError])
def test_a_stream_or_handler_that_is_broken_raises_nothing(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(error))
    monkeypatch.setattr(sys, "stderr", Broken(error))
    log, handlers = logging.getLogger(NAME), [logging.StreamHandler(Broken(error)), RaisesItself()]
    for handler in handlers:
        log.addHandler(handler)
    try:
        say("saved")
    finally:
        for handler in handlers:
            log.removeHandler(handler)


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_a_bar_on_a_broken_stream_ends_no_upload(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Broken(error)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(terminal, "_SHOW_AFTER", 0.0)
    monkeypatch.setattr("rich.live.Live.start", functools.partial(_fails, error))
    with terminal.uploads("saving", 10) as advance:
        advance(10)
    with terminal.reading("reading", 10) as advance:
        advance(10)
    stream.close()
    with terminal.uploads("saving", 10) as advance:
        advance(10)


def _fails(error: type[Exception], *given: Any, **options: Any) -> None:
    raise error("broken")


@pytest.mark.process
def test_keras_is_not_imported_to_print_a_line() -> None:
    code = f"import sys; from {NAME}.base.terminal import say; say('saved'); print('keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "kdc: saved\nFalse\n"


# --- every line of the package


def built() -> keras.Model:
    """A model, with Keras' switch as it was: `clear_session` turns it on."""
    is_on = keras.config.is_interactive_logging_enabled()
    model = tiny.model()
    if not is_on:
        keras.config.disable_interactive_logging()
    return model


def restore(directory: Path, verbose: int) -> None:
    for stop in (tiny.StopAt(1, 0), None):
        backup = kdc.BackupAndRestore(
            directory / "backup",
            delete_checkpoint=False,
            shutdown_options=kdc.ShutdownOptions(save_on_exception=False),
            verbose=verbose,
        )
        try:
            tiny.fit(built(), None, [*([stop] if stop else []), backup], epochs=2)
        except tiny.Stop:
            continue


def preempted(directory: Path, verbose: int) -> None:
    options: dict[str, Any] = {"signals": ["SIGUSR1"], "grace_period": FOREVER, "verbose": verbose}
    callbacks = [
        kdc.BackupAndRestore(directory, **grouped(**options)),
        ActionAt("on_train_batch_end", (0, 2), raise_signal()),
    ]
    try:
        with pytest.raises(kdc.Preempted):
            tiny.fit(built(), None, callbacks)
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def checkpoint(directory: Path, verbose: int) -> None:
    fit(tiny_model(), kdc.ModelCheckpoint(directory / "{epoch}.keras", verbose=verbose))


def model(directory: Path, verbose: int) -> None:
    kdc.make_or_restore_model(tiny_model, directory, verbose=verbose)


def evaluator(directory: Path, verbose: int) -> None:
    options = {"poll_seconds": 0.01, "timeout": 0.02, "verbose": verbose}
    kdc.SidecarEvaluator(
        evaluator_runs.shared(), evaluator_runs.DATA, directory / "ckpt", log_dir=directory / "log", **options
    ).start()


def rate(directory: Path, verbose: int) -> None:
    fit(tiny_model(), kdc.PrintLR())


def loop(directory: Path, verbose: int) -> None:
    model = tiny_model()
    model.optimizer.build(model.trainable_variables)
    for _ in range(2):
        checkpointer = kdc.Checkpointer(directory, model=model, optimizer=model.optimizer, delete_checkpoint=False)
        checkpointer.restore()
        checkpointer.close()


LINES: dict[str, tuple[Callable[[Path, int], None], int, list[str]]] = {
    "BackupAndRestore": (restore, logging.INFO, ["Resumed from "]),
    "preemption": (preempted, logging.WARNING, ["Preempted by SIGUSR1"]),
    "ModelCheckpoint": (checkpoint, logging.INFO, ["Epoch 1: saving model to"]),
    "make_or_restore_model": (model, logging.INFO, ["no checkpoint in"]),
    "SidecarEvaluator": (evaluator, logging.INFO, ["evaluating", "no new checkpoint within"]),
    "PrintLR": (rate, logging.INFO, ["Epoch 1: learning rate 0.01"]),
    "Checkpointer": (loop, logging.INFO, ["Resumed from "]),
}
SILENT = {"PrintLR", "Checkpointer"}  # without `verbose`


def printed(out: str, parts: list[str]) -> list[bool]:
    """Whether each is the begin of a line, behind the one prefix of this package."""
    return [f"\nkdc: {part}" in f"\n{out}" for part in parts]


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("case", ["shown", "not interactive", "verbose=0", "other worker"])
def test_each_line_of_the_package_follows_the_rule(
    name: str,
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    produce, level, parts = LINES[name]
    verbose = 0 if case == "verbose=0" else 1
    if verbose == 0 and name in SILENT:
        return
    if case == "not interactive":
        keras.config.disable_interactive_logging()
    if case == "other worker":
        monkeypatch.setattr(shared(terminal.Output), "prints", lambda: False)
    produce(tmp_path, verbose)
    captured = capsys.readouterr()
    assert printed(captured.out, parts) == [case == "shown"] * len(parts)
    found = logged(caplog)
    for part in parts:
        assert [number for number, text in found if part in text] == [level], found


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_no_line_of_the_package_ends_training_where_stdout_is_broken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError))
    produce, _, parts = LINES[name]
    if name == "SidecarEvaluator":
        monkeypatch.setattr(sys, "stderr", Broken(BrokenPipeError))
    produce(tmp_path, 1)
    found = logged(caplog)
    assert all(any(part in text for _, text in found) for part in parts), found


def test_what_a_background_thread_shows_was_decided_in_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras keeps its switch per thread, and a file is published by another one."""
    keras.config.disable_interactive_logging()
    assert not is_shown()
    seen: list[bool] = []

    def uploads(what: str, size: int, *, shown: bool) -> Any:
        seen.append(shown)
        return terminal.uploads(what, size, shown=shown)

    monkeypatch.setattr(checkpoint_writer, "uploads", uploads)
    fit(tiny_model(), kdc.ModelCheckpoint(tmp_path / "{epoch}.keras", verbose=1))
    assert seen == [False]
