"""What a client asked for, checked: the body as it came, and what the headers and the key allow.

Headers that this API defines are validated here; a value that means nothing is refused instead of ignored (C21's rule,
for requests).
"""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from basert_fleet.core.delivery import VerifyMode
from basert_fleet.core.dispatch import Priority
from basert_fleet.gateway.asgi import header
from basert_fleet.gateway.errors import Code, RequestFault

if TYPE_CHECKING:
    from basert_fleet.gateway.asgi import Scope
    from basert_fleet.gateway.auth import Key

REQUEST_ID = b"x-request-id"
VERIFY = b"x-basert-verify"
PRIORITY = b"x-basert-priority"
MAX_WAIT = b"x-basert-max-wait"

SHORTEST_WAIT_SECONDS = 0.001
"""What a wait of 0 becomes: now or never. A place that ends as it begins could not even take an idle slot."""
LONGEST_WAIT_SECONDS = 86_400.0
"""The bound of queue.maxWaitSeconds; the pool's own limit applies below it."""

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a request wants to be treated, as far as its key allows."""

    tenant: str
    weight: float
    priority: Priority
    verify: VerifyMode | None
    """None: as the pool has it. Otherwise it can only raise that."""
    max_wait_seconds: float | None
    """None: as the pool has it."""

    @classmethod
    def read(cls, scope: Scope, key: Key) -> Terms:
        """Read the headers.

        Raises:
            RequestFault: a header has a value that means nothing, or asks for what the key does not allow.
        """
        return cls(
            tenant=key.tenant,
            weight=key.weight,
            priority=_priority(header(scope, PRIORITY), key),
            verify=_verify(header(scope, VERIFY)),
            max_wait_seconds=_max_wait(header(scope, MAX_WAIT)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, ready to be queued."""

    request_id: str
    path: str
    content_type: str
    body: bytes
    model: str | None
    streams: bool
    """Whether the client asked for server-sent events, at an endpoint that has them."""
    terms: Terms


def request_id(scope: Scope) -> str:
    """Return the client's own request id if it is sane, else a new one."""
    asked = header(scope, REQUEST_ID)
    return asked.decode() if asked is not None and _SANE_ID.fullmatch(asked) else new_request_id()


def new_request_id() -> str:
    """Return an id that no other request has."""
    return f"req-{secrets.token_hex(12)}"


def _priority(asked: bytes | None, key: Key) -> Priority:
    allowed = key.allowed()
    if asked is None:
        return allowed[0]
    found = next((priority for priority in Priority if priority.name.lower().encode() == asked.strip().lower()), None)
    if found is None or found not in allowed:
        names = ", ".join(priority.name.lower() for priority in allowed)
        raise _invalid(PRIORITY, asked, f"one of {names} for this key")
    return found


def _verify(asked: bytes | None) -> VerifyMode | None:
    if asked is None:
        return None
    for mode in VerifyMode:
        if mode.value.lower().encode() == asked.strip().lower():
            return mode
    raise _invalid(VERIFY, asked, f"one of {', '.join(VerifyMode)}")


def _max_wait(asked: bytes | None) -> float | None:
    if asked is None:
        return None
    try:
        seconds = float(asked)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= LONGEST_WAIT_SECONDS:  # false for nan, too
        raise _invalid(MAX_WAIT, asked, f"seconds from 0 to {LONGEST_WAIT_SECONDS:g}")
    return max(seconds, SHORTEST_WAIT_SECONDS)


def _invalid(name: bytes, value: bytes, allowed: str) -> RequestFault:
    shown = value[:64].decode("latin-1")
    return RequestFault.because(
        Code.INVALID_REQUEST, f"the header {name.decode()} is {shown!r}; allowed is {allowed}", param=name.decode()
    )
