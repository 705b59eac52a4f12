"""`python -m tests.support.retention_crashes DIRECTORY RULES STRIDE`: twelve epochs that end at each system call.

RULES is `max_to_keep keep_best keep_every` as JSON. For n = 1, 1 + STRIDE, ... a forked process saves the files of
twelve epochs in DIRECTORY/<n>/ckpt as ModelCheckpoint does, without a model, and ends without any cleanup at its n-th
call that changes a file. What is there then is noted; another process continues after the last epoch that was complete.
Prints a line of JSON for each n: the epochs of the intact files after the kill, the epoch that was complete, and the
epochs of the files at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.callbacks.checkpoint_writer import CheckpointWriter, SavedFile
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.run.engine.writer import Owner, shared_writer
from tests.support.checkpoint_crashes import end_at
from tests.support.checkpoints import TEMPLATE, opened, record, write_model
from tests.support.retention_table import ALL, VALUES


def train(place: Path, rules: Rules) -> None:
    """Saves the epochs that are left."""
    done = place / "done"
    storage = opened(place / "ckpt")
    writer = CheckpointWriter(storage, TEMPLATE, None)
    writer.begin(Owner())
    for epoch in ALL[int(done.read_text()) if done.exists() else 0 :]:
        name = TEMPLATE.format(epoch=epoch)
        new = record(
            *(name, epoch),
            sequence=files.next_sequence(),
            generation=writer.generation,
            run_token=writer.token,
            value=VALUES[epoch - 1],
            **{**dataclasses.asdict(rules), "monitor": "loss"},
        )
        if rules.keep_newest or writer.is_worth_writing(new):
            writer.make_room()
            local = Path(tempfile.mkdtemp())
            write_model(local / name, b"model %d" % epoch)
            writer.submit(SavedFile(local, new, f"saving {name}", shown=False))
            shared_writer().wait()
        (place / "next").write_text(str(epoch))  # as a backup, which is committed after the file
        (place / "next").replace(done)
    assert writer.finish() is None
    writer.conclude(rules)


def forked(run: Callable[[], None]) -> int:
    """The exit code of a forked process."""
    process = os.fork()
    if not process:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the parent sees the exit code
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def intact(place: Path) -> list[int]:
    storage = opened(place / "ckpt")
    found = []
    for one in files.find(storage).checkpoints:
        try:
            found.append(files.verify(storage, one.name).record.epoch)
        except DamagedBackupError:
            continue
    return sorted(found)


def main(directory: Path, rules: Rules, stride: int) -> None:
    tempfile.tempdir = str(directory / "tmp")
    Path(tempfile.tempdir).mkdir(parents=True)
    number, code = 1, 1
    while code:
        place = directory / str(number)
        place.mkdir()

        def until_killed(number: int = number, place: Path = place) -> None:
            end_at(number)
            train(place, rules)

        code = forked(until_killed)
        after_kill, done = intact(place), place / "done"
        complete = int(done.read_text()) if done.exists() else 0
        if code not in (0, 1) or forked(lambda place=place: train(place, rules)):
            sys.exit(f"call {number}: exit code {code}")
        print(json.dumps([after_kill, complete, intact(place)]), flush=True)
        number += stride


if __name__ == "__main__":
    newest, best, every = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), Rules(newest, best, every, "loss", "min"), int(sys.argv[3]))
