"""HTTP/1.1 on one socket: requests in, one answer at a time out, with exact framing.

It knows no paths and no bodies. A client that closes its side has left: that is told to whoever answers.
"""

from __future__ import annotations

from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httptools

from basert_fleet.sim.loop import READ, WRITE, Loop

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

READ_BYTES = 256 * 1024  # chosen: a body of 1 MB in a few turns
JSON = "application/json"
EVENT_STREAM = "text/event-stream"


class Request(NamedTuple):
    """One whole request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Exchange:
    """The answer to one request. After the client left or the answer ended, writing does nothing."""

    def __init__(self, connection: Connection, request: Request, *, keep_alive: bool) -> None:
        self.request = request
        self.status = 0  # 0 until the head is written
        self.on_gone: Callable[[], None] = _nothing  # called once if the client leaves before the answer ended
        self._connection, self._keep_alive = connection, keep_alive
        self._over = False

    def respond(self, status: int, body: bytes, content_type: str = JSON) -> None:
        """Answer at once, with a Content-Length."""
        self._write(self._head(status, content_type, f"content-length: {len(body)}") + body)
        self._end()

    def start_stream(self, content_type: str = EVENT_STREAM) -> None:
        """Write the head of a chunked answer."""
        self._write(self._head(200, content_type, "cache-control: no-cache\r\ntransfer-encoding: chunked"))

    def send(self, data: bytes) -> None:
        """Write one chunk."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """Write the end mark of a chunked answer."""
        self._write(b"0\r\n\r\n")
        self._end()

    def cut_short(self, body: bytes = b"") -> None:
        """Close without an end mark; an answer not yet begun is begun, and half of its body sent."""
        if not self.status and body:
            self._write(self._head(200, JSON, f"content-length: {len(body)}") + body[: len(body) // 2])
        self._over = True
        self._connection.close_when_flushed()

    def client_left(self) -> None:
        """Tell whoever answers that nobody listens any more."""
        if not self._over:
            self._over = True
            self.on_gone()

    def _head(self, status: int, content_type: str, framing: str) -> bytes:
        self.status = status
        alive = "keep-alive" if self._keep_alive else "close"
        return (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n"
            f"connection: {alive}\r\n{framing}\r\n\r\n"
        ).encode()

    def _write(self, data: bytes) -> None:
        if not self._over:
            self._connection.write(data)

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        self._connection.exchange_ended(self, keep_alive=self._keep_alive)


class Owner(Protocol):
    """Whoever accepted a connection and answers its requests."""

    def requested(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""

    def answered(self, exchange: Exchange) -> None:
        """Hear that an answer was written to its end."""

    def idle(self) -> None:
        """Hear that a connection has sent all its answers."""

    def closed(self, connection: Connection) -> None:
        """Hear that a connection is gone."""


class Connection:
    """One client's socket. Requests sent ahead wait until the one before them is answered."""

    def __init__(self, sock: socket.socket, loop: Loop, owner: Owner) -> None:
        self._sock, self._loop, self._owner = sock, loop, owner
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._out = bytearray()
        self._closing = self._closed = False
        self._deaf = False  # the client sent what is no HTTP
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        loop.watch(sock, READ, self._ready)

    @property
    def is_idle(self) -> bool:
        """Say whether no request is being answered or waits here, and all answers are sent."""
        return self._current is None and not self._waiting and not self._out

    def write(self, data: bytes) -> None:
        """Send soon: what is written within one turn of the loop goes out together."""
        if self._closed:
            return
        if not self._out:
            self._loop.call_later(0.0, self._flush)
        self._out += data

    def close_when_flushed(self) -> None:
        """Close once all that was written is sent."""
        self._closing = True
        self._flush()

    def exchange_ended(self, exchange: Exchange, *, keep_alive: bool) -> None:
        """Take the next request, or close."""
        self._current = None
        self._owner.answered(exchange)
        if keep_alive:
            self._loop.call_later(0.0, self._answer_next)
        else:
            self.close_when_flushed()

    def on_url(self, url: bytes) -> None:
        """Collect the request target (httptools calls this, and the other `on_` methods)."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect one header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Ask for the body of a client that waits to be asked."""
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Collect a part of the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Put the request behind those before it."""
        path = httptools.parse_url(self._target).path or b"/"
        request = Request(
            self._parser.get_method().decode("ascii"), path.decode("latin-1"), self._headers, b"".join(self._body)
        )
        self._waiting.append(Exchange(self, request, keep_alive=self._parser.should_keep_alive()))
        self._target, self._headers, self._body = b"", {}, []

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & READ and not self._closed:
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset by the client: it has left
            data = b""
        if not data:
            self._close()
            return
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._deaf = True
        self._answer_next()

    def _answer_next(self) -> None:
        """Answer what was sent ahead; if that was no HTTP, say 400 after it.

        Never called by the parser: it would turn an error of whoever answers into one of the client's.
        """
        if self._closing or self._closed or self._current is not None:
            return
        if self._waiting:
            self._current = self._waiting.popleft()
            self._owner.requested(self._current)
        elif self._deaf:
            self.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.close_when_flushed()

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass  # the rest goes when the socket is writable
        except OSError:  # the client has left; its read side tells whoever answers
            self._out.clear()
        if self._closing and not self._out:
            self._close()
        else:
            self._loop.watch(self._sock, READ | WRITE if self._out else READ, self._ready)
            if self.is_idle:
                self._owner.idle()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.unwatch(self._sock)
        self._sock.close()
        if self._current is not None:
            self._current.client_left()
        self._owner.closed(self)


def _nothing() -> None:
    """Be called when a client leaves that nobody works for."""
