"""A training that has ended, for tests of what evaluates it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import keras_dist_callbacks as kdc
from tests.support import tiny


@pytest.fixture(scope="session")
def finished_training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of three epochs that has ended."""
    directory = tmp_path_factory.mktemp("run")
    tiny.fit(tiny.model(), None, [kdc.ModelCheckpoint(directory / "ckpt" / "{epoch}.keras")])
    return directory


@pytest.fixture
def run(finished_training: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_training, tmp_path / "run"))
