"""Invalid saved states of this package's callbacks are refused by name, before a step is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import pytest
import xxhash

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupMismatchError
from tests.support import tiny

LIES: list[tuple[str, str, Any]] = [
    ("kdc.ModelCheckpoint", "best", "x"),
    ("kdc.ModelCheckpoint", "counters", ["a", "b"]),
    ("kdc.ModelCheckpoint", "last_saved", [-1, 0]),
    ("kdc.PrintLR", "steps", [1]),
    ("kdc.PrintLR", "rates", [1]),
]


def callbacks(directory: Path) -> list[Any]:
    return [
        keras.callbacks.CSVLogger(directory / "log.csv"),
        kdc.ModelCheckpoint(directory / "models/best.keras", monitor="loss", save_best_only=True),
        kdc.PrintLR(),
    ]


def change_saved_value(backup: Path, callback: str, name: str, value: Any) -> None:
    """Changes one value in the state of a callback in every backup, and seals them again."""
    for path in (backup / "commits").iterdir():
        body = json.loads(path.read_bytes())
        del body["seal"]
        (topic,) = (t for t in body["workers"][0]["state"] if t.startswith(f"callbacks/{callback}("))
        body["workers"][0]["state"][topic][name] = value
        text = json.dumps(body, separators=(",", ":")).encode()[:-1]
        path.write_bytes(text + b',"seal":"%s"}' % xxhash.xxh3_128_hexdigest(text).encode())


@pytest.mark.slow
def test_an_invalid_state_of_a_callback_is_refused_by_its_name(tmp_path: Path) -> None:
    first = callbacks(tmp_path)
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path / "b", [*first, tiny.StopAt(1, 3)], save_freq=1)
    first[0].csv_file.close()
    good = {path: path.read_bytes() for path in (tmp_path / "b/commits").iterdir()}
    rows = (tmp_path / "log.csv").read_bytes()
    for callback, name, value in LIES:
        for path, content in good.items():
            path.write_bytes(content)
        change_saved_value(tmp_path / "b", callback, name, value)
        given = callbacks(tmp_path)
        with pytest.raises(BackupMismatchError, match=callback):
            tiny.fit(tiny.model(), tmp_path / "b", given, save_freq=1)
        log = getattr(given[0], "csv_file", None)  # Keras leaves it open where training did not begin
        if log is not None:
            log.close()
        assert (tmp_path / "log.csv").read_bytes().startswith(rows), (callback, name)
