"""The ops port: metrics, liveness, readiness, and the fleet as it is observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from prometheus_client.exposition import choose_encoder

from basert_fleet.gateway.asgi import header, respond
from basert_fleet.gateway.errors import Code, Failure

if TYPE_CHECKING:
    from basert_fleet.gateway.asgi import Headers, Receive, Scope, Send
    from basert_fleet.gateway.fleet import Fleet

_JSON: Headers = [(b"content-type", b"application/json")]


class OpsApi:
    """The ASGI application of the ops port."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pages = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/fleet/observed": self._observed,
        }

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        page = self._pages.get(scope["path"])
        if page is None:
            await self._refuse(send, Code.UNSUPPORTED_ENDPOINT, f"there is no {scope['path']} on this port")
        elif scope["method"] not in ("GET", "HEAD"):
            await self._refuse(send, Code.METHOD_NOT_ALLOWED, f"{scope['path']} only takes GET")
        else:
            await page(scope, send)

    async def _metrics(self, scope: Scope, send: Send) -> None:
        accept = (header(scope, b"accept") or b"").decode("latin-1")
        encode, content_type = choose_encoder(accept)
        await respond(send, 200, [(b"content-type", content_type.encode())], encode(self._fleet.metrics.registry))

    async def _healthz(self, _scope: Scope, send: Send) -> None:
        await respond(send, 200, _JSON, b'{"status":"ok"}')

    async def _readyz(self, _scope: Scope, send: Send) -> None:
        if self._fleet.ready():
            await respond(send, 200, _JSON, b'{"status":"ready"}')
        else:
            await respond(send, 503, _JSON, b'{"status":"not ready"}')

    async def _observed(self, _scope: Scope, send: Send) -> None:
        await respond(send, 200, _JSON, msgspec.json.encode(self._fleet.observed()))

    async def _refuse(self, send: Send, code: Code, message: str) -> None:
        failure = Failure(code, message)
        await respond(send, failure.row.status, failure.headers(), failure.body())
