"""Each argument of each public constructor and function: junk is refused by name, or means what the table says."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks import testing
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from tests.support import public
from tests.support.arguments_table import FACADE, JUNK, Row
from tests.support.arguments_table_testing import ROWS, TESTING

SECRET = "hunter2"  # noqa: S105 - it is none
STARTS_PROCESSES = {"run_until_done"}


def of(name: str, argument: str) -> Any:
    marks = [pytest.mark.process] if name in STARTS_PROCESSES else []
    return pytest.param(ROWS[name], argument, id=f"{name}-{argument}", marks=marks)


EVERY_ARGUMENT = [
    of(name, argument) for name, row in ROWS.items() for argument in row.arguments if argument != "kwargs"
]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def called(row: Row, argument: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ModelCheckpoint mode .* is unknown, fallback to auto mode", UserWarning)
        row.call(**{**row.given(), argument: value})


def test_the_table_has_every_public_name() -> None:
    assert sorted(FACADE) == [name for name in public.NAMES if not public.is_result(name)]
    assert set(TESTING) == set(testing.__all__)


@pytest.mark.parametrize("name", ROWS)
def test_the_table_has_every_argument(name: str) -> None:
    assert sorted(ROWS[name].arguments) == sorted(inspect.signature(ROWS[name].call).parameters)


@pytest.mark.parametrize(("row", "argument"), EVERY_ARGUMENT)
def test_junk_is_refused_by_name_or_means_what_the_table_says(row: Row, argument: str) -> None:
    wrong = []
    for kind, value in JUNK.items():
        accepted = kind in row.arguments[argument]
        try:
            called(row, argument, value)
        except ConfigError as error:
            if accepted or not re.search(rf"\b{argument}\b", str(error)) or len(str(error)) > 400:
                wrong.append(f"{kind}: {error}")
        except Exception as error:  # noqa: BLE001 - it is what the test looks for
            wrong.append(f"{kind}: {type(error).__name__}: {error}")
        else:
            if not accepted:
                wrong.append(f"{kind}: accepted")
    assert wrong == []


@pytest.mark.parametrize(("row", "argument"), EVERY_ARGUMENT)
def test_no_message_shows_a_credential(row: Row, argument: str) -> None:
    url = f"s3://me:{SECRET}@bucket/\0"
    messages = []
    for value in (url, url.encode(), [url], {"secret": SECRET}, {1: SECRET}):
        try:
            called(row, argument, value)
        except ConfigError as error:
            messages.append(str(error))
    assert SECRET not in "".join(messages)


def test_storage_options_of_another_type_are_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"^storage_options must be a dict or None, got a value of the type list$"):
        kdc.BackupAndRestore("backup", storage_options=[("secret", SECRET)])  # type: ignore[arg-type]


def test_arguments_that_are_passed_to_a_layer_are_refused_by_keras() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        testing.CountCalls("calls", nonsense=1)


NUMBERS: list[tuple[str, dict[str, Any]]] = [
    ("BackupAndRestore", {"save_freq": np.int64(5), "verbose": np.int64(0)}),
    ("BackupAndRestore", {"save_freq": np.bool_(False), "max_overhead": np.float64(0.5), "strict": np.bool_(True)}),
    ("WriteOptions", {"max_failed_saves": np.uint8(3), "max_local_state": np.int32(7), "fsync": np.bool_(True)}),
    ("WriteOptions", {"max_bytes_per_second": np.int64(10**6), "max_local_state": np.int64(5)}),
    ("ShutdownOptions", {"signals": [np.int64(15)], "grace_period": np.int64(5)}),
    ("Checkpointer", {"delete_checkpoint": np.bool_(False)}),
    ("ModelCheckpoint", {"save_freq": np.int64(5), "max_to_keep": np.int64(1), "save_best_only": np.bool_(True)}),
    ("ModelCheckpoint", {"initial_value_threshold": np.float32(0.5)}),
    ("SidecarEvaluator", {"steps": np.int64(5), "timeout": np.float32(0.5), "max_evaluations": np.uint8(3)}),
    ("TensorBoard", {"histogram_freq": np.int64(1), "update_freq": np.int64(5), "sync_seconds": np.float32(0.5)}),
    ("TensorBoard", {"profile_batch": (np.int64(2), 5)}),
    ("TensorBoard", {"profile_batch": "2,5"}),
    ("PrintLR", {"freq": np.int64(5), "log_to_tensorboard": np.bool_(True)}),
    ("RetryPolicy", {"total_seconds": np.float32(0.5), "min_bytes_per_second": np.int64(5)}),
    ("KillAt", {"epoch": np.int64(5), "worker": np.int64(1), "sig": np.int64(15)}),
    ("LocalCluster", {"num_workers": np.int64(2), "grace": np.float32(0.5), "chief": np.bool_(True)}),
]


@pytest.mark.parametrize(("name", "options"), NUMBERS)
def test_numbers_and_truth_values_of_numpy_are_as_good_as_pythons(name: str, options: dict[str, Any]) -> None:
    ROWS[name].call(**{**ROWS[name].given(), **options})


def test_checked_numbers_become_plain_ones() -> None:
    policy = kdc.RetryPolicy(total_seconds=np.float32(0.5), max_wait=np.int64(3))
    assert (type(policy.total_seconds), type(policy.max_wait)) == (float, float)
    assert type(kdc.PrintLR(np.int64(5)).freq) is int
    assert type(kdc.ModelCheckpoint("m.keras", save_freq=np.int64(5)).save_freq) is int


def test_what_names_a_path_may_be_any_os_pathlike_of_str() -> None:
    class Odd:
        def __fspath__(self) -> Any:
            return b"bytes"

    kdc.BackupAndRestore(Path("backup"))
    kdc.ModelCheckpoint(Path("m.keras"))
    kdc.TensorBoard(Path("logs"))
    with pytest.raises(ConfigError, match="backup_dir must be a path or URL, as a str"):
        kdc.BackupAndRestore(Odd())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * 1000, r"'x{20,30}\.\.\.x{20,30}'"),
        (10**400, r"10{5,20}\.\.\.0{5,20}"),
        ({"key": SECRET}, r"a dict with the keys \['key'\]"),
        (f"https://me:{SECRET}@host/", r"'https://\.\.\."),
    ],
)
def test_a_message_shows_what_was_given_in_short(value: Any, expected: str) -> None:
    assert re.match(expected, validation.format_value(value))
    assert SECRET not in validation.format_value(value)


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    assert validation.format_value(10**10000) == "a value of the type int"

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(ConfigError, match=r"when_busy must be 'late' or 'wait', got .*Silent"):
        kdc.BackupAndRestore("backup", write_options=kdc.WriteOptions(when_busy=Silent()))  # type: ignore[arg-type]


def test_the_message_names_the_default_where_it_helps() -> None:
    with pytest.raises(ConfigError, match=r"^timeout must be a number .* got nan; the default is 3600\.0$"):
        kdc.make_strategy(cluster_options=kdc.ClusterOptions(timeout=float("nan")))


@pytest.mark.parametrize("metadata", [{"layer": 5}, {"layer": ""}, {5: "file"}])
def test_metadata_of_embeddings_are_paths_by_name(metadata: Any) -> None:
    with pytest.raises(ConfigError, match="embeddings_metadata"):
        kdc.TensorBoard("logs", embeddings_metadata=metadata)


@pytest.mark.parametrize("batches", [(5, 2), (1, 2, 3), "a,b", (True, 2), [1]])
def test_batches_to_profile_are_one_or_a_pair(batches: Any) -> None:
    with pytest.raises(ConfigError, match=r"profile_batch must be a batch from 0 on, or a pair"):
        kdc.TensorBoard("logs", profile_batch=batches)


@pytest.mark.parametrize("part", ["model", "optimizer", "metrics", "variables"])
def test_a_loop_takes_parts_of_keras_alone(part: str) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ConfigError, match=rf"^{part} must be"):
        kdc.Checkpointer("backup", **{"model": model, part: [keras.layers.Dense(1)]})


@pytest.mark.parametrize(
    ("arguments_of_start", "message"),
    [
        ({"extra_args": "--epochs"}, "extra_args must be a list"),
        ({"extra_args": [5]}, "extra_args must be a list of str"),
        ({"env": {"A": 5}}, r"env\['A'\] must be a str"),
        ({"env": "A=5"}, "env must be a dict or None"),
    ],
)
def test_a_run_of_a_cluster_refuses_what_is_not_a_command_line(arguments_of_start: Any, message: str) -> None:
    cluster = testing.LocalCluster(["no-such-program"], 1, "logs")
    with pytest.raises(ConfigError, match=message):
        cluster.start(**arguments_of_start)
    assert cluster.run == -1
    assert not Path("logs").exists()


@pytest.mark.parametrize("text", [None, 5, b"epoch=1", ["epoch=1"]])
def test_a_description_of_a_fault_is_a_string(text: Any) -> None:
    with pytest.raises(ConfigError, match=r"^text must be a str such as 'epoch=1,batch=3', got"):
        testing.KillAt.from_string(text)
