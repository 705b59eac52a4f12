"""Packages: the import contracts notice what they forbid, and each package says what belongs there."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = "keras_dist_callbacks"
PACKAGES = sorted(path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py"))
FORBIDDEN: list[tuple[str, ...]] = [
    ("storage/retry.py", f"import {PACKAGE}.cluster.roles", "Layers import downward only"),
    ("backups/packing.py", f"import {PACKAGE}.run.engine.writer", "Layers import downward only"),
    ("state/variables.py", f"import {PACKAGE}.callbacks.print_lr", "Layers import downward only"),
    ("storage/redaction.py", f"import {PACKAGE}.storage.store_errors", "No cycles within a package"),
    ("run/engine/engine.py", "import fsspec", "Only the stores import fsspec"),
    ("backups/store.py", "import tensorflow", "reach neither TensorFlow nor Keras"),
    ("storage/transfer.py", "def f():\n    import keras", "reach neither TensorFlow nor Keras"),
    ("cli/formatting.py", f"import {PACKAGE}._compat.saving", "reach neither TensorFlow nor Keras"),
    ("launch/processes.py", "import tensorflow", "reach neither", "starts and watches processes imports neither"),
]


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("copied")
    shutil.copytree(ROOT / PACKAGE, directory / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


@pytest.mark.parametrize("forbidden", FORBIDDEN, ids=lambda forbidden: f"{forbidden[0]}-{forbidden[1]}")
@pytest.mark.process
def test_a_forbidden_import_breaks_its_contracts(copied: Path, forbidden: tuple[str, ...]) -> None:
    module, line, *contracts = forbidden
    file = copied / PACKAGE / module
    intact = file.read_bytes()
    try:
        file.write_bytes(intact + f"\n{line}\n".encode())
        result = lint_imports(copied)
    finally:
        file.write_bytes(intact)
    assert result.returncode == 1, result.stdout
    broken = [name for name in result.stdout.splitlines() if name.endswith("BROKEN")]
    assert len(broken) == len(contracts), result.stdout
    for name, contract in zip(broken, contracts, strict=True):
        assert contract in name


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_what_belongs_there_and_has_its_tests(package: str) -> None:
    module = ast.parse((ROOT / PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))
    assert len((ast.get_docstring(module) or "").split()) > 12
    assert list((ROOT / "tests" / package).glob("test_*.py"))


def test_no_two_classes_share_a_name() -> None:
    """But for private ones, which are read in their module alone."""
    paths = (ROOT / PACKAGE).rglob("*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []
