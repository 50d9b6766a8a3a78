"""Where an attached server is, as a person types it: `http://127.0.0.1:8896`.

Only servers of this machine are attached: what is sent to one is not encrypted, and a Mac further away gets an agent
of its own. So the port alone says which server is meant, however its host is spelt.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORT = 80
"""Of http, where a URL names none."""


class NoServerAddress(ValueError):
    """A text is no address of a server that can be attached; says what is."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server of this machine."""

    host: str
    port: int
    """Which server it is: two on one port cannot be told apart, by whatever name of this machine they are asked."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def server_address(url: str) -> ServerAddress:
    """Read the address of a server of this machine.

    Raises:
        NoServerAddress: it is none, or one of another machine, or needs TLS.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise NoServerAddress(f"should be http://127.0.0.1:PORT ({error})") from None
    if parts.scheme == "https":
        raise NoServerAddress("should begin with http://: an attached server is of this machine, and asked without TLS")
    if parts.username is not None or parts.password is not None:
        raise NoServerAddress("should not contain a user or password; put the server's key into apiKeyFile")
    if parts.scheme != "http" or parts.path not in ("", "/") or parts.query or parts.fragment or port == 0:
        raise NoServerAddress("should be http://HOST:PORT and no more, such as http://127.0.0.1:8896")
    if not _is_this_machine(host):
        raise NoServerAddress(
            "should name this machine (127.0.0.1, [::1] or localhost): requests to another one would not be encrypted. "
            "Run an agent there instead"
        )
    return ServerAddress(host, DEFAULT_PORT if port is None else port)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
