"""What a connection may hold before it has asked for anything, over real sockets that bytes are written to by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from basert_fleet.gateway import client_protocol
from basert_fleet.gateway.asgi import respond
from basert_fleet.gateway.client_protocol import CONNECTION, HEAD_BYTES
from basert_fleet.gateway.server import RESERVED_FILES, HttpServer, most_connections
from support.turns import until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


class Served:
    """A server of one small application, and the raw connections of its clients."""

    def __init__(self, server, refused):
        self.server, self.refused = server, refused
        self._writers = []

    async def connect(self, sent=b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self._writers.append(writer)
        writer.write(sent)
        return reader, writer

    async def ask(self, sent):
        """Send this on a connection of its own; return all that comes until the server closes it."""
        reader, _ = await self.connect(sent)
        return await reader.read()

    async def close(self):
        for writer in self._writers:
            writer.close()
        await self.server.stop(grace_seconds=1)


@contextlib.asynccontextmanager
async def served(app, **options):
    """Serve an application for a block of code."""
    refused = []
    running = Served(await HttpServer.start(app, "127.0.0.1", 0, refused=refused.append, **options), refused)
    try:
        yield running
    finally:
        await running.close()


async def hello(scope, receive, send):
    """Read the body, then answer."""
    while (await receive()).get("more_body"):
        pass
    await respond(send, 200, [], b"hello")


async def stream(scope, receive, send):
    """Answer in two pieces of a length that is told nowhere."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one ", "more_body": True})
    await send({"type": "http.response.body", "body": b"two", "more_body": False})


def code_of(response: bytes) -> tuple[int, str]:
    """Return the status and the code of an error in OpenAI's shape that is all of a connection's answer."""
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"content-length: %d" % len(body) in head.splitlines()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.fixture
def little_time(monkeypatch):
    """Give heads hardly any time, so that no test waits for it."""
    monkeypatch.setattr(client_protocol, "HEAD_SECONDS", 0.05)


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"a: " + b"x" * HEAD_BYTES * 8,
        GET + b"a: b\r\n" * HEAD_BYTES,
        b"GET /" + b"x" * HEAD_BYTES * 8,
        b"\r\n" * HEAD_BYTES * 4,
        GET + b"a: " + b"x" * HEAD_BYTES + b"\r\n\r\n",
    ],
    ids=["one header", "many headers", "target", "empty lines", "complete"],
)
async def test_a_head_has_a_largest_size(sent):
    """Whatever it is made of, and whether it ends or not, it is refused, and its bytes are not kept."""
    async with served(hello) as running:
        assert code_of(await running.ask(sent)) == (431, "head_too_large")
        assert [str(code) for code in running.refused] == ["head_too_large"]


async def test_what_follows_a_body_has_a_largest_size_too():
    """A trailer would be kept in memory like a header, and is no way around the limit."""
    async with served(hello) as running:
        reader, writer = await running.connect(POST + b"1\r\nx\r\n0\r\n")
        writer.write(b"a: " + b"x" * HEAD_BYTES * 8)
        with contextlib.suppress(ConnectionResetError):  # there is a request already, so that it is cut
            assert await reader.read() == b""
        assert [str(code) for code in running.refused] == ["head_too_large"]


async def test_a_head_and_a_body_within_the_limit_are_served():
    """A head may be nearly as large as the limit, in any pieces; a body is not counted, however many."""
    async with served(hello) as running:
        reader, writer = await running.connect(GET)
        for _ in range(10):
            writer.write(b"a: " + b"x" * 6000 + b"\r\n")
            await writer.drain()
        writer.write(b"\r\n")
        assert b"hello" in await reader.readuntil(b"hello")
        writer.write(POST + (b"ff\r\n" + b"x" * 255 + b"\r\n") * 4000 + b"0\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"hello")
        assert running.refused == []


@pytest.mark.usefixtures("little_time")
async def test_an_unfinished_head_ends():
    """A client that has sent only part of a head is told and closed, on a new connection and on one in use."""
    async with served(hello) as running:
        assert code_of(await running.ask(b"GET /health HT")) == (408, "client_too_slow")
        reader, writer = await running.connect(GET + b"\r\n")
        await reader.readuntil(b"hello")
        writer.write(b"GET")
        assert code_of(await reader.read()) == (408, "client_too_slow")


@pytest.mark.usefixtures("little_time")
async def test_more_bytes_give_no_more_time():
    """A head that comes byte by byte (slowloris) ends as one that stands still."""
    async with served(hello) as running:
        reader, writer = await running.connect(GET + b"a: ")
        answer = asyncio.create_task(reader.read())
        while not answer.done():
            writer.write(b"x")
            await asyncio.sleep(0)
        assert code_of(await answer) == (408, "client_too_slow")


@pytest.mark.usefixtures("little_time")
@pytest.mark.parametrize("sent", [b"", b"\r\n"])
async def test_a_connection_that_asks_nothing_is_closed(sent):
    """Nothing was asked, so nothing is answered."""
    async with served(hello) as running:
        assert await running.ask(sent) == b""


@pytest.mark.usefixtures("little_time")
async def test_an_answer_may_take_longer_than_a_head():
    """The time of heads is not that of requests, nor does a head that is sent ahead cut the answer before it (C11)."""
    may_end = asyncio.Event()

    async def slow(scope, receive, send):
        asyncio.get_running_loop().call_later(client_protocol.HEAD_SECONDS * 3, may_end.set)
        await may_end.wait()
        await respond(send, 200, [], b"hello")

    async with served(slow) as running:
        reader, _ = await running.connect(GET + b"\r\nGET")
        assert b" 200 " in await reader.readuntil(b"hello")


async def test_connections_are_bounded():
    """One too many is told and closed; as soon as another one has left, there is room again."""
    async with served(hello, connections=2) as running:
        _, first = await running.connect()
        reader, writer = await running.connect(GET + b"\r\n")
        await reader.readuntil(b"hello")
        assert code_of(await running.ask(b"")) == (503, "too_many_connections")
        assert [str(code) for code in running.refused] == ["too_many_connections"]
        writer.write(GET + b"\r\n")
        assert b" 200 " in await reader.readuntil(b"hello")
        first.close()
        await until(lambda: len(running.server._server.server_state.connections) == 1)
        reader, _ = await running.connect(GET + b"\r\n")
        assert b" 200 " in await reader.readuntil(b"hello")


def test_clients_never_get_all_descriptors():
    """The reserve and a margin for accepting are kept at every limit that a process may run with."""
    for open_files in (16, 64, 256, 1024, 10_240, 1_048_576):
        most = most_connections(open_files)
        assert 0 < most < open_files
        accepted_at_once = most // 3
        assert most + accepted_at_once <= open_files - min(RESERVED_FILES, open_files // 2)


async def test_what_is_no_http_is_refused_in_the_same_shape():
    """SDKs can read the error of a broken proxy between them and the gateway."""
    async with served(hello) as running:
        assert code_of(await running.ask(b"\x16\x03\x01hello\r\n\r\n")) == (400, "invalid_request")


async def test_a_refusal_gets_into_no_other_answer():
    """What is no HTTP behind a request cuts the connection; it is not written into the answer that is under way."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # lets the head out
        began.set()
        await may_end.wait()
        await send({"type": "http.response.body", "body": b"late"})

    async with served(slow) as running:
        reader, writer = await running.connect(GET + b"\r\n")
        await began.wait()
        writer.write(b"\x16\x03\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\n")
        may_end.set()


@pytest.mark.parametrize("connection", [b"", b"connection: keep-alive\r\n"])
async def test_a_stream_to_http_1_0_has_no_chunks(connection):
    """Its body ends with the connection, which is all that HTTP/1.0 knows."""
    async with served(stream) as running:
        head, _, body = (await running.ask(b"GET / HTTP/1.0\r\n" + connection + b"\r\n")).partition(b"\r\n\r\n")
        assert body == b"one two"
        assert b"chunked" not in head
        assert b"connection: close" in head


async def test_a_whole_answer_to_http_1_0_tells_its_length():
    """Where the length is known it is told, as to everybody."""
    async with served(hello) as running:
        head, _, body = (await running.ask(b"GET / HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
        assert (b"content-length: 5" in head, body) == (True, b"hello")


async def test_http_1_1_streams_in_chunks():
    """What can be told from a cut stays so."""
    async with served(stream) as running:
        reader, _ = await running.connect(GET + b"\r\n")
        assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_a_client_that_closes_its_sending_side_has_left():
    """Its request is over at once, as the docs say: one that is gone looks the same (C03)."""
    left = asyncio.Event()

    async def waiting(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with served(waiting) as running:
        reader, writer = await running.connect(GET + b"\r\n")
        writer.write_eof()
        await left.wait()
        assert await reader.read() == b""


async def test_a_client_that_leaves_is_noticed_though_it_has_sent_a_second_request():
    """The end of a connection is told whatever else was sent on it before (C03)."""
    began, lost = asyncio.Event(), asyncio.Event()

    async def held(scope, receive, send):
        connection = scope["extensions"][CONNECTION]
        connection.when_lost(lost.set)
        began.set()
        await lost.wait()
        connection.forget(lost.set)
        await respond(send, 200, [], b"")

    async with served(held) as running:
        _, writer = await running.connect(GET + b"\r\n")
        await began.wait()
        writer.write((GET + b"\r\n") * 2)
        await writer.drain()
        writer.close()
        async with asyncio.timeout(20):
            await lost.wait()
