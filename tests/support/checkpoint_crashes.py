"""`python -m tests.support.checkpoint_crashes DIRECTORY NAME [named]`: a save that ends at each of its system calls.

DIRECTORY/base is copied to DIRECTORY/<n>, and in the copy a forked process saves a checkpoint under NAME, applies
`max_to_keep=2` and notes the end of training; it ends without any cleanup at its n-th call that changes a file, a write
after half of its bytes. Prints how many calls there are. With `named` no file is without a name.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.checkpoints import end_note, files, retention
from keras_dist_callbacks.storage import plain_files
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import record, write_model

CALLS = ("open", "write", "fsync", "link", "replace", "unlink", "mkdir")


def end_at(number: int) -> None:
    """Lets the process end instead of its `number`-th call."""
    done = 0

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            nonlocal done
            if name == "open" and not given[1] & (os.O_WRONLY | os.O_RDWR):
                return call(*given, **options)
            done += 1
            if done == number:
                if name == "write":
                    call(given[0], given[1][: len(given[1]) // 2])
                os._exit(1)
            return call(*given, **options)

        return counted

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))


def save(directory: Path, name: str) -> None:
    storage = Storage.open(directory / "ckpt")
    template = "best.keras" if name == "best.keras" else "{epoch}.keras"
    listing = files.find(storage)
    token = files.run_token(listing, template)
    source = write_model(directory / name, b"model 3")
    new = record(name, 3, template=template, run_token=token, generation=2)
    published = files.publish(storage, source, new)
    own = files.own(files.find(storage), template, token)
    retention.delete_others(storage, own, Rules(max_to_keep=2), published=published.record)
    end_note.write(storage, template, 2, is_ended=True, last=name)


def main(directory: Path, name: str, *, named: bool) -> None:
    if named:
        plain_files.unnamed_file = lambda directory: None
    number = 0
    while True:
        number += 1
        place = directory / str(number)
        shutil.copytree(directory / "base", place)
        process = os.fork()
        if not process:
            try:
                end_at(number)
                save(place, name)
            except BaseException as error:  # noqa: BLE001 - the parent sees the exit code
                print(repr(error), file=sys.stderr)
                os._exit(2)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code not in (0, 1):
            sys.exit(f"call {number}: exit code {code}")
        if code == 0:
            print(number)
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], named="named" in sys.argv[3:])
