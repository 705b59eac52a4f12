"""Addresses of workers as TF_CONFIG writes them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from keras_dist_callbacks.errors import ConfigError

_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[^\s/\\:,@\[\]\"'\x00-\x1f]+")


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair; an IPv6 address without its brackets.

    Raises:
        ConfigError: It is not of that form; the message says why.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not _PORT.fullmatch(port):
        raise _malformed(address)
    if not 0 < int(port) < 65536:
        raise _malformed(address, "; a port is a number from 1 to 65535")
    if "://" in address:
        raise _malformed(address, f"; leave {address.partition('://')[0]}:// out")
    if any(character.isspace() for character in address):
        raise _malformed(address, "; there is a space in it")
    if host[0] == "[" and host[-1] == "]":
        return _version_6(host[1:-1], address), int(port)
    if ":" in host:
        raise _malformed(address, "; an IPv6 address stands in brackets, such as [::1]:2222")
    if not _HOST.fullmatch(host):
        raise _malformed(address)
    return host, int(port)


def check_addresses(named: Sequence[tuple[str, str]]) -> None:
    """Checks the addresses of all training workers.

    Args:
        named: Where each stands in TF_CONFIG, and the address.

    Raises:
        ConfigError: One is malformed, or two are the same; the message names them.
    """
    seen: dict[tuple[str, int], str] = {}
    for name, address in named:
        host, port = split_address(address)
        first = seen.setdefault((_same(host), port), name)
        if first != name:
            raise ConfigError(
                f"TF_CONFIG: {first} and {name} have the same address {address!r}; each worker needs an address of "
                "its own, and a chief is not listed as a worker too"
            )


def _version_6(host: str, address: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise _malformed(address, f"; {host!r} is no IPv6 address") from None
    return host


def _same(host: str) -> str:
    return str(ipaddress.IPv6Address(host)) if ":" in host else host.lower()


def _malformed(address: str, why: str = "") -> ConfigError:
    return ConfigError(f"TF_CONFIG: {address!r} is no address of the form host:port{why}")
