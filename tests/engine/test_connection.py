"""The connection to an engine: where a response ends, what breaks it, and what cancelling costs."""

from __future__ import annotations

import asyncio

import pytest

from basert_fleet.engine.connection import (
    MAX_HEAD_BYTES,
    Data,
    EndOfResponse,
    EngineConnection,
    EngineGone,
    GoneCause,
    RequestEncoder,
    ResponseHead,
)
from support.conversation import next_event

REQUESTS = RequestEncoder("127.0.0.1", 1, "key")
REQUEST = REQUESTS.post("/v1/chat/completions", "application/json", b"{}")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n\r\n"
WITH_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


async def collect(connection):
    """Return the events of one response, body pieces joined."""
    events = []
    while not (events and isinstance(events[-1], EndOfResponse)):
        async with asyncio.timeout(20):
            event = await next_event(connection)
        if isinstance(event, Data) and events and isinstance(events[-1], Data):
            event = Data(events.pop().data + event.data)
        events.append(event)
    return events


@pytest.fixture
async def talk(peer):
    """Connect, send one request, and return the connection and the engine's writer."""
    connection = EngineConnection()
    await connection.connect("127.0.0.1", peer.port)
    reader, writer = await peer.accept()
    connection.send(REQUEST)
    assert await peer.take_request(reader) == REQUEST
    yield connection, reader, writer
    connection.close()


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (WITH_LENGTH + b"hello", b"hello"),
        (CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b"5;x=y\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", None),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WITH_LENGTH + b"hello",
            b"hello",
        ),
    ],
)
async def test_end_told_by_framing_is_proven(talk, raw, body):
    """Content-Length and the last chunk prove the end; interim responses are skipped; the connection stays usable."""
    connection, _, writer = talk
    for position in range(len(raw)):  # byte by byte: no split may matter
        writer.write(raw[position : position + 1])
    events = await collect(connection)
    assert isinstance(events[0], ResponseHead)
    assert events[1:-1] == ([Data(body)] if body else [])
    assert events[-1] == EndOfResponse(proven=True)
    assert connection.reusable


async def test_head_tells_status_and_media_type(talk):
    """A header is found whatever its case, and a media type comes without its parameters."""
    connection, _, writer = talk
    writer.write(CHUNKED)
    head = await next_event(connection)
    assert (head.status, head.content_type) == (200, "text/event-stream")
    assert head.header("TRANSFER-encoding") == "chunked"
    assert head.header("absent") is None


async def test_trailers_are_no_headers(talk):
    """What follows the last chunk does not change the head."""
    connection, _, writer = talk
    writer.write(CHUNKED + b"0\r\nX-Late: 1\r\n\r\n")
    events = await collect(connection)
    assert events[0].header("x-late") is None


async def test_connection_serves_one_response_after_another(talk, peer):
    """A kept-alive connection takes the next request once the response before has ended, and not earlier."""
    connection, reader, writer = talk
    writer.write(WITH_LENGTH)
    await next_event(connection)
    with pytest.raises(RuntimeError, match="in progress"):
        connection.send(REQUEST)
    assert not connection.reusable
    writer.write(b"hello")
    await collect(connection)
    connection.send(REQUEST)
    await peer.take_request(reader)
    writer.write(CHUNKED + b"1\r\nx\r\n0\r\n\r\n")
    assert (await collect(connection))[1] == Data(b"x")
    assert peer.connections == 1


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"],
)
async def test_end_by_close_is_not_proven(talk, head):
    """A body without a length ends with its connection, which proves nothing."""
    connection, _, writer = talk
    writer.write(head + b"hello")
    writer.close()
    events = await collect(connection)
    assert events[1:] == [Data(b"hello"), EndOfResponse(proven=False)]
    assert not connection.reusable


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"", GoneCause.CLOSED),
        (b"HTTP/1.1 200 OK\r\nContent-Le", GoneCause.TRUNCATED),
        (b"HTTP/1.1 100 Continue\r\n\r\n", GoneCause.TRUNCATED),
        (WITH_LENGTH + b"hell", GoneCause.TRUNCATED),
        (CHUNKED + b"5\r\nhello\r\n", GoneCause.TRUNCATED),
        (CHUNKED + b"5\r\nhello\r\n0\r\n", GoneCause.TRUNCATED),
    ],
)
async def test_cut_response_is_never_an_end(talk, raw, cause):
    """A response that stops before its end is told as such, after what had arrived of it."""
    connection, _, writer = talk
    writer.write(raw)
    writer.close()
    with pytest.raises(EngineGone) as gone:
        await collect(connection)
    assert gone.value.cause is cause
    assert gone.value.code == "worker_lost"
    with pytest.raises(EngineGone):
        await next_event(connection)


async def test_reset_is_never_an_end(talk):
    """A connection that breaks inside a body without a length is not a body that ended."""
    connection, _, writer = talk
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
    assert isinstance(await next_event(connection), ResponseHead)
    assert await next_event(connection) == Data(b"hello")
    connection._wire.connection_lost(ConnectionResetError("reset by peer"))
    with pytest.raises(EngineGone) as gone:
        await next_event(connection)
    assert gone.value.cause is GoneCause.TRUNCATED


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        WITH_LENGTH + b"hello, and more",
        (WITH_LENGTH + b"hello") * 2,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Endless: " + b"x" * (MAX_HEAD_BYTES + 1),
    ],
)
async def test_broken_protocol_is_no_response(talk, raw):
    """Bytes after the end, two lengths, a stranger's protocol: nothing of that is a whole response."""
    connection, _, writer = talk
    writer.write(raw)
    with pytest.raises(EngineGone) as gone:
        await collect(connection)
    assert gone.value.cause is GoneCause.PROTOCOL
    assert not connection.reusable


async def test_unasked_response_ends_the_connection(talk):
    """What arrives while no request is in progress can belong to nobody: the connection is never used again."""
    connection, _, writer = talk
    writer.write(WITH_LENGTH + b"hello")
    await collect(connection)
    writer.write(WITH_LENGTH + b"again")
    with pytest.raises(EngineGone) as gone:
        await next_event(connection)
    assert gone.value.cause is GoneCause.PROTOCOL
    with pytest.raises(EngineGone):
        connection.send(REQUEST)


async def test_connection_close_header_is_heeded(talk):
    """A response that announces its connection's end is whole, and the connection is not used again."""
    connection, _, writer = talk
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
    assert (await collect(connection))[-1] == EndOfResponse(proven=True)
    assert not connection.reusable


async def test_response_before_the_request_was_taken_ends_the_connection(peer):
    """An answer to a request that is still being written proves its own end, but the connection is spent."""
    connection = EngineConnection()
    await connection.connect("127.0.0.1", peer.port)
    _, writer = await peer.accept()
    connection.send(REQUESTS.post("/x", "application/json", bytes(32_000_000)))  # nobody reads it
    writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    assert (await collect(connection))[-1] == EndOfResponse(proven=True)
    assert not connection.reusable
    connection.close()


async def test_close_is_seen_by_the_engine(talk):
    """Closing is the cancel: the engine's side reaches its end, and waiting for the response ends too."""
    connection, reader, writer = talk
    writer.write(CHUNKED)
    await next_event(connection)
    waiting = asyncio.create_task(next_event(connection))
    await asyncio.sleep(0)
    connection.close()
    with pytest.raises(EngineGone) as gone:
        await waiting
    assert gone.value.cause is GoneCause.CANCELLED
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    connection.close()


async def test_cancelled_wait_loses_nothing(talk):
    """However often the wait for an event is cancelled, all of the response comes out."""
    connection, _, writer = talk
    body = b"".join(b"1\r\n%d\r\n" % (number % 10) for number in range(50))
    pieces = [CHUNKED, *(body[start : start + 6] for start in range(0, len(body), 6)), b"0\r\n\r\n"]
    received = []
    for piece in pieces:
        waiting = asyncio.create_task(next_event(connection))
        await asyncio.sleep(0)
        writer.write(piece)
        waiting.cancel()
        try:
            received.append(await waiting)
        except asyncio.CancelledError:
            received.append(await next_event(connection))
    while not isinstance(received[-1], EndOfResponse):
        received.append(await next_event(connection))
    data = b"".join(event.data for event in received if isinstance(event, Data))
    assert data == b"0123456789" * 5


async def test_nobody_need_take_what_comes(talk):
    """The connection goes on reading while nobody takes events, and gives all of them afterwards."""
    connection, _, writer = talk
    heard = []
    connection.watch(lambda: heard.append(1))
    connection.unwatch()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + bytes(3_000_000))
    await writer.drain()
    head, body, end = await collect(connection)
    assert (head.status, len(body.data), end) == (200, 3_000_000, EndOfResponse(proven=True))
    assert heard == []


async def test_taking_never_waits(talk):
    """What has not come yet is None, and whoever watches is told of everything that may be taken, its end included."""
    connection, _, writer = talk
    assert connection.take() is None
    news = asyncio.Event()
    connection.watch(news.set)
    writer.write(CHUNKED)
    await news.wait()
    assert isinstance(connection.take(), ResponseHead)
    assert connection.take() is None
    news.clear()
    connection.close()
    assert news.is_set()
    with pytest.raises(EngineGone):
        connection.take()


async def test_nothing_listens(peer, start_peer):
    """A refused connection names address and cause; a connection that was never opened cannot send."""
    connection = EngineConnection()
    with pytest.raises(EngineGone, match="never opened"):
        connection.send(REQUEST)
    assert not connection.reusable
    with pytest.raises(EngineGone, match=r"127\.0\.0\.1:1\b") as gone:
        await connection.connect("127.0.0.1", 1)
    assert gone.value.cause is GoneCause.REFUSED
    await connection.connect("127.0.0.1", peer.port)
    assert connection.reusable
    connection.close()


@pytest.mark.parametrize(
    ("path", "content_type"), [("/x\r\nEvil: 1", "a/b"), ("/x y", "a/b"), ("", "a/b"), ("/x", "a/b\r\nEvil: 1")]
)
def test_no_request_is_smuggled(path, content_type):
    """A path or header with a line end is refused, not sent."""
    with pytest.raises(ValueError, match="control character"):
        REQUESTS.post(path, content_type, b"")


def test_no_request_is_smuggled_by_a_key():
    """What all requests share is checked once, before any is written."""
    with pytest.raises(ValueError, match="control character"):
        RequestEncoder("127.0.0.1", 1, "key\r\nEvil: 1")


def test_a_request_tells_its_key_and_its_length():
    """Both kinds of request carry the engine's host and key; a body is told by its type and length."""
    assert REQUESTS.get("/slots") == (
        b"GET /slots HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer key\r\nContent-Length: 0\r\n\r\n"
    )
    assert REQUESTS.post("/x", "a/b", b"{}") == (
        b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer key\r\n"
        b"Content-Type: a/b\r\nContent-Length: 2\r\n\r\n{}"
    )


def test_a_request_without_a_key_claims_no_right():
    """An attached server may ask for none; an IPv6 address stands in brackets."""
    assert RequestEncoder("::1", 80, "").get("/") == b"GET / HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 0\r\n\r\n"
