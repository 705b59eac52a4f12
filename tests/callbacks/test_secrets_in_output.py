"""What callbacks print, warn of, raise and write: no credentials, and nothing that a terminal would interpret."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, ConfigError
from tests.support import hostile, tiny
from tests.support.callback_helpers import ignore_keras_warnings
from tests.support.cli_backups import rewrite
from tests.support.grouped import grouped
from tests.support.hostile import HOSTILE, READABLE, obeyed_in
from tests.support.secrets_table import REFUSED, SECRET, TAKEN, Given, found_in, texts_of

pytestmark = ignore_keras_warnings
PLACES = [name for name in sorted(TAKEN) if name.startswith("memory")]


def _callbacks(given: Given, **options: Any) -> list[Any]:
    url, storage = given.url.partition("?")[0], given.options
    query = given.url[len(url) :]
    return [
        kdc.ModelCheckpoint(f"{url}/m/c-{{epoch}}.keras", verbose=1, storage_options=storage),
        kdc.TensorBoard(f"{url}/t{query}", storage_options=storage),
        kdc.BackupAndRestore(f"{url}/b{query}", save_freq=2, storage_options=storage, **grouped(**options)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_a_complete_run_shows_and_writes_no_secret(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    given, files = TAKEN[name].at(0), fsspec.filesystem("memory")
    before, shown = set(files.store), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for stop in ([tiny.StopAt(1, 3)], []):
            callbacks = _callbacks(given, delete_checkpoint=False, save_on_exception=False)
            with contextlib.suppress(tiny.Stop):
                tiny.fit(tiny.model(), None, [*callbacks, *stop])
            shown += [repr(callback) for callback in callbacks]
            shown += [str(vars(callback).get(n)) for callback in callbacks for n in ("filepath", "log_dir", "restored")]
    output = "".join(capfd.readouterr())
    assert "Resumed from memory://" in output
    shown += [output, *(str(warning.message) for warning in caught)]
    assert [text for text in shown if found_in(text)] == []
    written = {path: files.store[path].getvalue().decode("latin1") for path in set(files.store) - before}
    assert any("/commits/" in path for path in written)
    assert any("/owners/" in path for path in written)
    assert {path for path, content in written.items() if found_in(content)} == set()


@pytest.mark.parametrize("name", PLACES)
def test_failures_in_the_background_show_no_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = TAKEN[name].at(0)

    def refuse(self: Any, path: str, value: bytes, **options: Any) -> None:
        if "/commits/" in path:
            raise PermissionError(f"denied: {path} for {SECRET}") from ValueError(SECRET)
        real(self, path, value, **options)

    real = MemoryFileSystem.pipe_file
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(BackupError, match="2 backups failed in a row") as failure:
            tiny.fit(tiny.model(), None, _callbacks(given, max_failed_saves=2, when_busy="wait"))
    texts = [*texts_of(failure.value), *(str(warning.message) for warning in caught)]
    assert "it was raised while this was written: " in "".join(traceback.format_exception(failure.value))
    assert [text for text in texts if found_in(text)] == []


@pytest.mark.parametrize("url", sorted(REFUSED.values()))
def test_no_argument_of_a_callback_is_repeated_with_its_secret(url: str) -> None:
    for make in (
        lambda: kdc.BackupAndRestore(url),
        lambda: kdc.TensorBoard(url),
        lambda: kdc.TensorBoard("logs", worker_log_dir=url),
        lambda: kdc.ModelCheckpoint(f"{url}/c.keras"),
        lambda: kdc.ModelCheckpoint(f"{url}/c.h5"),
        lambda: kdc.ModelCheckpoint(url),
        lambda: kdc.ModelCheckpoint(f"{url.replace(SECRET[:5], f'{{{SECRET[:5]}}}')}/c.keras"),
        lambda: kdc.latest_checkpoint(url),
        lambda: kdc.make_or_restore_model(tiny.model, url),
        lambda: kdc.Checkpointer(url, model=tiny.model()),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert [text for text in texts_of(caught.value) if found_in(text)] == []


def test_warnings_about_hostile_checkpoints_are_printable(tmp_path: Path) -> None:
    sources, place = tmp_path / "sources", tmp_path / f"d{HOSTILE}"
    sources.mkdir()
    hostile.make(place, sources)
    with pytest.warns(UserWarning, match="does not match its seal") as caught:
        path = kdc.latest_checkpoint(place)
    assert path is not None
    assert Path(path).exists()
    for found in place.iterdir():
        if found.is_file() and not found.name.startswith("foreign"):
            found.unlink()
    with pytest.warns(UserWarning, match="without a record") as foreign:
        assert kdc.latest_checkpoint(place) is None
    texts = [str(warning.message) for warning in [*caught, *foreign]]
    assert [obeyed_in(text) for text in texts] == [[]] * len(texts)
    assert all(READABLE in text for text in texts)


@pytest.mark.finds("strategy")
@pytest.mark.slow
def test_a_restore_from_a_hostile_directory_prints_and_warns_printably(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / f"d{HOSTILE}"
    place.mkdir()
    found = [["shared-variable", "", [hostile.EVIL], ""], ["input-code", "", [hostile.EVIL], hostile.EVIL]]
    states = [{"input/findings": found}]
    tiny.interrupt(place, 1, 3)
    _poison(place, states)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tiny.fit(tiny.model(), place, epochs=2)
    texts = [*capfd.readouterr(), *(str(warning.message) for warning in caught)]
    assert any("not exact" in text and READABLE in text for text in texts)
    assert [obeyed_in(text) for text in texts] == [[]] * len(texts)


def _poison(place: Path, states: list[dict[str, Any]]) -> None:
    """The newest backup says what a hostile one may, and a damaged one is newer still."""
    from keras_dist_callbacks.backups.manifest import encode_manifest
    from keras_dist_callbacks.backups.store import BackupStore
    from keras_dist_callbacks.storage.storage import Storage

    store = BackupStore(Storage.open(place))
    manifest = store.manifest(store.commits()[-1])
    manifest.workers[0].state.update(states[0])
    manifest.info.update(strategy=hostile.EVIL, model=hostile.EVIL)
    rewrite(place, manifest.id.name, encode_manifest(manifest))
