"""What a resumed run shows and sends: the progress bar, a monitoring server, summaries of the user's own."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat.tensorboard_state import pushes_each_step
from tests.support import tiny
from tests.support.callback_helpers import scalars
from tests.support.resume_helpers import StopInValidation

pytestmark = pytest.mark.slow  # complete fits

X, Y = tiny.data()
VALIDATION = (X[:16], Y[:16])


def shown_steps(output: str) -> dict[str, list[str]]:
    """The steps that the progress bar has shown, by epoch."""
    epochs = re.split(r"Epoch (\d+)/\d+", re.sub(r"\x1b\[[0-9;]*m", "", output))[1:]
    return {
        epoch: re.findall(r"(\d+/(?:\d+|Unknown)) ", text)
        for epoch, text in zip(epochs[::2], epochs[1::2], strict=True)
    }


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("length_is_known", [True, False])
@pytest.mark.parametrize(("stop", "first"), [(tiny.StopAt(1, 3), "4/5"), (StopInValidation(1), "5/5")])
def test_the_progress_bar_continues_at_the_right_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], length_is_known: bool, stop: Any, first: str
) -> None:
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(tiny.BATCH)
    if not length_is_known:
        rows = rows.filter(lambda x, y: True)

    def fit(*callbacks: Any) -> None:
        capsys.readouterr()
        tiny.model().fit(rows, epochs=3, validation_data=VALIDATION, shuffle=False, callbacks=callbacks, verbose=1)

    tiny.resumes(tmp_path, run=fit, at=stop, options={"verbose": 0}, expects=None, alike=False)
    shown = shown_steps(capsys.readouterr().out)
    assert list(shown) == ["2", "3"]
    assert shown["2"][0] == first
    assert shown["2"][-1] == shown["3"][-1] == "5/5"
    assert shown["3"][0] == "1/5"


def test_the_progress_bar_may_come_and_go(tmp_path: Path) -> None:
    verbose = iter([0, 2, 0])

    def fit(*callbacks: Any) -> None:
        tiny.model().fit(tiny.shuffled(), shuffle=False, verbose=next(verbose), callbacks=callbacks)

    tiny.resumes(tmp_path, run=fit, at=((0, 2), (0, 3)), expects=None, alike=False)


def test_each_epoch_is_sent_to_a_server_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    remote = importlib.import_module("keras.src.callbacks.remote_monitor")
    monkeypatch.setattr(
        remote,
        "requests",
        SimpleNamespace(post=lambda url, data, headers: sent.append(json.loads(data["data"])["epoch"])),
    )

    monitors = lambda: [keras.callbacks.RemoteMonitor("http://localhost:9")]  # noqa: E731
    places = ((0, 2), (1, 0, "epoch"), (2, 4))
    tiny.resumes(tmp_path, at=places, callbacks=monitors, expects=None, alike=False)
    assert sent == [0, 1, 2]


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("board", [keras.callbacks.TensorBoard, kdc.TensorBoard])
def test_summaries_of_the_users_own_get_the_right_step_and_speeds_are_those_of_this_process(
    tmp_path: Path, board: Any
) -> None:
    def logging() -> list[Any]:
        return [
            board(tmp_path / "board", update_freq=1, write_steps_per_second=True),
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: tf.summary.scalar("epoch_begins", float(epoch))
            ),
        ]

    def steady() -> keras.Model:
        model = tiny.model()
        model.optimizer.iterations.assign(10**6)  # which a speed that counts from 0 would show
        return model

    given: dict[str, Any] = {"at": ((1, 0, "epoch"), (2, 2)), "expects": None, "alike": False}
    tiny.resumes(tmp_path / "backup", steady, callbacks=logging, **given)
    run = tmp_path / "board" / "train"
    begins = sorted(set(scalars(run)["epoch_begins"]))
    if pushes_each_step():
        assert begins == [(0, 0.0), (5, 1.0), (10, 2.0), (12, 2.0)]  # fit begins the interrupted epoch once more
    else:
        assert begins == [(0, 0.0), (0, 1.0), (0, 2.0)]  # this Keras gives them step 0, also without a kill
    assert all(0 < speed < 10**4 for _, speed in scalars(run)["epoch_steps_per_second"])
