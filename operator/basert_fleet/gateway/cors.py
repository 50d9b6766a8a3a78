"""What browsers ask before they let a page use the API (C09).

Any page may: a request carries its key in a header that a page must know, never a cookie that a browser adds by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from basert_fleet.gateway.asgi import header

if TYPE_CHECKING:
    from basert_fleet.gateway.asgi import Headers, Scope

_EXPOSED = (
    b"x-request-id, x-should-retry, retry-after, x-basert-worker, x-basert-lease, x-basert-attempts, "
    b"x-basert-queue-ms, x-basert-verdict"
)
_PREFLIGHT_SECONDS = b"7200"  # what Chromium caps it at
_ORIGIN = (b"access-control-allow-origin", b"*")

RESPONSE: Headers = [_ORIGIN, (b"access-control-expose-headers", _EXPOSED)]
"""On every response, errors included: without them a page cannot even read the error."""


def preflight(scope: Scope) -> Headers:
    """Return the answer to an OPTIONS request; it needs no key, since browsers send none with it."""
    asked = header(scope, b"access-control-request-headers") or b"authorization, content-type"
    return [
        _ORIGIN,
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", asked),  # `*` would not cover Authorization
        (b"access-control-max-age", _PREFLIGHT_SECONDS),
    ]
