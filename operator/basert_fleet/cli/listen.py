"""Addresses to listen on, as a person types them."""

from __future__ import annotations

import argparse
import ipaddress
from dataclasses import dataclass

HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int
    """0 lets the system choose."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name counts as elsewhere, but for `localhost`."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def url(self) -> str:
        """The address as a client on this machine would type it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all addresses of this machine, and is none that can be dialled."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `host:port` or `[v6]:port`; an argparse type.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_bracketed = host == f"[{bare}]"
    if not colon or not bare or is_bracketed != (":" in bare):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write HOST:PORT, such as 127.0.0.1:8080")
    if not (port.isascii() and port.isdigit() and int(port) <= HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} has no port from 0 to {HIGHEST_PORT}")
    return Address(bare, int(port))
