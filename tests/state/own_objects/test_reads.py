# ruff: noqa: PTH103, PTH107, PTH110, PTH208, PTH118, SIM115, UP015, S311 - the ways in which users open files and draw
"""What the bytecode of a function says: whether it reads files, and from which random states it draws."""

from __future__ import annotations

import gzip
import os
import pathlib
import random
import subprocess
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks.state.own_objects.reads import draws_from_shared_state, reads_of

READS: dict[str, tuple[Callable[..., Any], str | None]] = {
    "makes a directory": (lambda self: os.path.exists(self.path) or os.makedirs(self.path), None),
    "deletes old output": (lambda self: [os.remove(name) for name in os.listdir(self.path)], None),
    "appends": (lambda self: open(self.path, "a").write("r"), None),
    "writes by keyword": (lambda self: open(os.path.join(self.path, "x"), mode="w", encoding="utf-8").write("r"), None),
    "writes to a path": (lambda self: pathlib.Path(self.path, "r").open("w").write("a"), None),
    "writes compressed": (lambda self: gzip.open(f"{self.path}/{self.number:03d}.gz", "wt").write("text"), None),
    "writes after a call": (lambda self: open(str(self.names.get("a", "r")) + "x", "wb", buffering=0).write(b""), None),
    "writes several": (lambda self: [open(path, "w").close() for path in self.paths], None),
    "a method of its own": (lambda self: self.load(), None),
    "a method of its own and one of numpy's": (lambda self: self.load() + np.load(self.path), "load"),
    "a method of another object": (lambda other: other.load(), "load"),
    "asks the machine": (lambda: open("/proc/meminfo").read(), None),
    "asks whether a file is there": (lambda self: os.path.exists(self.path), "exists"),
    "counts its files": (lambda self: os.makedirs(self.path, exist_ok=True) or len(os.listdir(self.path)), "listdir"),
    "looks beside a list": (lambda self: self.left.remove(1) or list(pathlib.Path(self.path).glob("*.npz")), "glob"),
    "a database": (lambda self: self.database.execute("select count(*) from rows").fetchone(), "fetchone"),
    "another program": (lambda self: subprocess.run(self.command, capture_output=True, check=True), "capture_output"),
    "short texts": (lambda self: "w" if open(self.path).readline() == "acc" else None, "open"),
    "copies": (lambda self: open(self.target, "w").write(open(self.source).read()), "open"),
    "appends and reads": (lambda self: open(self.path, "a+").read(), "open"),
    "a file called w": (lambda: open("w").read(), "open"),
    "hands open on": (lambda self: self.apply(open, self.path), "open"),
    "decides on the mode": (lambda self: open(self.path, "w" if self.is_first else "r"), "open"),
    "by keyword": (lambda self: open(file=self.path, mode="r", encoding="w"), "open"),
    "with options": (lambda self: open(self.path, **self.options), "open"),
    "by TensorFlow": (lambda self: tf.io.gfile.GFile(self.path).read(), "open"),
}


@pytest.mark.parametrize(("function", "said"), READS.values(), ids=READS)
def test_a_function_that_reads_a_file_or_asks_another_program_says_so(
    function: Callable[..., Any], said: str | None
) -> None:
    assert reads_of(function.__code__).reads_files == said


DRAWS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "with a seed of its own": (lambda self: tf.random.normal((2,), seed=self.seed), {"seeded", "unseeded"}),
    "without a state": (lambda: tf.random.stateless_normal((2,), seed=(1, 2)), set()),
    "without a seed": (lambda: tf.random.normal((2,)), {"unseeded"}),
    "shuffles a dataset": (lambda self: self.rows.shuffle(9), {"unseeded"}),
    "flips an image": (lambda image: tf.image.random_flip_up_down(image), {"unseeded"}),
    "fits a model": (lambda model: model.fit(model), {"unseeded"}),
    "resizes and activates": (lambda image: tf.image.resize(image, (2, 2)) + tf.nn.relu(image), set()),
    "a generator": (lambda: tf.random.Generator.from_seed(1).normal(()), set()),
    "shuffles a list": (lambda rows: random.shuffle(rows), {"shared"}),
    "of Keras": (lambda self: keras.random.uniform((2,), seed=self.seed), set()),
    "of Python": (lambda: random.random(), {"shared"}),
    "of numpy": (lambda: np.random.normal(), {"shared"}),
}


@pytest.mark.parametrize(("function", "kinds"), DRAWS.values(), ids=DRAWS)
def test_from_which_random_states_a_function_draws_is_seen(function: Callable[..., Any], kinds: set[str]) -> None:
    reads = reads_of(function.__code__)
    found = {"seeded": reads.draws_seeded, "unseeded": reads.draws_unseeded}
    found["shared"] = draws_from_shared_state(function)
    assert {kind for kind, draws in found.items() if draws} == kinds
