"""What the README names exists; its blocks run in `test_pages.py`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.names import commit_name
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.run import announcing
from tests.support import ROOT, public
from tests.versions import kill_and_resume, matrix

README = (ROOT / "README.md").read_text(encoding="utf-8")


DOCS = sorted((ROOT / "docs").glob("*.md"))


def test_the_readme_shows_the_line_that_a_resume_prints() -> None:
    (shown,) = re.findall(r"^kdc: Resumed from .*$", README, re.MULTILINE)
    generation, sequence, epoch, batch, step = map(int, re.findall(r"\d+", shown))
    commit, lines = commit_name(generation, sequence, "0123456789ab"), list[str]()
    position = Position("within", epoch - 1, batch, step)
    found = Restored("runs/backup", position.epoch, position.step, position=position, commit=commit)
    announcing.announce(found, lines.append, warns=True)
    assert [f"kdc: {line}" for line in lines] == [shown]


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 150
    for page in [ROOT / "README.md", *DOCS]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_pictures_are_small_shown_somewhere_and_ask_no_other_host_for_a_font() -> None:
    texts = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *DOCS])
    pictures = [file for file in (ROOT / "docs").iterdir() if file.suffix in (".png", ".svg")]
    assert len(pictures) >= 5
    for picture in pictures:
        assert picture.stat().st_size < 200_000
        assert f"{picture.name})" in texts, f"no page shows {picture.name}"
        if picture.suffix == ".svg":
            text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.findall(r"http|@font-face|@import|url\((?!#)", text)


def test_each_page_is_linked_from_the_readme_or_from_the_sites_index() -> None:
    linked = set(re.findall(r"\]\(docs/([^)]+)\)", README))
    linked |= {f"{name}.md" for name in (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines()}
    assert {page.name for page in DOCS} <= linked


def test_the_readmes_make_targets_exist() -> None:
    targets = set(re.findall(r"^make ([\w-]+)", README, re.MULTILINE))
    assert targets == {"demo", "test"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in targets)


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_list_of_names_and_can_be_imported() -> None:
    names = (ROOT / "docs/names.md").read_text(encoding="utf-8")
    for name in public.NAMES:
        assert public.find(name) is not None
        assert f"`{name}`" in names


def test_the_table_of_examples_names_each_of_them_once() -> None:
    table = (ROOT / "examples/README.md").read_text(encoding="utf-8").partition("## What changes")[0]
    named = re.findall(r"`(\w+\.(?:py|ipynb))`", table)
    assert sorted(named) == sorted(
        path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")
    )
    assert all(hasattr(kdc, name) for name in re.findall(r"\bkdc\.(\w+)", (ROOT / "examples/README.md").read_text()))


def test_make_versions_finds_its_places_in_the_readmes_example(tmp_path: Path) -> None:
    code = kill_and_resume.example(ROOT / "README.md", tmp_path)
    compile(code, "README.md", "exec")
    assert "gs://" not in code
    assert code.index("*kills") < code.index("model.fit(")


def test_the_bounds_of_the_package_are_those_that_make_versions_runs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pairs = [tuple(pair.split(":")) for pair in matrix.PAIRS]
    assert pairs[0] == ("2.18", "3.8")
    assert {f"tensorflow>={pairs[0][0]}", f"keras>={pairs[0][1]}"} <= set(project["dependencies"])
    versions = [name.removeprefix("python") for name in matrix.PYTHONS]
    assert project["requires-python"] == f">={versions[0]}"
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert named == versions


def test_the_table_of_versions_is_what_make_versions_has_written() -> None:
    assert matrix.documented() == matrix.table(matrix.kept())
    assert all(row.pair in matrix.PAIRS for row in matrix.kept())
