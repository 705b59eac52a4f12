"""Which modules are libraries, and which are the user's."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from keras_dist_callbacks.state.own_objects import libraries
from keras_dist_callbacks.state.own_objects.libraries import is_library


@pytest.mark.parametrize(
    ("file", "is_installed"), [("datasets.py", False), ("profile.py", False), ("ray/__init__.py", True)]
)
def test_a_module_with_the_name_of_a_library_is_the_users_unless_it_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, is_installed: bool
) -> None:
    """Into any directory; its distribution may have another name, as that of sklearn and PIL has."""
    record, name = tmp_path / "distributed_ray-2.0.dist-info", file.partition("/")[0].removesuffix(".py")
    for path in (tmp_path / file, record / "METADATA", record / "RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: distributed-ray\nVersion: 2.0\n")
    (record / "RECORD").write_text("ray/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))  # so that what is imported now is forgotten
    del sys.modules[name]
    importlib.import_module(name)
    monkeypatch.setattr(libraries, "_is_shadowed", libraries._is_shadowed.__wrapped__)  # nothing is remembered
    assert [is_library.__wrapped__(asked) for asked in (name, f"{name}.part")] == [is_installed, is_installed]


def test_libraries_are_known_and_other_packages_are_the_users() -> None:
    known = ("keras", "numpy", "sys", "functools", "json", "msgspec", "_thread", "tqdm", None)
    assert [name for name in known if not is_library(name)] == []
    assert not is_library("tests.support.tiny")
