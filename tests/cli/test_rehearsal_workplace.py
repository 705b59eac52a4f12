"""The copy of the working directory: what is in it, what is a link, and that nothing else is touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cli.rehearsal import workplace
from keras_dist_callbacks.cli.rehearsal.workplace import copied
from tests.support import files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "home/project"
    for directory in ("src/deep", ".venv", ".git", "empty"):
        (place / directory).mkdir(parents=True)
    for file in ("train.py", "src/deep/a.csv", ".venv/pyvenv.cfg", ".git/HEAD", ".env"):
        (place / file).write_text(f"what {file} holds")
    (place / "to-file").symlink_to("train.py")
    (place / "to-outside").symlink_to("../data")
    (tmp_path / "home/data").mkdir()
    (tmp_path / "home/data/rows.csv").write_text("3,4")
    return place


def test_a_copy_has_the_same_path_below_another_directory_and_is_deleted(project: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    os.utime(project / "train.py", (1e9, 1e9))
    with copied(project, tmp_path / "work", []) as place:
        assert place == tmp_path / "work" / project.relative_to("/")
        for name in ("train.py", "src/deep/a.csv", ".env"):
            assert (place / name).read_text() == (project / name).read_text()
            assert not (place / name).is_symlink()
        assert (place / "empty").is_dir()
        assert (place / "train.py").stat().st_mtime == 1e9
        assert (place / "to-file").resolve() == place / "train.py"
        (place / "train.py").write_text("changed")
        (place / "src/deep/a.csv").unlink()
    assert files(tmp_path) == before
    assert not (tmp_path / "work").exists()


def test_what_lies_around_it_is_found_by_relative_paths(project: Path, tmp_path: Path) -> None:
    with copied(project, tmp_path / "work", []) as place:
        assert (place / "../data/rows.csv").read_text() == "3,4"
        assert (place / "to-outside/rows.csv").read_text() == "3,4"
        (place / "../new.txt").write_text("")  # beside the copy, and not beside the project
    assert not (tmp_path / "home/new.txt").exists()


@pytest.mark.parametrize("name", [".venv", ".git"])
def test_environments_are_links(project: Path, tmp_path: Path, name: str) -> None:
    with copied(project, tmp_path / "work", []) as place:
        assert (place / name).readlink() == project / name


def test_the_largest_files_are_links_where_a_copy_would_be_too_large(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workplace, "_MOST_BYTES", 50)
    (project / "weights.h5").write_bytes(bytes(100))
    with copied(project, tmp_path / "work", []) as place:
        assert (place / "weights.h5").readlink() == project / "weights.h5"
        assert not (place / "train.py").is_symlink()


def test_the_rehearsals_own_directories_are_left_out(project: Path, tmp_path: Path) -> None:
    own = project / "tmp/kdc-1"
    own.mkdir(parents=True)
    with copied(project, own / "work", [str(own)]) as place:
        assert list((place / "tmp").iterdir()) == []


def too_many(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workplace, "_MOST_FILES", 2)


def no_space(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workplace.shutil, "copy2", full)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(too_many, "holds more than 2 files.*--in-place"), (no_space, "a copy of the working directory")],
)
def test_a_copy_that_cannot_be_made_is_an_error_and_leaves_nothing(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    says: str,
) -> None:
    spoil(project, monkeypatch)
    with pytest.raises((ConfigError, OSError), match=says), copied(project, tmp_path / "work", []):
        pass
    assert not (tmp_path / "work").exists()


def test_what_cannot_be_read_is_a_link(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*paths: object) -> None:
        raise PermissionError

    monkeypatch.setattr(workplace.shutil, "copy2", forbidden)
    with copied(project, tmp_path / "work", []) as place:
        assert (place / "train.py").readlink() == project / "train.py"
