"""TensorBoard's two loaders, as they read a directory of event files: the steps of a curve, in the order they have."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

_PATIENCE = 60.0
_ALL = 100_000  # more points than there are: else a sample is read


class PythonLoader:
    """What `--load_fast=false` and scripts use, `EventAccumulator`, which keeps what it has read once."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._runs = directory, dict[str, Any]()

    def steps(self, run: str, tag: str) -> list[int]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        if run not in self._runs:
            self._runs[run] = EventAccumulator(str(self._directory / run), {"tensors": 0})
        return [event.step for event in self._runs[run].Reload().Tensors(tag)]


class DataServer:
    """What `--load_fast=true` uses, the process of the package tensorboard_data_server, which reads again and again."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        server = pytest.importorskip("tensorboard_data_server").server_binary()
        options = ["--logdir", str(directory), "--reload", "1", "--samples-per-plugin", "scalars=all"]
        options += ["--port", "0", "--port-file", str(scratch / "port"), "--die-after-stdin"]
        self._process = subprocess.Popen([server, *options], stdin=subprocess.PIPE)
        self._port_file = scratch / "port"

    def __enter__(self) -> DataServer:
        from tensorboard.data import grpc_provider

        address = self._until(lambda: self._port_file.read_text().strip() if self._port_file.exists() else "")
        self._channel = grpc.insecure_channel(f"localhost:{address}")
        self._provider = grpc_provider.GrpcDataProvider(address, grpc_provider.make_stub(self._channel))
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()
        self._process.communicate(timeout=_PATIENCE)

    def steps(self, run: str, tag: str) -> list[int]:
        from tensorboard.context import RequestContext

        found = self._provider.read_scalars(RequestContext(), experiment_id="", plugin_name="scalars", downsample=_ALL)
        return [one.step for one in found.get(run, {}).get(tag, [])]

    def steps_up_to(self, last: int, run: str, tag: str) -> list[int]:
        """Returns the steps once the file's last one was read."""
        return list(self._until(lambda: steps if (steps := self.steps(run, tag))[-1:] == [last] else []))

    def _until(self, look: Any) -> Any:
        deadline = time.monotonic() + _PATIENCE
        while not (found := look()):
            assert time.monotonic() < deadline, "the data server does not answer"
            assert self._process.poll() is None, "the data server has ended"
            time.sleep(0.05)
        return found
