"""The public names: what `dir()` shows, and what their docstrings say."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import keras_dist_callbacks as kdc
from tests.support import public


@pytest.mark.parametrize("name", public.NAMES)
def test_each_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(public.find(name))


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
