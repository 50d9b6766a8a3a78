"""Writing one response of an application to its client's connection.

This takes the place of uvicorn's own `send`, which checks each header by two patterns and costs three times as much.
The gateway's headers are its own, so one look at the whole head is enough. It adds HTTP/1.0, which has no chunks.

A head goes out with the first piece of its body, even an empty one: two writes would be two packets, and most of what a
response costs is the kernel's.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from basert_fleet.gateway.asgi import Event, Headers

NO_CONTENT = 204


class _Framing(Enum):
    """How a client knows where the body ends."""

    LENGTH = auto()
    CHUNKS = auto()
    CLOSE = auto()
    """With the connection (RFC 9112, section 6.3): all that an HTTP/1.0 client has for a body of unknown length."""
    NO_BODY = auto()


class ClientResponse:
    """One response, for one of uvicorn's request cycles, whose state it keeps true."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._framing = _Framing.NO_BODY
        self._left = 0
        """Of a body of known length."""
        self._head = b""
        """Until it is written."""

    async def send(self, event: Event) -> None:
        """Take one ASGI event; it waits while the client takes nothing, and drops what nobody will read.

        Raises:
            RuntimeError: the event does not come in its turn, or does not fit what was announced.
        """
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if event["type"] == "http.response.start":
            self._start(event["status"], event["headers"])
        else:
            self._continue(event.get("body", b""), more=event.get("more_body", False))

    def _start(self, status: int, headers: Headers) -> None:
        cycle = self._cycle
        if cycle.response_started:
            raise RuntimeError("a response has begun already")
        named = dict(headers)
        self._choose_framing(status, named.get(b"content-length"))
        lines = [b"%s: %s\r\n" % header for header in (*cycle.default_headers, *headers)]
        if self._framing is _Framing.CHUNKS:
            lines.append(b"transfer-encoding: chunked\r\n")
        if b"connection" in named:
            cycle.keep_alive = False  # the gateway only ever says `close`
        elif not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise RuntimeError("a header has a line end in it")
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        self._head = b"%s%s\r\n" % (STATUS_LINE[status], head)

    def _choose_framing(self, status: int, length: bytes | None) -> None:
        if self._cycle.scope["method"] == "HEAD" or status == NO_CONTENT:
            self._framing = _Framing.NO_BODY
        elif length is not None:
            self._framing, self._left = _Framing.LENGTH, int(length)
        else:
            is_old = self._cycle.scope["http_version"] == "1.0"
            self._framing = _Framing.CLOSE if is_old else _Framing.CHUNKS

    def _continue(self, data: bytes, *, more: bool) -> None:
        cycle = self._cycle
        if not cycle.response_started or cycle.response_complete:
            raise RuntimeError("a piece of a body comes before its head or after its end")
        if self._framing is _Framing.LENGTH:
            self._left -= len(data)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("a body has another length than was announced")
        written, self._head = self._head + self._framed(data, more=more), b""
        if written:
            cycle.transport.write(written)
        if not more:
            self._complete()

    def _framed(self, data: bytes, *, more: bool) -> bytes:
        match self._framing:
            case _Framing.NO_BODY:
                return b""
            case _Framing.CHUNKS:
                chunk = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
                return chunk if more else chunk + b"0\r\n\r\n"
            case _:
                return data

    def _complete(self) -> None:
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
