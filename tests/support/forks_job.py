"""A training that starts processes of its own: in its input, in a callback, or before fit().

    python -m tests.support.forks_job KIND DIRECTORY [--plain] [--epochs N]

Writes DIRECTORY/steps (a line for each trained step) and, at the end, DIRECTORY/end (a digest of the weights).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_dist_callbacks as kdc

BATCHES, BATCH = 12, 8
LONG = 1000.0  # longer than any test waits
FORK = multiprocessing.get_context("fork")


def nap(index: int) -> int:
    time.sleep(0.005)
    return index


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.01)
        draw = np.random.default_rng(index)
        return draw.normal(size=(BATCH, 6)).astype("float32"), draw.integers(0, 2, (BATCH, 1)).astype("float32")


def pool() -> None:
    with FORK.Pool(2) as workers:
        assert workers.map(nap, range(4)) == [0, 1, 2, 3]


def process() -> None:
    child = FORK.Process(target=time.sleep, args=(LONG,))
    child.start()
    child.terminate()
    child.join(30)
    assert child.exitcode == -15, f"terminate() left {child.exitcode}"


def daemon() -> None:
    """No one ends it but multiprocessing, when this process exits."""
    if not multiprocessing.active_children():
        FORK.Process(target=time.sleep, args=(LONG,), daemon=True).start()


def executor() -> None:
    with ProcessPoolExecutor(2, mp_context=FORK) as workers:
        assert list(workers.map(nap, range(4))) == [0, 1, 2, 3]


def fork() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(LONG)
        os._exit(0)
    os.kill(child, 15)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -15


def loky() -> None:
    from joblib import Parallel, delayed

    assert Parallel(n_jobs=2, backend="loky")(delayed(nap)(i) for i in range(4)) == [0, 1, 2, 3]


def joblib_multiprocessing() -> None:
    from joblib import Parallel, delayed

    assert Parallel(n_jobs=2, backend="multiprocessing")(delayed(nap)(i) for i in range(4)) == [0, 1, 2, 3]


def command() -> None:
    subprocess.run(["/bin/true"], check=True, preexec_fn=os.getpid)  # Python forks where there is such a function


ACTS: dict[str, Callable[[], None]] = {
    "pool": pool,
    "process": process,
    "daemon": daemon,
    "executor": executor,
    "fork": fork,
    "loky": loky,
    "joblib-multiprocessing": joblib_multiprocessing,
    "command": command,
}
INPUTS = {"pydataset": {"workers": 2, "use_multiprocessing": True}, "torch": {}}
KINDS = [*INPUTS, *ACTS, "before", "none"]


class Starts(keras.callbacks.Callback):
    """Starts processes after each step."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.act = act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.act()


class Notes(keras.callbacks.Callback):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.epoch = path, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        with self.path.open("a") as file:
            file.write(f"{self.epoch} {batch}\n")


kdc.advanced.register_callback_state(Starts, None)
kdc.advanced.register_callback_state(Notes, None)


def source(kind: str) -> Any:
    if kind == "torch":
        import torch

        data = Batches()
        whole = [np.concatenate(part) for part in zip(*(data[i] for i in range(BATCHES)), strict=True)]
        rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, whole))
        return torch.utils.data.DataLoader(rows, batch_size=BATCH, num_workers=2)
    return Batches(**INPUTS.get(kind, {}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--plain", action="store_true", help="without this package's callbacks")
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    keras.utils.set_random_seed(1)
    layers = [keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    callbacks: list[Any] = [Notes(asked.directory / "steps")]
    if asked.kind in ACTS:
        callbacks.append(Starts(ACTS[asked.kind]))
    if not asked.plain:
        callbacks.append(kdc.BackupAndRestore(asked.directory / "backup", save_freq=4, delete_checkpoint=False))
    with contextlib.ExitStack() as around:
        if asked.kind == "before":
            around.enter_context(FORK.Pool(2)).map(nap, range(4))
        model.fit(source(asked.kind), epochs=asked.epochs, shuffle=False, verbose=0, callbacks=callbacks)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    (asked.directory / "end").write_text(digest)


if __name__ == "__main__":
    sys.exit(main())
