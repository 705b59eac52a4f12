"""Which modules are libraries, and which are the user's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_dist_callbacks.state.own_objects import libraries
from keras_dist_callbacks.state.own_objects.libraries import is_library


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules in it can be imported, and are forgotten afterwards."""
    libraries._is_shadowed.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for path in tmp_path.iterdir():
        sys.modules.pop(path.stem, None)
    libraries._is_shadowed.cache_clear()


@pytest.mark.parametrize("name", ["datasets", "profile"])
def test_a_module_of_the_user_with_the_name_of_a_library_is_the_users(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    (directory / f"{name}.py").write_text("counts = []\n")
    importlib.import_module(name)
    assert not is_library(name)
    assert not is_library(f"{name}.part")


def test_a_package_that_was_installed_into_another_directory_is_a_library(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its distribution may have another name, as that of sklearn and PIL has."""
    (directory / "ray").mkdir()
    (directory / "ray" / "__init__.py").touch()
    record = directory / "distributed_ray-2.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: distributed-ray\nVersion: 2.0\n")
    (record / "RECORD").write_text("ray/__init__.py,,\n")
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    importlib.import_module("ray")
    assert is_library("ray.train")


@pytest.mark.parametrize("name", ["keras", "numpy", "sys", "functools", "json", "msgspec", "_thread", "tqdm", None])
def test_libraries_are_known(name: str | None) -> None:
    assert is_library(name)


def test_other_packages_are_the_users() -> None:
    assert not is_library("tests.support.tiny")
