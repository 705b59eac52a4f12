"""Hosts that a cable joins, which can be pulled: network namespaces on one bridge."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from typing import Self

_numbers = itertools.count()


def reason_against() -> str:
    """Why there can be none here; empty if there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` command"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"kdc-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return "network namespaces are not allowed here"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Network:
    """Some hosts, numbered from 0."""

    def __init__(self, hosts: int) -> None:
        self._id = f"{os.getpid() % 100000}x{next(_numbers)}"
        self._hosts = hosts
        self.addresses = [f"10.77.0.{host + 1}" for host in range(hosts)]

    def command(self, host: int, command: list[str]) -> list[str]:
        """What runs a command on a host."""
        return ["ip", "netns", "exec", self._host(host), *command]

    def cut(self, host: int) -> None:
        """Nothing comes through to a host any more, nor from it; no one is informed."""
        self._ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def __enter__(self) -> Self:
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "bridge", "up")
        for host, address in enumerate(self.addresses):
            name = self._host(host)
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "add", "cable", "type", "veth", "peer", "name", f"port{host}")
            self._ip("-n", name, "link", "set", f"port{host}", "netns", self._switch)
            self._ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            self._ip("-n", name, "link", "set", "cable", "up")
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", self._switch, "link", "set", f"port{host}", "master", "bridge")
            self._ip("-n", self._switch, "link", "set", f"port{host}", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in [self._switch, *map(self._host, range(self._hosts))]:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    @property
    def _switch(self) -> str:
        return f"kdc-{self._id}-switch"

    def _host(self, host: int) -> str:
        return f"kdc-{self._id}-{host}"

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)
