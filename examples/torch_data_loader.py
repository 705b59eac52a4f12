"""Trains on a torch `DataLoader` that shuffles with a generator of its own; killed and started again, it resumes.

    python examples/torch_data_loader.py runs/torch

The same with torchdata's `StatefulDataLoader`, if `--stateful` is given. The generator's state is in the backup, so
that the interrupted epoch has its order again. One line is printed for each epoch, with its loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import torch
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

ROWS, BATCH_SIZE = 600, 50


def load_data(stateful: bool) -> Any:
    images, labels = load_digits(return_X_y=True)
    tensors = torch.from_numpy((images / 16.0).astype("float32")[:ROWS]), torch.from_numpy(labels[:ROWS])
    kind = torch.utils.data.DataLoader
    if stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind  # noqa: N813 - one of two classes
    loader = kind(
        torch.utils.data.TensorDataset(*tensors),
        batch_size=BATCH_SIZE,
        shuffle=True,
        generator=torch.Generator().manual_seed(5),
    )
    return kdc.advanced.stateless_input(loader)  # its dataset keeps no state, and no one else draws from its generator


def train(directory: str, stateful: bool = False, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains, or resumes; returns what is printed."""
    keras.utils.set_random_seed(7)
    layers = [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    backup = kdc.BackupAndRestore(
        f"{directory}/backup", save_freq=5, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
    )
    callbacks = [*extra_callbacks, backup]
    history = model.fit(load_data(stateful), epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
    return [f"epoch {number}: loss {loss!r}" for number, loss in enumerate(history.history["loss"], 1)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the backup goes")
    parser.add_argument("--stateful", action="store_true", help="with torchdata's StatefulDataLoader")
    arguments = parser.parse_args()
    print("\n".join(train(arguments.directory, arguments.stateful)))
