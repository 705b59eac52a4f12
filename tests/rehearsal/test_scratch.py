"""Where a rehearsal puts what a script would save: always the same place for the same directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.rehearsal import scratch as scratch_module
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Plan, published
from keras_dist_callbacks.rehearsal.scratch import OPTIONS_VARIABLE, place_of

LOCAL, STORE = "/scratch/run", "s3://bucket/scratch"
OWN = {"key": "of the script"}


@pytest.fixture
def scratch(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    place = tmp_path / "plan.json"
    monkeypatch.setenv(VARIABLE, str(place))
    monkeypatch.delenv(OPTIONS_VARIABLE, raising=False)
    monkeypatch.setattr(scratch_module, "watch_files", lambda plan: None)  # its hook could not be taken away again
    monkeypatch.chdir(tmp_path)
    with published(place, Plan(request.param, str(tmp_path), "", 4, 2, 1, 0.0)):
        yield request.param


local = pytest.mark.parametrize("scratch", [LOCAL], indirect=True)
in_store = pytest.mark.parametrize("scratch", [STORE], indirect=True)


def test_without_a_plan_a_directory_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert place_of("gs://bucket/run", OWN) == ("gs://bucket/run", OWN)
    assert place_of(Path("run")) == ("run", None)


@local
@pytest.mark.parametrize(
    "spellings",
    [
        ["run/backup", "run/backup/", "./run/backup", "run/other/../backup", Path("run/backup")],
        ["gs://bucket/run", "gs://bucket/run/"],
        ["file:///data/run", "/data/run", "/data/run/"],
    ],
)
def test_one_directory_has_one_place_however_it_is_written(scratch: str, spellings: list[str | Path]) -> None:
    assert len({place_of(spelling)[0] for spelling in spellings}) == 1


@local
def test_different_directories_have_different_places_in_the_scratch_directory(scratch: str) -> None:
    urls = ["a", "b", "a/b", "/a", "gs://a/b", "s3://a/b", "gs://a-b", "gs://a_b", "run é", "run è", "x" * 300, "."]
    places = [place_of(url)[0] for url in urls]
    assert len(set(places)) == len(urls)
    assert all(Path(place).parent == Path(LOCAL) and len(Path(place).name) < 100 for place in places)


@local
def test_a_directory_in_the_scratch_directory_stays(scratch: str) -> None:
    place, _ = place_of("run")
    assert place_of(f"{place}/fit-1") == (f"{place}/fit-1", None)
    assert place_of("/scratch/running")[0] != "/scratch/running"


@local
def test_options_of_a_store_do_not_reach_a_local_scratch_directory(scratch: str) -> None:
    assert place_of("s3://bucket/run", OWN)[1] is None


@in_store
def test_a_scratch_directory_in_a_store_has_the_options_of_the_script_or_of_the_environment(
    scratch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place_of("s3://other/run", OWN)[1] == OWN
    assert place_of("gs://other/run", OWN)[1] is None
    assert place_of("run", OWN)[1] is None
    monkeypatch.setenv(OPTIONS_VARIABLE, '{"anon": true}')
    assert {str(place_of(url, OWN)[1]) for url in ("s3://other/run", "gs://other/run", "run")} == {"{'anon': True}"}


@in_store
@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_options_that_are_no_json_object_are_an_error_without_their_text(
    scratch: str, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, text)
    with pytest.raises(ConfigError, match=OPTIONS_VARIABLE):
        place_of("run")
