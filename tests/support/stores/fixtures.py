"""Fixtures: every store that tests run against, with a fresh directory for each test."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# gcsfs asks a service that no emulator has for the kind of the bucket, and waits for it, unless configured at import.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

import pytest

from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.stores import servers
from tests.support.stores.proxy import FaultProxy

REMOTE = ("gs", "s3", "az")
KINDS = ("file", "memory", *REMOTE)
_SERVED = [pytest.param(kind, marks=pytest.mark.process) for kind in REMOTE]


@dataclass(frozen=True)
class Place:
    """A directory of a store that nothing was ever written to.

    Attributes:
        kind: One of `KINDS`.
        url: Of the directory.
        options: `storage_options` for it.
        server: What serves it, if something does.
    """

    kind: str
    url: str
    options: dict[str, Any] = field(default_factory=dict)
    server: servers.Server | None = None

    def open(self, retry: RetryPolicy | None = None, **arguments: Any) -> Storage:
        return Storage.open(self.url, self.options, retry=retry, **arguments)

    def through(self, proxy: FaultProxy) -> Place:
        """The same directory, as seen through a proxy."""
        assert self.server is not None
        return replace(self, options=self.server.options(proxy.port))

    def sub(self, name: str) -> Place:
        return replace(self, url=f"{self.url}/{name}")

    def elsewhere(self, bucket: str) -> Place:
        """The same path in another bucket."""
        return replace(self, url=self.url.replace(f"//{servers.BUCKET}/", f"//{bucket}/"))


class Stores:
    """Starts each store when it is first asked for."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, servers.Server] = {}

    def server(self, kind: str) -> servers.Server:
        reason = servers.missing(kind)
        if reason is not None:
            pytest.skip(reason)
        if kind not in self._running:
            self._running[kind] = self._stack.enter_context(servers.serve(kind))
        return self._running[kind]

    def place(self, kind: str, directory: Path) -> Place:
        name = uuid.uuid4().hex
        if kind == "file":
            return Place(kind, (directory / name).as_uri())
        if kind == "memory":
            return Place(kind, f"memory://{name}")
        server = self.server(kind)
        return Place(kind, f"{kind}://{servers.BUCKET}/{name}", server.options(), server)


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    with contextlib.ExitStack() as stack:
        yield Stores(stack)


@pytest.fixture(params=["file", "memory", *_SERVED])
def place(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Place:
    """A fresh directory of every store in turn."""
    return stores.place(request.param, tmp_path)


@pytest.fixture(params=_SERVED)
def remote(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Place:
    """A fresh directory of every object store in turn."""
    return stores.place(request.param, tmp_path)


@pytest.fixture
def proxy(remote: Place) -> Iterator[FaultProxy]:
    """A network before the store of `remote`, without a fault yet."""
    assert remote.server is not None
    network = FaultProxy(remote.server.port)
    yield network
    network.close()
