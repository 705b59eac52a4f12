# ruff: noqa: PTH103, PTH107, PTH110, PTH208, PTH118, SIM115, UP015 - the ways in which users open files
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


def appends(self: Any) -> None:
    with open(self.path, "a") as file:
        file.write("r")


def writes_to_a_computed_name(self: Any) -> None:
    with open(os.path.join(self.directory, "x"), mode="w", encoding="utf-8") as file:
        print("a", file=file)


def writes_to_a_path(self: Any) -> None:
    pathlib.Path(self.directory, "r").open("w").write("a")


def writes_compressed(self: Any) -> None:
    with gzip.open(f"{self.path}/{self.number:03d}.gz", "wt") as file:
        file.write("text")


def writes_after_a_call(self: Any) -> None:
    with open(str(self.names.get("a", "r")) + "x", "wb", buffering=0) as file:
        file.write(b"")


def writes_several(self: Any) -> list[Any]:
    return [open(path, "w").close() for path in self.paths]


def asks_the_machine() -> str:
    return open("/proc/meminfo").read()


def makes_a_directory(self: Any) -> None:
    if not os.path.exists(self.directory):
        os.makedirs(self.directory)


def deletes_old_output(self: Any) -> None:
    for name in os.listdir(self.directory):
        os.remove(name)


@pytest.mark.parametrize(
    "function",
    [
        *(makes_a_directory, deletes_old_output),
        *(appends, writes_to_a_computed_name, writes_to_a_path, writes_compressed, writes_after_a_call),
        *(writes_several, asks_the_machine),
    ],
)
def test_a_function_that_only_writes_files_reads_none(function: Callable[..., Any]) -> None:
    assert reads_of(function.__code__).reads_files is None


def compares_with_short_texts(self: Any) -> str | None:
    for line in open(self.path):
        if line == "acc":
            return "w"
    return None


def copies(self: Any) -> None:
    open(self.target, "w").write(open(self.source).read())


def appends_and_reads(self: Any) -> str:
    with open(self.path, "a+") as file:
        return file.read()


def has_a_file_called_w() -> str:
    return open("w").read()


def opens_by_another_name(self: Any) -> str:
    function = open
    return function(self.path).read()


def decides_on_the_mode(self: Any) -> Any:
    return open(self.path, "w" if self.is_first else "r")


def reads_by_keyword(self: Any) -> Any:
    return open(file=self.path, mode="r", encoding="w")


def reads_with_options(self: Any) -> Any:
    return open(self.path, **self.options)


def reads_by_tensorflow(self: Any) -> Any:
    return tf.io.gfile.GFile(self.path).read()


def counts_its_files(self: Any) -> int:
    os.makedirs(self.directory, exist_ok=True)
    return len(os.listdir(self.directory))


def looks_for_files_beside_a_list(self: Any) -> int:
    self.left.remove(1)
    return len(list(pathlib.Path(self.directory).glob("*.npz")))


_SAID = ("open", "GFile", "exists", "stat", "walk", "fetchone", "capture_output", "listdir", "glob")


def stops_on_a_file(self: Any) -> None:
    self.model.stop_training = os.path.exists(self.path)


def asks_for_the_size(self: Any) -> int:
    return pathlib.Path(self.path).stat().st_size


def looks_through_directories(self: Any) -> int:
    return len(list(os.walk(self.path)))


def asks_a_database(self: Any) -> Any:
    return self.database.execute("select count(*) from rows").fetchone()


def runs_another_program(self: Any) -> str:
    return str(subprocess.run(self.command, capture_output=True, check=True).stdout)


@pytest.mark.parametrize(
    "function",
    [
        stops_on_a_file,
        *(counts_its_files, looks_for_files_beside_a_list),
        *(asks_for_the_size, looks_through_directories, asks_a_database, runs_another_program),
        *(compares_with_short_texts, copies, appends_and_reads, has_a_file_called_w, opens_by_another_name),
        *(decides_on_the_mode, reads_by_keyword, reads_with_options, reads_by_tensorflow),
    ],
)
def test_a_function_that_reads_a_file_or_asks_another_program_says_so(function: Callable[..., Any]) -> None:
    assert reads_of(function.__code__).reads_files in _SAID


def test_seeds_of_operations_are_seen() -> None:
    def seeded(self: Any) -> Any:
        return tf.random.normal((2,), seed=self.seed)

    def stateless() -> Any:
        return tf.random.stateless_normal((2,), seed=(1, 2))

    def unseeded() -> Any:
        return tf.random.normal((2,))

    assert [reads_of(f.__code__).draws_seeded for f in (seeded, stateless, unseeded)] == [True, False, False]


def test_what_only_a_global_seed_makes_repeatable_is_seen() -> None:
    def of_a_dataset(self: Any) -> Any:
        return self.rows.shuffle(9)

    def of_a_list(rows: list[int]) -> None:
        random.shuffle(rows)

    def of_an_image(image: Any) -> Any:
        return tf.image.random_flip_up_down(image)

    def without_a_draw(image: Any) -> Any:
        return tf.image.resize(image, (2, 2)) + tf.nn.relu(image) + tf.random.Generator.from_seed(1).normal(())

    def of_a_fit(model: Any) -> Any:
        return model.fit(model)

    drawing, others = (of_a_dataset, of_an_image, of_a_fit), (of_a_list, without_a_draw)
    assert all(reads_of(f.__code__).draws_unseeded for f in drawing)
    assert not any(reads_of(f.__code__).draws_unseeded for f in others)


def test_random_operations_of_keras_are_not_taken_for_those_of_python() -> None:
    def of_keras(self: Any) -> Any:
        return keras.random.uniform((2,), seed=self.seed)

    def of_python() -> float:
        return random.random()  # noqa: S311 - what users call

    def of_numpy() -> float:
        return float(np.random.normal())

    assert [draws_from_shared_state(f) for f in (of_keras, of_python, of_numpy)] == [False, True, True]
