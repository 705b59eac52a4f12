"""Sealed records of invalid content: none is taken, none ends a restart, and the good backup before it is found."""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import xxhash

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups import owner_records
from keras_dist_callbacks.backups.select_backup import latest_intact
from keras_dist_callbacks.backups.snapshot import CommitId
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.run.engine import worker_exchange
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.checkpoints import opened
from tests.support.cli_backups import kdc as command
from tests.support.mutations import Path as Place
from tests.support.mutations import mutations

SAMPLE, ALL, SECONDS = 300, 3000, 5.0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two good backups of an interrupted fit, and a checkpoint."""
    directory = tmp_path_factory.mktemp("written")
    stopping = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    checkpoint = kdc.ModelCheckpoint(directory / "models/best.keras", monitor="loss", save_best_only=True)
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), directory / "backup", [stopping, checkpoint, tiny.StopAt(1, 3)], save_freq=1)
    return directory


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "d")
    return tmp_path / "d"


@pytest.fixture(params=[SAMPLE, pytest.param(ALL, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def count(request: pytest.FixtureRequest) -> int:
    """How many mutations of all kinds of records."""
    return int(request.param)


def cases(count: int, body: Any, free: Any, share: float) -> Iterator[tuple[str, bytes]]:
    """Some mutations: a kind of record's share of all."""
    found = mutations(body, random.Random(f"{count} {sorted(body)}"), free)  # noqa: S311
    for _ in range(round(count * share)):
        yield next(found)


def is_content(place: Place) -> bool:
    """Whether a place in a manifest is within what its seal alone vouches for: a worker's state and tensors, info."""
    return place[2:3] in {("state",), ("tensors",)} or place[:1] == ("info",)


def sealed(text: bytes) -> bytes:
    """A JSON object as a record; what is not an object gets a seal all the same."""
    return text[:-1] + b',"seal":"%s"}' % xxhash.xxh3_128_hexdigest(text[:-1]).encode()


def unsealed(content: bytes) -> Any:
    """The fields of a record, its format and version among them."""
    return {name: value for name, value in json.loads(content).items() if name != "seal"}


@pytest.mark.slow
def test_an_invalid_manifest_is_quarantined_and_the_backup_before_it_is_taken(directory: Path, count: int) -> None:
    older, newer = sorted((directory / "backup/commits").iterdir())
    content = newer.read_bytes()
    body = unsealed(content)
    for what, text in cases(count, body, is_content, 0.7):
        newer.write_bytes(sealed(text))
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                found = latest_intact(BackupStore(Storage.open(directory / "backup")), 1)
            except BackupMismatchError:  # a number that a newer version may have
                found, told = None, []
        if found is None:
            assert what.startswith("range of version"), what
            continue
        assert time.monotonic() - began < SECONDS, what
        assert found[0] == CommitId.parse(older.name), f"taken: {what}"
        assert "quarantined" in str(told[0].message), what
        assert not newer.exists(), what
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2**20 * 8, "kilobytes; TensorFlow's included"


def test_a_senseless_owner_record_rules_by_its_name_and_tells_nothing(directory: Path, count: int) -> None:
    (record,) = (directory / "backup/owners").glob("*.json")
    body = unsealed(record.read_bytes())
    storage = Storage.open(directory / "backup")
    for what, text in cases(count, body, lambda place: False, 0.1):
        record.write_bytes(sealed(text))
        assert owner_records.generations(storage) == [1]
        found = owner_records.read_owner(storage, 1)
        assert found is None or 0 <= found.claimed < 2**40, what
    assert command("doctor", directory / "backup").exit_code == 0
    assert latest_intact(BackupStore(storage), 1) is not None


def test_an_invalid_record_hides_its_checkpoint_and_no_other(directory: Path, count: int) -> None:
    path = directory / "models/best.keras"
    shutil.copy(path, directory / "models/other.keras")
    content = path.read_bytes()
    size = files.find(opened(directory / "models")).checkpoints[0].record.size
    good = unsealed(content[size:-16])
    free = lambda place: place[-1] in {"template", "published_name", "monitor", "value"}  # noqa: E731
    for what, text in cases(count, good, free, 0.1):
        record = sealed(text)
        path.write_bytes(content[:size] + record + struct.pack("<Q", len(record)) + b"KDCREC01")
        try:
            found = files.find(opened(directory / "models"))
        except BackupMismatchError:
            found = None
        if found is None:
            assert what.startswith("range of version"), what
            continue
        assert [checkpoint.name for checkpoint in found.checkpoints] == ["other.keras"], what
        assert len(found.problems) == 1, what


def test_invalid_messages_of_a_worker_fail_the_save_and_nothing_else(count: int) -> None:
    hello = {"tensors": {"variable/a@0": ["0" * 32, "float32", [2, 3]]}, "topics": {"rng": "1" * 32}}
    wanted = {"tensors": ["variable/a@0"], "topics": ["rng"]}
    values = {"state": {"rng": {}}, "sent": ["variable/a@0"]}
    kinds = ((hello, worker_exchange._Hello), (wanted, worker_exchange._Wanted), (values, worker_exchange._Head))
    for body, kind in kinds:
        free = lambda place: place[:1] == ("state",) or place[-1] in {0, "float32"} or "sent" in place  # noqa: E731
        for what, text in cases(count, body, free, 0.03):
            if what.startswith(("double", "spelling", "unicode", "rename of topics", "rename of state")):
                continue  # between processes of one run: another way to write it, or a topic that the chief looks at
            with pytest.raises(BackupError):
                worker_exchange._understood(text, kind, what)
