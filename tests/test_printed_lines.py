"""What is printed is a line of its own, and never ends training."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base import terminal
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.terminal import write_line
from tests.support import ROOT, tiny
from tests.support.early_exits import FOREVER, ActionAt, raise_signal

NOTHING_AT_EXCEPTIONS = kdc.ShutdownOptions(save_on_exception=False)


class Writes(io.StringIO):
    """A stream that notes each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's progress bar would come between two."""
    stream = Writes()
    monkeypatch.setattr(sys, "stdout", stream)
    write_line("saved")
    write_line("saved", after_bar=True)
    assert stream.writes == ["saved\n", "\nsaved\n"]


def test_a_stream_of_another_encoding_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    write_line("größe")
    assert raw.getvalue() == b"gr\\xf6\\xdfe\n"


@pytest.mark.parametrize("error", [OSError(28, "no space left"), ValueError("I/O operation on closed file")])
def test_a_stream_that_fails_is_ignored(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stdout", Fails())
    write_line("saved")
    monkeypatch.setattr(sys, "stdout", None)
    write_line("saved")


@pytest.mark.slow
def test_a_preemption_is_reported_on_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.model()
    backup = kdc.BackupAndRestore(
        tmp_path, shutdown_options=kdc.ShutdownOptions(signals=["SIGUSR1"], grace_period=FOREVER)
    )
    try:
        with pytest.raises(kdc.Preempted):
            model.fit(
                tiny.shuffled(),
                epochs=2,
                shuffle=False,
                callbacks=[backup, ActionAt("on_train_batch_end", (0, 2), raise_signal())],
            )
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert "\nkdc: Preempted by SIGUSR1" in capsys.readouterr().out


JOB = """
    import os, signal, sys
    import keras, numpy as np
    import keras_dist_callbacks as kdc
    from tests.support import tiny
    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2 and sys.argv[2] == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
    sys.stdin.read()  # until the other end of stdout is closed
    model = tiny.model()
    saver = kdc.ModelCheckpoint(sys.argv[1] + "/files/{epoch}.keras", verbose=1)
    backup = kdc.BackupAndRestore(sys.argv[1] + "/backup", save_freq=1, delete_checkpoint=False)
    model.fit(tiny.shuffled(), epochs=2, verbose=0, callbacks=[saver, kdc.PrintLR(), backup, Ends()])
    open(sys.argv[1] + "/end", "w").close()
"""


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.slow
def test_a_pipe_without_a_reader_changes_no_exit_code(tmp_path: Path) -> None:
    for what, expected in (("signal", 138), ("resume", 0)):
        job = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(JOB), str(tmp_path), what],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert job.stdout is not None
        job.stdout.close()
        error: Any = job.communicate(timeout=120)[1]
        assert job.returncode == expected, error.decode()
    assert (tmp_path / "end").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("verbose", "batch"), [(1, 0), (1, 3), (2, 3)])
def test_a_resume_is_announced_before_keras_line_of_its_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: int, batch: int
) -> None:
    tiny.interrupt(tmp_path, 1, batch, save_freq=1 if batch else "epoch")
    capsys.readouterr()
    backup = kdc.BackupAndRestore(tmp_path, verbose=1)
    tiny.model().fit(tiny.shuffled(), epochs=2, verbose=verbose, callbacks=[backup], shuffle=False)
    lines = capsys.readouterr().out.splitlines()
    where = f"epoch 2, batch 3 (step {tiny.STEPS + 3})" if batch else f"the end of epoch 1 (step {tiny.STEPS})"
    assert lines[0].startswith(f"kdc: Resumed from {tmp_path} 1-")
    assert f" at {where}: exact" in lines[0]
    assert [line for line in lines if line.startswith("Epoch")] == [lines[1]] == ["Epoch 2/2"]


@pytest.mark.slow
def test_why_a_resume_is_not_exact_is_said_once_and_each_reason_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(rate: float, *callbacks: Any) -> None:
        dataset = tiny.shuffled().map(lambda x, y: (x + tf.random.uniform([6]), y), num_parallel_calls=2)
        model = tiny.model(optimizer=keras.optimizers.SGD(rate))
        backup = kdc.BackupAndRestore(tmp_path, save_freq=2, shutdown_options=NOTHING_AT_EXCEPTIONS)
        tiny.fit(model, None, [backup, *callbacks], x=dataset)

    with pytest.raises(tiny.Stop):
        run(0.1, tiny.StopAt(1, 3))
    capsys.readouterr()
    with pytest.warns(RuntimeWarning) as warned:
        run(0.2)
    (text,) = [str(one.message) for one in warned]
    said, (first, *reasons) = text + capsys.readouterr().out, text.splitlines()
    assert first == "the resume is not exact:"
    assert [reason[:14] for reason in reasons] == ["- the parallel", "- the learning"]
    assert [said.count(reason[2:40]) for reason in reasons] == [1, 1]


def test_an_input_without_an_order_is_named_before_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared(terminal.Output), "said", set())  # once in a process
    dataset = tiny.shuffled().map(lambda x, y: (x + tf.random.uniform([6]), y), num_parallel_calls=2)
    callback = kdc.BackupAndRestore(tmp_path, save_freq=2, verbose=1)
    tiny.fit(tiny.rich_model(), None, [callback], x=dataset)
    line = "A resume of this run would not be exact: the parallel calls of Dataset.map(test_printed_lines.py:"
    assert capsys.readouterr().out.count(line) == 1
