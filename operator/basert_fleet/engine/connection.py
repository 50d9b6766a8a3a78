"""One HTTP/1.1 connection to one engine: exact about where a response ends, and closing it is the cancel.

It has no timeouts (a prefill may take many minutes, C07; callers know their limits) and never stops reading: what the
caller has not taken yet is buffered here. Whether an ended or cancelled request left the engine idle is not decided
here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar, TypeAlias, cast

import httptools
import msgspec

from basert_fleet.core.errors import FleetError

MAX_HEAD_BYTES = 65_536
"""Chosen: four times what common servers allow for all headers together."""
FIRST_FINAL_STATUS = 200


class GoneCause(StrEnum):
    """Why a connection gives no more of a response."""

    REFUSED = "refused"
    """It could not be opened: nothing listens there, or nothing reachable."""
    CLOSED = "closed"
    """The engine closed it before the response's first byte."""
    TRUNCATED = "truncated"
    """The engine closed it inside a response."""
    PROTOCOL = "protocol"
    """The engine sent what is not one response to one request."""
    CANCELLED = "cancelled"
    """We closed it."""


class EngineGone(FleetError):
    """The engine's connection ended before the response did."""

    code: ClassVar[str] = "worker_lost"

    def __init__(self, cause: GoneCause, detail: str) -> None:
        super().__init__(f"no whole response from the engine ({cause.value}): {detail}")
        self.cause, self.detail = cause, detail


class ResponseHead(msgspec.Struct, frozen=True):
    """Status and headers of a final response; interim (1xx) responses are never shown."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    """Names as the engine wrote them."""

    def header(self, name: str) -> str | None:
        """Return the first value of this header, whatever the case of its name."""
        wanted = name.lower().encode("latin-1")
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case; empty when the engine told none."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()


class Data(msgspec.Struct, frozen=True):
    """A piece of the body, cut where the network cut it."""

    data: bytes


class EndOfResponse(msgspec.Struct, frozen=True):
    """The body is over."""

    proven: bool
    """True if Content-Length or the last chunk said so; a body that ends with its connection may as well be cut."""


PROVEN_END = EndOfResponse(proven=True)

Event: TypeAlias = ResponseHead | Data | EndOfResponse


class RequestEncoder:
    """Writes the requests to one engine; the headers that all of them share are written once."""

    def __init__(self, host: str, port: int, api_key: str) -> None:
        """Say to whom requests go and by what right; without a key nothing is said of that.

        Raises:
            ValueError: as for `post`.
        """
        _require_one_line(host, api_key)
        right = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._shared = f"Host: {f'[{host}]' if ':' in host else host}:{port}\r\n{right}"

    def get(self, path: str) -> bytes:
        """Return a question, which has no body.

        Raises:
            ValueError: as for `post`.
        """
        _require_path(path)
        return f"GET {path} HTTP/1.1\r\n{self._shared}Content-Length: 0\r\n\r\n".encode("latin-1")

    def post(self, path: str, content_type: str, body: bytes) -> bytes:
        """Return a request with its body.

        Raises:
            ValueError: a part has a character that would end its line and so could smuggle in a second request.
        """
        _require_path(path)
        _require_one_line(content_type)
        own = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}"
        return f"POST {path} HTTP/1.1\r\n{self._shared}{own}\r\n\r\n".encode("latin-1") + body


def _require_path(path: str) -> None:
    if not path or " " in path or not path.isprintable():
        raise ValueError(f"a path that is empty or has a space or a control character: {path!r}")


def _require_one_line(*parts: str) -> None:
    for part in parts:
        if not part.isprintable():
            raise ValueError(f"a header with a control character: {part!r}")


class EngineConnection:
    """A connection for one request at a time; the slot's owner is its only user.

    Nothing here waits for a response: its events queue up, `take` returns them, and `watch` says whom to tell.
    """

    def __init__(self) -> None:
        self._heard: Callable[[], None] = _tell_nobody
        self._wire = _Wire(self._tell)

    async def connect(self, host: str, port: int) -> None:
        """Open the connection, closing an older one first.

        Raises:
            EngineGone: nothing accepts connections there.
        """
        self.close()
        self._wire = _Wire(self._tell)
        try:
            await asyncio.get_running_loop().create_connection(lambda: self._wire, host, port)
        except OSError as error:
            raise EngineGone(GoneCause.REFUSED, f"connecting to {host}:{port}: {error}") from error

    @property
    def reusable(self) -> bool:
        """Whether it can take the next request: open, the last response whole, and the engine keeps it alive."""
        return self._wire.gone is None and self._wire.transport is not None and not self._wire.in_response

    def send(self, request: bytes) -> None:
        """Send one request; returns at once, whatever its size.

        Raises:
            EngineGone: the connection is closed; nothing was sent.
            RuntimeError: the response before has not ended (a bug of the caller).
        """
        self._wire.send(request)

    def watch(self, heard: Callable[[], None]) -> None:
        """Have `heard` called, and nobody else, when `take` may have something new; it must not fail.

        It is called from the event loop's turn in which that arrived, and may be called with nothing new.
        """
        self._heard = heard

    def unwatch(self) -> None:
        """Tell nobody any more."""
        self._heard = _tell_nobody

    def take(self) -> Event | None:
        """Return what comes next of the response, or None if that has not arrived yet.

        Raises:
            EngineGone: the connection ended before the response did; what arrived before that was taken.
        """
        wire = self._wire
        if wire.events:
            return wire.events.popleft()
        if wire.gone is not None:
            raise EngineGone(*wire.gone)
        return None

    def close(self) -> None:
        """Close at once: for a request in progress this is the cancel. Closing again does nothing."""
        self._wire.abandon(GoneCause.CANCELLED, "we closed the connection")

    def _tell(self) -> None:
        self._heard()


def _tell_nobody() -> None:
    """Take note of nothing: nobody waits."""


class _Wire(asyncio.Protocol):
    """The connection as the event loop sees it: bytes in, events out. It lives as long as one TCP connection."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.events: deque[Event] = deque()
        self.gone: tuple[GoneCause, str] | None = None
        self.in_response = False  # from sending a request until its response has ended
        self._tell = tell
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._has_head = False
        self._is_interim = False

    # --- the caller's side

    def send(self, request: bytes) -> None:
        if self.gone is not None:
            raise EngineGone(*self.gone)
        if self.transport is None:
            raise EngineGone(GoneCause.CLOSED, "the connection was never opened")
        if self.in_response:
            raise RuntimeError("a request is in progress on this connection")
        self.in_response = True
        self.transport.write(request)

    def abandon(self, cause: GoneCause, detail: str) -> None:
        """Close for good; the first reason stays."""
        if self.gone is None:
            self.gone = (cause, detail)
        if self.transport is not None:
            self.transport.abort()
        self._tell()

    # --- the event loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods, not by its class
        if self.gone is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.gone is not None:
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break_off(f"{error.__class__.__name__}: {error}")
        self._flush_body()
        if self.in_response and not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._break_off(f"a response head of more than {MAX_HEAD_BYTES} bytes")
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.gone is None and self.in_response and self._has_head and exc is None and self._ends_by_close():
            self.in_response = False
            self.events.append(EndOfResponse(proven=False))
        how = f"closed by the engine{f' ({exc})' if exc else ''}"
        if self.in_response and self._head_bytes:
            self.abandon(GoneCause.TRUNCATED, f"{how} inside a response")
        else:
            self.abandon(GoneCause.CLOSED, how)

    # --- the parser's side

    def on_message_begin(self) -> None:
        if not self.in_response:
            raise httptools.HttpParserError("a response that no request asked for")
        self._headers, self._has_head = [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_interim = status < FIRST_FINAL_STATUS
        if not self._is_interim:
            self._has_head = True
            self.events.append(ResponseHead(status, tuple(self._headers)))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._is_interim:
            return
        self._flush_body()
        self.in_response, self._has_head, self._head_bytes = False, False, 0
        self.events.append(PROVEN_END)
        unsent = self.transport is not None and self.transport.get_write_buffer_size() > 0
        if unsent or not self._parser.should_keep_alive():
            self._retire()

    # --- inside

    def _retire(self) -> None:
        """End the connection after a whole response; what comes later is of no interest."""
        self.gone = (GoneCause.CLOSED, "the engine does not keep the connection alive")
        if self.transport is not None:
            self.transport.close()

    def _break_off(self, detail: str) -> None:
        """Give up on an engine that breaks the protocol; an end it announced in the same breath is not believed."""
        if self.events and isinstance(self.events[-1], EndOfResponse):
            self.events.pop()
        self.gone = (GoneCause.PROTOCOL, detail)
        if self.transport is not None:
            self.transport.abort()

    def _ends_by_close(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return b"content-length" not in names and not self._is_chunked()

    def _is_chunked(self) -> bool:
        codings = [value.lower() for name, value in self._headers if name.lower() == b"transfer-encoding"]
        return bool(codings) and codings[-1].rpartition(b",")[2].strip() == b"chunked"

    def _flush_body(self) -> None:
        if self._body:
            data = b"".join(self._body)
            self._body.clear()
            self.events.append(Data(data))
