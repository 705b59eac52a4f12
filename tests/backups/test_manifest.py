"""A sealed manifest that makes no sense is damage for every reader, and no error of Python's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.manifest import decode_manifest, encode_manifest
from keras_dist_callbacks.backups.select_backup import find_backup, latest_intact
from keras_dist_callbacks.backups.snapshot import Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage
from tests.support.cli_backups import begin, commit, kdc


def chief(manifest: Manifest, **state: object) -> Manifest:
    record = manifest.workers[0]
    return replace(manifest, workers=(replace(record, state={**record.state, **state}),))


def without(manifest: Manifest, topic: str) -> Manifest:
    record = manifest.workers[0]
    state = {name: value for name, value in record.state.items() if name != topic}
    return replace(manifest, workers=(replace(record, state=state),))


def tensor(manifest: Manifest, **fields: object) -> Manifest:
    record = manifest.workers[0]
    ((name, info),) = record.tensors.items()
    return replace(manifest, workers=(replace(record, tensors={name: replace(info, **fields)}),))  # type: ignore[arg-type]


SENSELESS: dict[str, Callable[[Manifest], Manifest]] = {
    "no workers": lambda m: replace(m, workers=()),
    "no blobs": lambda m: replace(m, blobs=()),
    "no state": lambda m: replace(m, workers=(replace(m.workers[0], state={}),)),
    "topics that are numbers": lambda m: chief(m, **dict.fromkeys(m.workers[0].state, 5)),
    "no random states": lambda m: without(m, "random/now"),
    "random states of nothing": lambda m: chief(m, **{"random/now": {}}),
    "a topic of another kind": lambda m: chief(m, **{"variables/metrics": {"a": 1}}),
    "no number of validations": lambda m: chief(m, **{"input/num_validations": None}),
    "a time that is none": lambda m: replace(m, info={**m.info, "created": "yesterday"}),
    "a tensor behind its blob's end": lambda m: tensor(m, start=10**9),
    "a tensor in the header": lambda m: tensor(m, start=0),
    "a tensor that is too large": lambda m: tensor(m, shape=(10**9,)),
    "a type that is none": lambda m: tensor(m, dtype="letters"),
}


@pytest.mark.parametrize("case", SENSELESS)
def test_a_senseless_manifest_is_damage_and_the_older_backup_is_taken(tmp_path: Path, case: str) -> None:
    store = begin(tmp_path)
    good, newest = commit(store, 1), commit(store, 2)
    path = tmp_path / newest.id.name
    path.write_bytes(encode_manifest(SENSELESS[case](newest)))
    with pytest.raises(DamagedBackupError, match=newest.id.token):
        decode_manifest(path.read_bytes(), newest.id.name)
    assert [kdc(command, tmp_path).exit_code for command in ("ls", "show", "verify")] == [1, 1, 1]
    assert kdc("export", tmp_path, tmp_path / "out.safetensors", "--commit", newest.id.label).exit_code == 1
    another = BackupStore(Storage.open(tmp_path))  # one that did not write it, and knows nothing of it
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert find_backup(another, None, 0)[0] == good.id
    with pytest.warns(RuntimeWarning, match="quarantined"):
        found = latest_intact(another, 1)
    assert found is not None
    assert found[0] == good.id
    assert [quarantined.name[9:] for quarantined in (tmp_path / "damaged").iterdir()] == [path.name]
