"""Starts the real servers of the tests, each as a process of its own on a free loopback port."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import ROOT

AZURITE = ROOT / ".venv" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
ACCOUNT = "kdctests"
ACCOUNT_KEY = base64.b64encode(b"a key for the server of the tests only").decode()
BUCKET = "kdc-tests"
_READY_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """A running store.

    Attributes:
        kind: `"gs"`, `"s3"` or `"az"`.
        port: Where it listens on the loopback interface.
        pid: Its process.
    """

    kind: str
    port: int
    pid: int

    def options(self, port: int | None = None) -> dict[str, Any]:
        """storage_options for a client of it, directly or through a proxy at another port."""
        return OPTIONS[self.kind](f"http://127.0.0.1:{port or self.port}")


def gs_options(endpoint: str) -> dict[str, Any]:
    return {"endpoint_url": endpoint, "token": "anon"}


def s3_options(endpoint: str) -> dict[str, Any]:
    return {"endpoint_url": endpoint, "key": "testing-key", "secret": "testing-secret-value"}


def az_options(endpoint: str) -> dict[str, Any]:
    parts = ["DefaultEndpointsProtocol=http", f"AccountName={ACCOUNT}", f"AccountKey={ACCOUNT_KEY}"]
    return {"connection_string": ";".join([*parts, f"BlobEndpoint={endpoint}/{ACCOUNT};"])}


OPTIONS = {"gs": gs_options, "s3": s3_options, "az": az_options}


def missing(kind: str) -> str | None:
    """Why this machine cannot run the store; None if it can."""
    if kind == "az" and not (AZURITE.exists() and shutil.which("node")):
        return "Azurite is not installed: `npm install --prefix .venv/azurite azurite`, which needs Node.js"
    return None


@contextmanager
def serve(kind: str) -> Iterator[Server]:
    """Runs a store with an empty bucket `BUCKET` until the block ends."""
    with tempfile.TemporaryDirectory(prefix="kdc-store-") as directory:
        port = free_port()
        command, environment = COMMANDS[kind](port, directory)
        # It must not outlive tests that were killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with open(Path(directory) / "log", "wb") as log:
            process = subprocess.Popen(
                [*guard, *command], env={**os.environ, **environment}, stdout=log, stderr=log, cwd=ROOT
            )
        try:
            _wait_until_ready(process, port, Path(directory) / "log")
            server = Server(kind, port, process.pid)
            make_bucket(kind, server.options())
            yield server
        finally:
            process.kill()
            process.wait()


def make_bucket(kind: str, options: Mapping[str, Any], name: str = BUCKET) -> None:
    import fsspec

    fs, _ = fsspec.core.url_to_fs(f"{kind}://{name}", **options)
    fs.mkdir(name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _gs_command(port: int, directory: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "tests.support.stores.gcs", str(port)], {}


def _s3_command(port: int, directory: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {}


def _az_command(port: int, directory: str) -> tuple[list[str], dict[str, str]]:
    flags = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    return ["node", str(AZURITE), *flags, *where], {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}


COMMANDS = {"gs": _gs_command, "s3": _s3_command, "az": _az_command}


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the store did not start: {log.read_text(errors='replace')[-2000:]}")
