"""Backups and checkpoints made of numpy arrays, on any store, and `kdc` run on them in this process."""

from __future__ import annotations

import datetime
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from keras_dist_callbacks.backups.owner_records import OWNER
from keras_dist_callbacks.backups.packing import Packer, fingerprints, referenced_blobs
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest, Position, SharedArray, WorkerRecord
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.cli.app import app
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import record, write_model
from tests.support.states import fit_state

DAY = 86400.0
INFO = {"keras": "3.15", "tensorflow": "2.21", "python": "3.11", "workers": 1, "replicas": 1, "seed": 7}
Tensors = Mapping[str, Any]


def kdc(*arguments: object, **options: Any) -> Any:
    """Runs a command; `exit_code`, `stdout` and `stderr` are those of a process."""
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], prog_name="kdc", env={"COLUMNS": "160"}, **options
    )


def kdc_json(*arguments: object, code: int = 0) -> Any:
    """What a command prints with --json; nothing else may be on the standard output."""
    result = kdc(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def urls(tmp_path: Path) -> dict[str, str]:
    return {
        "local": str(tmp_path / "d"),
        "file-url": f"file://{tmp_path}/d",
        "memory": f"memory://{uuid.uuid4().hex}/d",
    }


@pytest.fixture(params=["local", "file-url", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return urls(tmp_path)[request.param]


def begin(url: str | Path, age: float = DAY, options: Mapping[str, Any] | None = None) -> BackupStore:
    """A run takes the directory, `age` seconds ago."""
    store = BackupStore(Storage.open(url, options, fsync=False))
    generation = store.claim({})
    name = f"owners/{generation:06d}.json"
    store.storage.delete(name)
    owner = OWNER.decode(store._claim, name)
    store._claim = OWNER.encode(msgspec.structs.replace(owner, claimed=time.time() - age))
    store.storage.create(name, [store._claim])
    set_modified(store.storage, name, time.time() - age)
    return store


def commit(
    store: BackupStore,
    sequence: int,
    workers: Tensors | Sequence[Tensors] | None = None,
    *,
    age: float | None = DAY,
    position: Position | None = None,
    states: Sequence[Mapping[str, Any]] = ({},),
    known: Manifest | None = None,
    behind: float = 0.0,
    **info: Any,
) -> Manifest:
    """A commit of one worker's tensors, or of several workers'; unchanged ones are found in `known`.

    The clock of the machine that wrote it is `behind` that of the store.
    """
    if workers is None:
        workers = {"variables/kernel@0": np.full(1000, sequence, "float32")}
    every = [workers] if isinstance(workers, Mapping) else list(workers)
    packer = Packer(dict(known.workers[0].tensors) if known else {}, store.blob_directory)
    records = []
    for worker, tensors in enumerate(every):
        held = {name: SharedArray(np.asarray(value)) for name, value in tensors.items()}
        prints = fingerprints(held)
        for blob in packer.pack(held, prints, prefix=f"worker{worker}/" if worker else ""):
            store.stage_all([blob])
        records.append(
            WorkerRecord(packer.locate(held, prints), {**fit_state(), **states[worker]} if worker < len(states) else {})
        )
    created = {} if age is None else {"created": time.time() - age - behind}
    manifest = Manifest(
        CommitId(store.generation, sequence, uuid.uuid4().hex[:12]),
        position or Position("within", 0, sequence, sequence),
        referenced_blobs(records, store.staged),
        tuple(records),
        {**INFO, **info, **created},
    )
    store.commit(manifest)
    set_modified(store.storage, manifest.id.name, time.time() - (DAY if age is None else age))
    return manifest


def set_modified(storage: Storage, name: str, when: float) -> None:
    """Lets an object look as if it had been written then."""
    path = f"{storage.root}/{name}"
    if storage.is_local:
        os.utime(path, (when, when))
    elif "memory" in storage._remote.fs.protocol:
        storage._remote.fs.store[path].modified = datetime.datetime.fromtimestamp(when, datetime.UTC)


def publish(
    directory: str | Path, name: str, epoch: int, tmp_path: Path, content: bytes = b"", **fields: Any
) -> Checkpoint:
    """A checkpoint with its record, as `ModelCheckpoint` leaves it."""
    source = tmp_path / f"source-{uuid.uuid4().hex}" / name
    source.parent.mkdir()
    source.write_bytes(content) if content else write_model(source, b"model of epoch %d" % epoch)
    return files.publish(
        Storage.open(directory, fsync=False), source, record(name, epoch, **{"template": name, **fields})
    )


def rewrite(url: str | Path, name: str, content: bytes | None) -> None:
    """Damages an object; None removes it."""
    storage = Storage.open(url, fsync=False)
    when = storage.modified(name) if storage.exists(name) else None
    storage.delete(name)
    if content is not None:
        storage.create(name, [content])
        set_modified(storage, name, time.time() if when is None else when)


def flip(url: str | Path, name: str, position: int = -1) -> None:
    """Changes a byte of an object, the last one by default."""
    content = bytearray(Storage.open(url).read(name))
    content[position] ^= 1
    rewrite(url, name, bytes(content))


def everything(url: str | Path) -> dict[str, bytes]:
    """All objects of a directory, a few levels deep."""
    storage = Storage.open(url)
    places = ["", "owners", "commits", "damaged", *(f"blobs/{g:06d}" for g in range(1, 6))]
    names = [f"{place}/{f.name}".lstrip("/") for place in places for f in storage.files(place)]
    return {name: storage.read(name) for name in names}
