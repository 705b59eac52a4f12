"""A store in memory that records every operation, and runs of training upon it without any training.

Runs are those of the real engine, store and codec; only the tensors are made up: each is a function of the
step, so that whatever is restored can be compared bit by bit.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import fsspec
import numpy as np

from keras_dist_callbacks.backups.packing import fingerprints
from keras_dist_callbacks.backups.snapshot import CommitId, Position, SharedArray, Snapshot, WorkerState
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.run.engine.committer import EngineOptions
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.engine.worker_exchange import LocalState
from keras_dist_callbacks.run.engine.writer import Writer
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.states import loop_state

ROOT = "backup"
Files = dict[str, bytes]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One change of the store; `content` is None for a deletion."""

    path: str
    content: bytes | None

    @property
    def name(self) -> str:
        return self.path.removeprefix(f"{ROOT}/")


class _Door(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """The way to a `RecordingStore` through fsspec."""

    protocol = "recording"
    cachable = False

    def __init__(self, keeper: RecordingStore, **options: Any) -> None:
        super().__init__(**options)
        for method in ("ls", "info", "cat_file", "pipe_file", "rm_file"):
            setattr(self, method, getattr(keeper, method))


fsspec.register_implementation("recording", _Door)


class RecordingStore:
    """A store in memory with a log of what was changed."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.files: Files = dict(files or {})
        self.log: list[Operation] = []
        self.before: Callable[[Operation], None] = lambda operation: None
        self._lock = threading.RLock()

    def storage(self) -> Storage:
        return Storage.open(f"recording://{ROOT}", {"keeper": self}, retry=RetryPolicy(total_seconds=0))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        prefix = path.rstrip("/") + "/"
        with self._lock:
            found = [(name, len(content)) for name, content in self.files.items() if name.startswith(prefix)]
        return [{"name": n, "size": s, "type": "file"} for n, s in found if "/" not in n.removeprefix(prefix)]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self._content(path)), "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._content(path)[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        operation = Operation(path, bytes(value))
        self.before(operation)
        with self._lock:
            if mode == "create" and path in self.files:
                raise FileExistsError(path)
            self.files[path] = operation.content or b""
            self.log.append(operation)

    def rm_file(self, path: str, **_: Any) -> None:
        operation = Operation(path, None)
        self.before(operation)
        with self._lock:
            if path not in self.files:
                raise FileNotFoundError(path)
            del self.files[path]
            self.log.append(operation)

    def _content(self, path: str) -> bytes:
        with self._lock:
            if path not in self.files:
                raise FileNotFoundError(path)
            return self.files[path]


class OneProcess:
    """The chief of a cluster whose other workers exist in the test only."""

    worker_index = 0
    patience = 5.0
    is_chief = True

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def on_chief(self, action: Callable[[], Any], tag: str, timeout: float = 0) -> Any:
        return action()

    def agree(self, action: Callable[[], Any], tag: str, timeout: float = 0) -> Any:
        return action()

    def broadcast(self, value: Any, tag: str, timeout: float = 0, kind: Any = None) -> Any:
        return value

    def gather(self, value: Any, tag: str, timeout: float = 0, kind: Any = None) -> list[Any]:
        return [value]

    def barrier(self, tag: str, timeout: float = 0) -> None:
        pass

    def leave(self, tag: str, timeout: float = 0) -> None:
        pass


class Delivered:
    """What the other workers would send for the step of a snapshot."""

    def __init__(self, num_workers: int) -> None:
        self._workers = range(1, num_workers)
        self.abort = threading.Event()

    def collect(self, save: int, snapshot: Snapshot, prints: Any) -> list[LocalState]:
        found = []
        for worker in self._workers:
            own = {n: SharedArray(a) for n, a in tensors_at(snapshot.position.step, worker).items() if n not in SHARED}
            found.append(LocalState(own, fingerprints(own), {"loop/user": {"worker": worker}}))
        return found

    def skip(self, save: int, first: int = 1) -> None:
        pass

    def stands_in_line(self, save: int) -> None:
        pass


SHARED = ("frozen", "kernel", "slot", "seldom")


def tensors_at(step: int, worker: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """The training state at a step: some of it never changes, some seldom, some differs between workers."""
    rng, seldom = np.random.default_rng(step), np.random.default_rng(step // 4)
    return {
        "frozen": np.arange(40, dtype="float32"),
        "kernel": rng.standard_normal((6, 5)).astype("float32"),
        "slot": rng.standard_normal(24),
        "seldom": seldom.standard_normal(30).astype("float16"),
        "metric": np.float32(step + worker / 8).reshape(()),
    }


@dataclasses.dataclass
class Run:
    """One start of a training script: picks, claims, saves."""

    store: RecordingStore
    workers: int = 1
    options: EngineOptions = dataclasses.field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        self.backups = BackupStore(self.store.storage())
        self.writer = Writer()
        cluster: Any = OneProcess(self.workers)
        exchange: Any = Delivered(self.workers)
        self.engine = BackupEngine(self.backups, cluster, exchange, self.writer, self.options)
        self.step = 0

    def begin(self) -> tuple[CommitId, WorkerState] | None:
        picked = self.engine.pick()
        if picked:
            self.step = picked[1].position.step
        self.engine.claim({})
        return picked

    def save(self, count: int = 1) -> None:
        for _ in range(count):
            self.step += 1
            self.engine.save(lambda: self._snapshot("within"))
            self.writer.wait()
            self.engine.poll()

    def finish(self, *, delete: bool) -> None:
        self.engine.finish(lambda: self._snapshot("end"), delete=delete)

    def _snapshot(self, kind: Any) -> Snapshot:
        held = {name: SharedArray(array) for name, array in tensors_at(self.step).items()}
        batch = self.step if kind == "within" else 0
        return Snapshot(Position(kind, 0, batch, self.step), held, loop_state(step=self.step))
