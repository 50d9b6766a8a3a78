"""Who may dial, and over what: bearer tokens, and TLS everywhere but on loopback."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from basert_fleet.core.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Callable

_BEARER = "Bearer "


class UnprotectedAddress(FleetError):
    """Prompts and tokens would cross a network in the clear."""

    code = "unprotected_address"


def require_protected_url(url: str) -> None:
    """Refuse a gateway's address that an agent must not dial.

    Raises:
        UnprotectedAddress: it is neither `wss://` nor `ws://` to a loopback address, or it holds a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"ws", "wss"} or not parts.hostname:
        raise UnprotectedAddress(f"{url!r} is no gateway's address. Give one like wss://fleet.example.com:8081.")
    if parts.username is not None or parts.password is not None:
        raise UnprotectedAddress("A gateway's address must hold no user or password. Give the token in a file.")
    if parts.scheme == "ws" and not is_loopback(parts.hostname):
        raise UnprotectedAddress(
            f"{url} would send prompts and tokens unencrypted. Use wss://, or a loopback address through a tunnel."
        )


def require_protected_listener(host: str, *, tls: bool) -> None:
    """Refuse to listen for agents where others could read along.

    Raises:
        UnprotectedAddress: the host is no loopback address and there is no certificate.
    """
    if not tls and not is_loopback(host):
        raise UnprotectedAddress(
            f"Listening for agents on {host} without TLS would let others on the network read prompts and tokens. "
            "Give --tls-cert and --tls-key, or listen on 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Say whether a host is `localhost` or a loopback address; other names are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_check(tokens: Callable[[], tuple[str, ...]]) -> Callable[[str | None], bool]:
    """Return a check of an Authorization header against the tokens that hold at that moment.

    `tokens` is called for each dialling agent, so a changed file needs no restart; several tokens let one be replaced
    without a gap. Comparing digests takes the same time whatever the header holds, its length included.
    """

    def check(authorization: str | None) -> bool:
        given = _digest((authorization or "").removeprefix(_BEARER))
        matches = [hmac.compare_digest(given, _digest(token)) for token in tokens() if token]
        return any(matches) and (authorization or "").startswith(_BEARER)

    return check


def authorization(token: str) -> str:
    """Return the Authorization header that `token_check` looks for."""
    return _BEARER + token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
