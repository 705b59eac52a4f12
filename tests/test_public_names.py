"""The public names: what `dir()` shows, and what their docstrings say."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import keras_dist_callbacks as kdc
from tests.support import public


def docstrings(name: str) -> Iterator[tuple[str, str]]:
    """Of a public name and, if it is a class, of its public members: what it belongs to, and its text."""
    found = public.find(name)
    yield name, inspect.getdoc(found) or ""
    for member in vars(found) if isinstance(found, type) else ():
        if not member.startswith("_"):
            yield f"{name}.{member}", inspect.getdoc(inspect.getattr_static(found, member)) or ""


def section(title: str, text: str) -> str:
    found = re.search(rf"^{title}:\n((?: .*\n?|\n)+)", text, re.MULTILINE)
    return inspect.cleandoc("\n" + found[1]) if found else ""


@pytest.mark.parametrize("name", public.NAMES)
def test_each_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(public.find(name))


@pytest.mark.parametrize("name", public.NAMES)
def test_what_a_public_name_raises_can_be_imported_from_the_package(name: str) -> None:
    for owner, text in docstrings(name):
        for error in re.findall(r"^(\w+):", section("Raises", text), re.MULTILINE):
            assert error in kdc.__all__ or hasattr(builtins, error), f"{owner} raises {error}"


def test_dir_shows_public_names_only() -> None:
    assert dir(kdc) == sorted(kdc.__all__)
    assert dir(kdc.advanced) == ["Cluster", "enable_multi_worker_fit", "register_callback_state", "stateless_input"]
    assert not set(dir(kdc)) & set(dir(kdc.advanced))


@pytest.mark.parametrize("module", [kdc, kdc.advanced], ids=["top", "advanced"])
def test_an_unknown_name_is_an_attribute_error(module: Any) -> None:
    with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute 'Clusters'"):
        _ = module.Clusters


@pytest.mark.parametrize("group", ["ClusterOptions", "RetryPolicy", "ShutdownOptions", "WriteOptions"])
def test_a_group_of_options_shows_its_options_only(group: str) -> None:
    options = public.find(group)
    assert [name for name in dir(options()) if not name.startswith("_")] == sorted(options.__dataclass_fields__)
