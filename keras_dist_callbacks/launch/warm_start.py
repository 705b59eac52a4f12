"""Restarts that do not import TensorFlow: the fork server of `kdc launch --warm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import keras_dist_callbacks
from keras_dist_callbacks.errors import ClusterError
from keras_dist_callbacks.launch.fork_servers import ForkServer, PreloadedProcess, why_not_forked

MODULES = ("tensorflow", "keras", *sorted(set(keras_dist_callbacks._HOME.values())))


class WarmStart:
    """Has a fork server import what workers need, next to a run, and starts the workers of later runs from it.

    Attributes:
        reason: Why the last worker was not started from it.
    """

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        self.reason = ""
        self._modules = modules
        self._server: ForkServer | None = None

    @property
    def processes(self) -> list[int]:
        """The server's process id, if there is a server."""
        return [] if self._server is None else [self._server.pid]

    def prepare(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Starts the server, unless it runs or cannot be used; returns at once."""
        if not why_not_forked(command, env) and (self._server is None or not self._server.alive):
            self._server = ForkServer(self._modules, env)

    def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> PreloadedProcess | None:
        """Forks a worker; None if that is not possible now, for the `reason`."""
        self.reason = why_not_forked(command, env)
        if self.reason:
            return None
        self.reason = "the process that imports TensorFlow has ended"
        if self._server is None or not self._server.alive:
            return None
        if not self._server.wait_until_ready(0.0):
            self.reason = "the process that imports TensorFlow is not ready yet"
            return None
        try:
            return self._server.start(command, env, log)
        except ClusterError as error:
            self.reason = str(error)
            return None
