"""Lines to a stream that may not take them: a pipe that nobody reads, a closed one, a full disk.

Whoever writes a line neither waits nor sees an error: lines go into a bounded queue, and one thread moves them on to
the stream. What does not fit, or cannot be written, is dropped and counted. A log must never hold up a request.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self, TextIO

MOST_LINES = 10_000
"""Lines that wait. Chosen: a minute of 150 leases a second, in some megabytes."""
LINES_AT_ONCE = 1000
"""Lines of one write. Chosen: enough that a burst costs few writes; all of them are lost if it fails."""
GATHER_SECONDS = 0.02
"""After the first line, how long more are waited for. Chosen: a person sees no delay, and a busy event loop is not
interrupted by the thread for each line of its own."""
CLOSE_SECONDS = 1.0
"""Chosen: a reader that works has taken the last lines by then, and one that hangs does not keep the process."""


class Stream(Protocol):
    """What lines are moved on to; unbuffered, so that nothing is left in it which fails again at exit."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of it; return how many bytes, or None if it would have to wait."""

    def isatty(self) -> bool:
        """Say whether a person reads it."""


def unbuffered(text: TextIO | None) -> Stream:
    """Return what is below a standard stream; nothing that is written comes anywhere if there is none.

    There is none if whoever started the process had closed it.

    Its buffers are not used: one that holds what a broken pipe did not take makes Python exit with status 120, and one
    that a thread hangs in makes it abort.
    """
    if text is None:
        return _Nowhere()
    stream: Stream = getattr(text.buffer, "raw", text.buffer)
    return stream


class _Nowhere:
    """A stream that takes everything and keeps nothing."""

    def write(self, data: memoryview, /) -> int:
        return len(data)

    def isatty(self) -> bool:
        return False


class LineSink:
    """A stream as a log sees it: it takes every line at once. `close` it, or use it as a context manager."""

    def __init__(self, stream: Stream, *, most_lines: int = MOST_LINES) -> None:
        self.on_dropped: list[Callable[[int], None]] = []
        """Called with a number of lines that were dropped just now, in any thread."""
        self._stream = stream
        self._most_lines = most_lines
        self._closing = threading.Event()
        self._waiting: SimpleQueue[bytes] = SimpleQueue()
        self._thread = threading.Thread(target=self._move, name="log lines", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> int:
        """Take a line, its end included; never waits."""
        if self._waiting.qsize() < self._most_lines:
            self._waiting.put(line)
        else:
            self._dropped(1)
        return len(line)

    def say(self, text: str) -> None:
        """Take a text for a person, without its last line end."""
        self.write(f"{text}\n".encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Do nothing: lines are on their way already, and nobody may wait for them."""

    def isatty(self) -> bool:
        """Say whether a person reads the stream."""
        return self._stream.isatty()

    def close(self, limit_seconds: float = CLOSE_SECONDS) -> None:
        """Let the lines that wait be written, and return once they are, or after the limit without them."""
        self._closing.set()
        self._waiting.put(b"")  # wakes the thread
        self._thread.join(limit_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _move(self) -> None:
        while not (self._closing.is_set() and self._waiting.empty()):
            self._write(self._next_lines())

    def _next_lines(self) -> list[bytes]:
        """Wait for a line; return it with those that come soon behind it."""
        lines = [self._waiting.get()]
        self._closing.wait(GATHER_SECONDS)
        with contextlib.suppress(Empty):
            while len(lines) < LINES_AT_ONCE:
                lines.append(self._waiting.get_nowait())
        return lines

    def _write(self, lines: list[bytes]) -> None:
        try:
            _write_all(self._stream, b"".join(lines))
        except (OSError, ValueError):  # a ValueError is Python's word for a stream that is closed
            self._dropped(sum(map(bool, lines)))

    def _dropped(self, count: int) -> None:
        for callback in self.on_dropped:
            callback(count)


def _write_all(stream: Stream, data: bytes) -> None:
    """Write all of it, however little the stream takes at once.

    Raises:
        OSError: the stream does not take it, or would have to wait for that.
    """
    rest = memoryview(data)
    while rest:
        written = stream.write(rest)
        if written is None:
            raise BlockingIOError(errno.EAGAIN, "the stream takes nothing now")
        rest = rest[written:]


@contextlib.contextmanager
def standard_logging_to(sink: LineSink) -> Iterator[None]:
    """Let warnings of libraries (the HTTP server, asyncio) go to the sink within the block.

    By themselves they would be written to stderr by whoever has them: the event loop.
    """
    handler = _ToSink(sink)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _ToSink(logging.Handler):
    def __init__(self, sink: LineSink) -> None:
        super().__init__(logging.WARNING)
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        self._sink.say(self.format(record))
