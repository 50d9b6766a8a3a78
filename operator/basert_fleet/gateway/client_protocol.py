"""One client's connection, below ASGI: what it may hold of this process before it has asked for anything.

A request that has begun has limits of its own (`uploads`, `writer`). Here are those of a connection without one: how
many there may be, how large and how slow a head may be, and that nothing but bodies is read in any amount. uvicorn
knows none of these limits.

A client that has closed its sending side counts as gone, though TCP would let it read on: nothing else tells that a
client left, and its place in the queue and its worker are given to others at once (C03).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from basert_fleet.gateway.asgi import respond
from basert_fleet.gateway.client_response import ClientResponse
from basert_fleet.gateway.errors import Code, Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable
    from uvicorn._types import Scope as ASGIScope
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from basert_fleet.gateway.asgi import Receive, Scope, Send

CONNECTION = "basert_fleet.connection"
"""The ASGI extension: the client's connection (`asgi.ClientConnection`)."""

HEAD_BYTES = 64 * 1024
"""A request line with its headers. Chosen: nginx takes 32 KiB, Node.js 16. What one read brings (at most 256 KiB) may
be in memory beside it."""
HEAD_SECONDS = 30.0
"""From the first byte of a head, or the start of a connection, to the head's end. Chosen: half of what nginx gives."""
MOST_AHEAD = 8
"""Requests that a client may send ahead of their turn while its leaving is still heard of (C03). Chosen: browsers and
SDKs send none. Past it nothing is read until the answer under way is complete, as HTTP allows."""
LINGER_SECONDS = 2.0
"""For a refused client to read why. Chosen: enough for a long way round the world; closing at once would reset the
connection while the client still sends, and take the answer from it."""

_TOO_LARGE = Failure(Code.HEAD_TOO_LARGE, f"The head of a request may have {HEAD_BYTES} bytes.")
_TOO_SLOW = Failure(Code.CLIENT_TOO_SLOW, f"The head of the request had not arrived after {HEAD_SECONDS:g} seconds.")
_TOO_MANY = Failure(Code.TOO_MANY_CONNECTIONS, "Too many connections are open.", retry_after_seconds=1.0)


class ClientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 over one connection, within limits."""

    most_connections: int
    """Of one server, this one included."""
    refused: Callable[[Code], None]
    """Counts a connection that was refused here, where no application sees it. Both are set by `limited_to`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_limit: asyncio.TimerHandle | None = None
        """When this head, or the time to read its refusal, is over."""
        self._head_has_begun = False
        self._is_refused = False
        self._has_advanced = False
        """Whether the bytes that are being read have brought a part of a body, or the end of a head or of a message."""
        self._bytes_without_advance = 0
        self._when_lost: set[Callable[[], None]] = set()

    # --- The connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Take the connection, or refuse it at once: a descriptor that waits for a client is lost to the workers."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(_TOO_MANY)
            transport.close()  # not even the time to read why
        else:
            self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its limit, and tell who asked to be told."""
        self._unlimit_head()
        super().connection_lost(exc)
        for callback in list(self._when_lost):
            callback()

    def data_received(self, data: bytes) -> None:
        """Read; refuse what grows without getting anywhere, be it a head, a trailer, or a chunk's extensions."""
        if self._is_refused:
            return
        self._has_advanced = False
        super().data_received(data)
        self._bytes_without_advance = 0 if self._has_advanced else self._bytes_without_advance + len(data)
        if self._bytes_without_advance > HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        elif self._awaits_head():
            self._limit_head()
        else:
            self._unlimit_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the shape of every other error."""
        self._refuse(Failure(Code.INVALID_REQUEST, msg))

    # --- The parser ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._head_has_begun = True
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item] # an extension of our own

    def on_headers_complete(self) -> None:
        """Start the request, or refuse it for its head."""
        self._head_has_begun = False
        self._has_advanced = True
        size = len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        self.app = self.config.loaded_app if size <= HEAD_BYTES else self._refuse_head
        super().on_headers_complete()
        if self._when_lost and len(self.pipeline) <= MOST_AHEAD:
            self.flow.resume_reading()  # a request sent ahead of its turn has paused it, and the end would not be heard

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Pass on that the request is complete."""
        self._has_advanced = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        super()._start_asgi_task(cycle, _answering_by(ClientResponse(cycle), app))

    # --- What an application may ask of it (ClientConnection)

    def abort(self) -> None:
        """Drop the connection at once."""
        self.transport.abort()

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call this once the client has gone."""
        self._when_lost.add(callback)
        self.flow.resume_reading()  # a large body has paused it, and who does not read learns of no end
        if self.transport.is_closing():
            self.loop.call_soon(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call this any more."""
        self._when_lost.discard(callback)

    # --- Limits -------------------------------------------------------------------------------------------------------

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _awaits_head(self) -> bool:
        return self._head_has_begun or not self._is_answering()

    def _limit_head(self) -> None:
        """Give a head its time, once: more bytes do not add to it."""
        if self._head_limit is None:
            self._head_limit = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _unlimit_head(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _head_is_late(self) -> None:
        self._head_limit = None
        if self._is_answering():
            return  # what was sent ahead of its turn has time until the answer before it is complete
        if self._head_has_begun:
            self._refuse(_TOO_SLOW)
        else:
            self.transport.close()

    async def _refuse_head(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer in the place of the application, after the answers to what was sent before."""
        self.refused(_TOO_LARGE.code)
        headers = [*_TOO_LARGE.headers(), (b"connection", b"close")]
        await respond(send, _TOO_LARGE.row.status, headers, _TOO_LARGE.body())

    def _refuse(self, failure: Failure) -> None:
        """Take nothing more; answer with an error and close, or only close where that would get into another answer."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._unlimit_head()
        self.refused(failure.code)
        if self._is_answering():
            self.transport.close()
            return
        self.transport.write(_response(failure))
        self.transport.write_eof()
        self._head_limit = self.loop.call_later(LINGER_SECONDS, self.transport.abort)


def limited_to(most_connections: int, refused: Callable[[Code], None]) -> type[ClientProtocol]:
    """Return the protocol of one server, whose limits it has; uvicorn takes a class."""
    limits = {"most_connections": most_connections, "refused": staticmethod(refused)}
    return type("LimitedClientProtocol", (ClientProtocol,), limits)


def _response(failure: Failure) -> bytes:
    body = failure.body()
    headers = [*failure.headers(), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    lines = [STATUS_LINE[failure.row.status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body]
    return b"".join(lines)


def _answering_by(response: ClientResponse, app: ASGI3Application) -> ASGI3Application:
    """Let the application's events be written by this response instead of uvicorn's cycle."""

    async def run(scope: ASGIScope, receive: ASGIReceiveCallable, _send: ASGISendCallable) -> None:
        await app(scope, receive, response.send)  # type: ignore[arg-type] # events are mappings here, typed there

    return run
