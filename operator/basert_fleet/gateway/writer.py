"""Writing one response to its client, at the client's own pace.

The only coroutine of a request that waits for the client. It is allowed to be slow up to the outbox's bound; a client
that takes nothing at all for a while is cut, for its unsent response stays in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from basert_fleet.gateway.asgi import respond

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.gateway.asgi import Headers, Send
    from basert_fleet.gateway.exchange import Exchange

KEEP_ALIVE_SECONDS = 10.0
"""Between comments in a silent stream (design 5); proxies and clients often give up after 60 s of silence."""
STALL_SECONDS = 120.0
"""Within which a client must take something of what is ready. Chosen: longer than a hiccup that TCP survives well."""
_COMMENT = b": keep-alive\n\n"


class ClientStalled(Exception):
    """The client has not taken anything for too long."""


async def write_response(exchange: Exchange, send: Send, extra: Headers, started: Callable[[Exchange], None]) -> None:
    """Write the whole response; `started` is called when its first byte is about to go out.

    Returns early, with nothing written, if the exchange was dropped before its head was decided.

    Raises:
        ClientStalled: the client does not read.
    """
    outbox = exchange.outbox
    while not (outbox.opened or outbox.closed):
        await outbox.wait()
    failure = exchange.failure
    if not outbox.opened:
        if failure is not None:
            headers = [*failure.headers(), *exchange.trace_headers(), *extra]
            await respond(send, failure.row.status, headers, failure.body())
        return
    started(exchange)
    data = outbox.take()
    headers = [*exchange.headers(), *extra]
    if outbox.closed and not exchange.is_stream:
        await respond(send, exchange.status, headers, data)
        return
    await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
    while not outbox.closed:
        await _send_piece(send, data)  # the first one may be empty: it lets the head out
        data = outbox.take() or await _next_piece(exchange)
    await _send_piece(send, data + outbox.take(), more=False)


async def _next_piece(exchange: Exchange) -> bytes:
    """Return what comes next; a comment if nothing does for a while, empty at the end.

    A comment stands between events, never within one: agents release whole events only.
    """
    try:
        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
            await exchange.outbox.wait()
    except TimeoutError:
        return _COMMENT
    return exchange.outbox.take()


async def _send_piece(send: Send, data: bytes, *, more: bool = True) -> None:
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await send({"type": "http.response.body", "body": data, "more_body": more})
    except TimeoutError:
        raise ClientStalled from None
