"""Server-sent events, from bytes cut anywhere: the same events come out however the network split them."""

from __future__ import annotations

import msgspec

MAX_EVENT_BYTES = 8_388_608
"""Chosen: a response in one event, log probabilities included, fits; an endless line does not eat the memory."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
USUAL_START, USUAL_END = b"data: ", b"\n\n"


class EventTooLong(ValueError):
    """The stream has an event of more than MAX_EVENT_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"an event of more than {MAX_EVENT_BYTES} bytes")


def valid_utf8(data: bytes) -> bytes:
    """Return text with U+FFFD for what is no UTF-8: an answer cut by its token limit may end inside a character.

    The standard wants streams decoded so; strict JSON readers of the clients would fail on the bytes as they are.
    """
    return data if data.isascii() else data.decode("utf-8", "replace").encode()


class SseEvent(msgspec.Struct, frozen=True):
    """One event that has data; comments, ids and retry times are of no use here and left out."""

    kind: bytes
    """The value of its `event` field; empty for the usual message."""
    data: bytes
    """Its data lines, joined by line feeds; valid UTF-8."""


class SseParser:
    """Turns the bytes of one stream into events, by the rules of the HTML standard (9.2.6)."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []  # the line that has not ended yet
        self._data: list[bytes] = []
        self._kind = b""
        self._size = 0  # of the event so far, its pending line included
        self._after_cr = False  # a line feed that follows belongs to that line's end
        self._at_start = True

    @property
    def unfinished(self) -> bool:
        """Whether the bytes so far end inside an event."""
        return bool(self._pending or self._data)

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they complete.

        Raises:
            EventTooLong: the stream is not usable any further.
        """
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if not data:
            return []
        usual = self._usual(data)
        if usual is not None:
            return usual
        if b"\n" not in data and b"\r" not in data:
            self._pend(data)
            return []
        lines = b"".join((*self._pending, data)).splitlines(keepends=True)
        self._size -= sum(map(len, self._pending))
        self._pending.clear()
        self._after_cr = data.endswith(b"\r")
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        events = [event for line in lines if (event := self._line(line.rstrip(b"\r\n"))) is not None]
        if rest:
            self._pend(rest)
        return events

    def _usual(self, data: bytes) -> list[SseEvent] | None:
        """Return the events of bytes that hold whole ones of one data line each, as nearly all do; None of others.

        Line by line, as everything else is read, an event costs three times as much.
        """
        in_event = self.unfinished or self._kind
        if in_event or not data.startswith(USUAL_START) or not data.endswith(USUAL_END) or b"\r" in data:
            return None
        values = data[len(USUAL_START) : -len(USUAL_END)].split(USUAL_END + USUAL_START)
        if data.count(b"\n") != len(values) * len(USUAL_END) or len(data) > MAX_EVENT_BYTES:
            return None
        self._at_start = False
        return [SseEvent(b"", valid_utf8(value)) for value in values]

    def _pend(self, data: bytes) -> None:
        self._pending.append(data)
        self._grow(len(data))

    def _line(self, line: bytes) -> SseEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._grow(len(value))
        elif name == b"event":
            self._kind = value.removeprefix(b" ")
        return None

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(self._kind, valid_utf8(b"\n".join(self._data))) if self._data else None
        self._kind, self._size = b"", 0
        self._data.clear()
        return event

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLong
