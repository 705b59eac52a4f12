"""A process that reads backups all the time, next to the training that writes and deletes them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat.variables import named_variables
from tests.support import ROOT, tiny
from tests.support.many_reads import digest
from tests.support.stores.fixtures import Place

pytestmark = [pytest.mark.chaos, pytest.mark.process]

READS = 200
EPOCHS = 10_000  # more than any reader needs


class ReadBeside(keras.callbacks.Callback):
    """Starts the reader after the first backup, notes what training has at each step, and stops with the reader."""

    def __init__(self, place: Place, out: Path) -> None:
        super().__init__()
        self.place, self.out = place, out
        self.had: dict[int, str] = {}
        self.reader: subprocess.Popen[bytes] | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        values = named_variables(self.model).items()
        self.had[step] = digest((name, variable.numpy()) for name, variable in values)
        if self.reader is None and step % 5 == 0 and self.place.open().files("commits"):
            self.reader = self._start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.reader is not None and self.reader.poll() is not None:
            self.model.stop_training = True
        time.sleep(0.01)  # a step that takes no time leaves the reader none

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.many_reads", str(READS), str(self.out)]
        with self.out.with_suffix(".errors").open("wb") as errors:
            started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=errors)
        assert started.stdin is not None
        started.stdin.write(json.dumps({"url": self.place.url, "options": self.place.options}).encode())
        started.stdin.close()
        return started


kdc.advanced.register_callback_state(ReadBeside, None)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_two_hundred_reads_next_to_a_training_disturb_nothing_and_read_what_it_had(
    place: Place, tmp_path: Path
) -> None:
    beside = ReadBeside(place, tmp_path / "read.txt")
    trained = tiny.model()
    options = {"storage_options": place.options, "delete_checkpoint": False}
    tiny.fit(trained, place.url, [beside], epochs=EPOCHS, options=options)
    assert beside.reader is not None
    assert beside.reader.returncode == 0, beside.out.with_suffix(".errors").read_text()
    read = [line.split() for line in beside.out.read_text().splitlines()]
    assert len(read) == READS
    assert [step for step, found in read if beside.had[int(step)] != found] == []
    different = len({step for step, _ in read})
    print(f"{different} different backups in {READS} reads, beside {len(beside.had)} steps")
    assert different > READS // 10
    reference = tiny.model()
    tiny.fit(reference, None, epochs=len(beside.had) // tiny.STEPS)
    tiny.assert_same(trained, reference)
