"""A log's stream that hangs, breaks or is full: nobody waits for it, and what is lost is counted."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading

import pytest

from basert_fleet.telemetry.line_sink import LineSink, standard_logging_to, unbuffered
from basert_fleet.telemetry.logs import make_logger


class Gate(io.BytesIO):
    """A stream that takes nothing until it is opened, as a pipe that nobody reads."""

    def __init__(self):
        super().__init__()
        self.hangs, self.opened = threading.Event(), threading.Event()

    def write(self, data):
        self.hangs.set()
        self.opened.wait()
        return super().write(data)


class Sips(io.BytesIO):
    """A stream that takes three bytes at once."""

    def write(self, data):
        return super().write(bytes(data)[:3])


@pytest.fixture
def pipe():
    """The reading end's descriptor, and a writing end without buffer."""
    reader, writer = os.pipe()
    with io.FileIO(writer, "wb") as stream:
        yield reader, stream
    with contextlib.suppress(OSError):  # a test may have closed it
        os.close(reader)


def test_lines_arrive_in_order():
    """Closing waits for all of them; a stream that takes little at once gets all of it too."""
    stream = Sips()
    with LineSink(stream) as sink:
        for number in range(1000):
            sink.write(b"%d\n" % number)
    assert stream.getvalue() == b"".join(b"%d\n" % number for number in range(1000))


def test_nobody_waits_for_a_stream_that_hangs():
    """Lines beyond the bound are dropped and counted while the stream hangs; those that wait are written later."""
    stream, dropped = Gate(), []
    sink = LineSink(stream, most_lines=10)
    sink.on_dropped.append(dropped.append)
    sink.write(b"first\n")
    stream.hangs.wait()
    for number in range(15):
        sink.write(b"%d\n" % number)
    assert sum(dropped) == 5
    stream.opened.set()
    sink.close()
    assert stream.getvalue().split() == [b"first", *(b"%d" % number for number in range(10))]


def test_closing_does_not_wait_for_ever():
    """A reader that hangs does not keep the process from its end."""
    stream = Gate()
    sink = LineSink(stream)
    sink.write(b"stuck\n")
    stream.hangs.wait()
    sink.close(limit_seconds=0)
    assert stream.getvalue() == b""
    stream.opened.set()


def test_a_pipe_without_reader_costs_only_its_lines(pipe):
    """A broken pipe raises nowhere; every line is counted, and the stream keeps nothing that fails at exit."""
    reader, stream = pipe
    os.close(reader)
    dropped: list[int] = []
    with LineSink(stream) as sink:
        sink.on_dropped.append(dropped.append)
        log = make_logger(sink)
        for _ in range(3):
            log.info("said to nobody")
    assert sum(dropped) == 3


def test_a_pipe_that_would_block_costs_only_its_lines(pipe):
    """Where a descriptor does not block, a full pipe is told by the write, and drops too."""
    _, stream = pipe
    os.set_blocking(stream.fileno(), False)
    while stream.write(b"x" * 4096):
        pass
    dropped: list[int] = []
    with LineSink(stream) as sink:
        sink.on_dropped.append(dropped.append)
        sink.write(b"no room\n")
    assert sum(dropped) == 1


def test_a_closed_stream_costs_only_its_lines():
    """Whoever closes stderr loses the log, and nothing else."""
    stream = io.BytesIO()
    stream.close()
    dropped: list[int] = []
    with LineSink(stream) as sink:
        sink.on_dropped.append(dropped.append)
        sink.write(b"too late\n")
    assert sum(dropped) == 1


def test_buffers_of_a_text_stream_are_not_used():
    """What a standard stream holds back would fail again when the interpreter ends."""
    raw = io.BytesIO()
    buffered, bare = io.TextIOWrapper(io.BufferedWriter(raw)), io.TextIOWrapper(raw)
    assert unbuffered(buffered) is raw
    assert unbuffered(bare) is raw


def test_warnings_of_libraries_go_the_same_way():
    """Within the block they come as lines, with their logger's name; below warning nothing does, and nothing after."""
    stream = io.BytesIO()
    library = logging.getLogger("some.library")
    with LineSink(stream) as sink:
        with standard_logging_to(sink):
            library.info("detail")
            library.warning("odd: %s", "é")
        library.warning("after")
    assert stream.getvalue() == "WARNING some.library: odd: é\n".encode()


def test_a_text_that_is_no_unicode_is_said_all_the_same():
    """Half a surrogate pair, as in a file name or an engine's words, is written as its escape."""
    stream = io.BytesIO()
    with LineSink(stream) as sink:
        sink.say("odd: \ud800")
    assert stream.getvalue() == b"odd: \\ud800\n"
