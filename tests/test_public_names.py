"""The public names: what `dir()` shows, and what their docstrings say."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.base.process_runs import ProcessRuns
from keras_dist_callbacks.cluster import timeouts
from tests.support import example_names, public


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


EXAMPLES = {
    owner: section("Example", text).removeprefix("```python").removesuffix("```")
    for name in public.NAMES
    for owner, text in docstrings(name)
    if section("Example", text)
}


@pytest.mark.slow
@pytest.mark.parametrize("owner", EXAMPLES)
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
def test_the_example_of_a_docstring_runs(owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in (timeouts._Given, ProcessRuns):  # each example is a script, and a process, of its own
        monkeypatch.setitem(PARTS, kind, kind())
    example_names.run(EXAMPLES[owner])


HELP = ["BackupAndRestore", "Checkpointer", "ModelCheckpoint", "SidecarEvaluator", "TensorBoard", "load_backup"]


@pytest.mark.parametrize("name", [*HELP, "best_checkpoint", "make_or_restore_model"])
def test_help_shows_an_example(name: str) -> None:
    assert name in EXAMPLES


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


SHOWN = {
    "BackupAndRestore": {"restored"},
    "ChiefOnly": {"async_safe"},  # which Keras asks each callback for
    "EpochDataset": set(),
    "ModelCheckpoint": {"best_path", "get_state", "set_state"},
    "PrintLR": {"get_state", "set_state"},
    "TensorBoard": {"close", "flush", "get_state", "scalar", "set_state"},
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_callback_shows_what_kerass_does_and_little_more(name: str) -> None:
    bases = keras.callbacks.Callback, getattr(keras.callbacks, name, keras.callbacks.Callback)
    of_keras = {member for base in bases for member in dir(base)}
    arguments = inspect.signature(public.find(name)).parameters
    shown = {member for member in dir(public.find(name)) if not member.startswith("_")} - of_keras - {*arguments}
    assert shown == SHOWN[name]
