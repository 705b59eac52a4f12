"""Option groups: what they check, where moved arguments are, and which arguments the public names have."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.cluster import timeouts

SAVES = ["save_freq", "double_checkpoint", "delete_checkpoint"]
GROUPS = ["storage_options", "write_options", "shutdown_options"]
KERAS = [
    *["filepath", "monitor", "verbose", "save_best_only", "save_weights_only", "mode"],
    *["save_freq", "initial_value_threshold"],
]
KEPT = ["max_to_keep", "keep_every"]
PUBLIC = {
    "BackupAndRestore": [
        "backup_dir",
        *SAVES,
        *KEPT,
        "max_overhead",
        "strict",
        "on_nonfinite",
        "reread_input",
        "on_event",
        "verbose",
        *GROUPS,
    ],
    "Checkpointer": [
        *["backup_dir", "model", "optimizer", "metrics", "variables", "state"],
        *["save_freq", "max_overhead", "double_checkpoint", "delete_checkpoint", *KEPT, "strict", "on_event"],
        *["verbose", *GROUPS],
    ],
    "ModelCheckpoint": [
        *[*KERAS, "max_to_keep", "keep_best", "keep_every", "start_from_epoch"],
        *["storage_options", "write_options", "write_on"],
    ],
    "WriteOptions": [
        *["retry", "fsync", "max_bytes_per_second", "max_failed_saves", "when_busy", "max_local_state"],
    ],
    "ShutdownOptions": [
        *["save_before_preemption", "signals", "notice", "grace_period", "time_limit", "save_on_exception"],
    ],
    "make_strategy": [
        *["kind", "devices", "communication_options", "cluster_options"],
    ],
    "ClusterOptions": ["startup_timeout", "heartbeat_timeout", "peer_timeout", "timeout"],
    "load_backup": ["backup_dir", "model", "commit", "storage_options", "retry"],
    "latest_checkpoint": ["checkpoint_dir", "storage_options", "retry"],
    "best_checkpoint": ["checkpoint_dir", "monitor", "mode", "storage_options"],
    "make_or_restore_model": [
        *["build_fn", "checkpoint_dir", "storage_options", "retry", "custom_objects", "compile", "adopt"],
        *["weights_only", "verbose"],
    ],
}
WRITE = {"retry", "fsync", "max_bytes_per_second", "max_failed_saves", "when_busy", "max_local_state"}
SHUTDOWN = {"save_before_preemption", "signals", "notice", "grace_period", "time_limit", "save_on_exception"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, timeouts._Given, timeouts._Given())


@pytest.mark.parametrize("name", PUBLIC)
def test_the_arguments_of_public_names_change_on_purpose_only(name: str) -> None:
    assert list(inspect.signature(getattr(kdc, name)).parameters) == PUBLIC[name]


@pytest.mark.parametrize("name", ["BackupAndRestore", "Checkpointer"])
def test_an_argument_of_a_group_is_named_with_its_place(name: str) -> None:
    for group, names in {
        "write_options=kdc.WriteOptions": WRITE,
        "shutdown_options=kdc.ShutdownOptions": SHUTDOWN,
    }.items():
        for given in names:
            match = rf"{name}\(\) has no argument '{given}': did you mean {group}\({given}=\.\.\.\)\?$"
            with pytest.raises(TypeError, match=match):
                getattr(kdc, name)("backup", **{given: 1})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: kdc.BackupAndRestore("x", save_frq=3),
            r"BackupAndRestore\(\) .* 'save_frq': did you mean 'save_freq'",
        ),
        (lambda: kdc.BackupAndRestore("x", grace_perod=3), r"did you mean shutdown_options=.*grace_period=\.\.\."),
        (lambda: kdc.BackupAndRestore("x", nonsense=3), "'nonsense'; it has backup_dir, save_freq, "),
        (lambda: kdc.ModelCheckpoint("a.keras", retry=kdc.RetryPolicy()), r"did you mean write_options=.*retry=\.\.\."),
        (lambda: kdc.TensorBoard("logs", retry=kdc.RetryPolicy()), r"did you mean write_options=.*retry=\.\.\."),
        (lambda: kdc.WriteOptions(whenbusy="wait"), r"'whenbusy': did you mean 'when_busy'"),
        (lambda: kdc.TensorBoard("logs", grace_period=3), "'grace_period'; it has "),
        (lambda: kdc.ClusterOptions(heartbeat=3), "did you mean 'heartbeat_timeout'"),
        (
            lambda: kdc.make_strategy(timeout=3),
            "'timeout'; it has kind, devices, communication_options, cluster_options",
        ),
    ],
)
def test_a_misspelt_argument_is_named_with_what_was_meant(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("argument", ["write_options", "shutdown_options"])
def test_a_group_of_another_type_is_refused(argument: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{argument} must be a keras_dist_callbacks.*Options, or None"):
        kdc.BackupAndRestore(tmp_path, **{argument: {"fsync": False}})  # type: ignore[arg-type]


def test_groups_take_keywords_only_and_do_not_change() -> None:
    with pytest.raises(TypeError, match="positional"):
        kdc.WriteOptions(kdc.RetryPolicy())  # type: ignore[misc]
    with pytest.raises(AttributeError):
        kdc.ShutdownOptions().grace_period = 3  # type: ignore[misc]
    assert kdc.WriteOptions() == kdc.WriteOptions(retry=kdc.RetryPolicy(), fsync=True, when_busy="late")


def test_signals_are_kept_by_name_each_once() -> None:
    assert kdc.ShutdownOptions(signals=[15, "SIGTERM", "SIGUSR1"]).signals == ("SIGTERM", "SIGUSR1")
    assert kdc.ShutdownOptions(signals="SIGUSR1").signals == ("SIGUSR1",)  # one alone


@pytest.mark.parametrize("name", timeouts.DEFAULTS)
def test_a_time_out_is_that_of_make_strategy_else_of_the_environment_else_the_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(timeouts.variable_of(name), raising=False)
    assert timeouts.seconds_of(name) == timeouts.DEFAULTS[name]
    monkeypatch.setenv(timeouts.variable_of(name), "77.5")
    assert timeouts.seconds_of(name) == 77.5
    kdc.make_strategy("default", cluster_options=kdc.ClusterOptions(**{name: 55.0}))
    assert timeouts.seconds_of(name) == 55.0
    kdc.make_strategy("default")
    assert timeouts.seconds_of(name) == 77.5
    for wrong in ("soon", "-1", "nan", "0"):
        monkeypatch.setenv(timeouts.variable_of(name), wrong)
        with pytest.raises(ConfigError, match=rf"^KDC_{name.upper()} must be a number"):
            kdc.make_strategy("default")


def test_workers_wait_as_long_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kdc.advanced.Cluster.detect().patience == 3600.0
    monkeypatch.setenv("KDC_TIMEOUT", "20")
    assert kdc.advanced.Cluster.detect().patience == 20.0
