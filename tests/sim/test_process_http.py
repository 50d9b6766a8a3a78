"""The HTTP API of a real process: shapes, framing, refusals."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from basert_fleet.sim.answer import expected_echo
from support.emulator import Emulator, emulator
from support.seed import called, lookup, plain

CHAT = "/v1/chat/completions"


def connect(server: Emulator, **more) -> httpx.AsyncClient:
    """Return a client of the emulator."""
    return httpx.AsyncClient(base_url=server.url, timeout=60, **more)


def events(text: str) -> list:
    """Return a stream's events, `[DONE]` as it is."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def raw(server: Emulator, request: bytes, *, eof: bool = False) -> bytes:
    """Send bytes, return all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    if eof:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def post(body: bytes, *headers: str, path: str = CHAT) -> bytes:
    """Return a whole request as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def test_a_streamed_tool_call_comes_in_pieces():
    """Role, id and name, arguments in several deltas, finish, usage if wished, `[DONE]`."""
    async with emulator() as server, connect(server) as client:
        body = lookup("seq-0", stream=True, stream_options={"include_usage": True})
        response = await client.post(CHAT, json=body)
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["transfer-encoding"] == "chunked"
        *chunks, usage, done = events(response.text)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert (calls[0]["index"], calls[0]["function"]) == (0, {"name": "lookup_key", "arguments": ""})
        assert [call["function"] for call in calls[1:]] == [
            {"arguments": '{"key":"'}, {"arguments": "seq-0"}, {"arguments": '"}'},
        ]  # fmt: skip
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "tool_calls"]
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 274, "completion_tokens": 142, "total_tokens": 416}
        assert done == "[DONE]"


async def test_mixed_chunks_carry_several_things_at_once():
    """Text beside the first tool delta, and the finish in the last one."""
    async with emulator("--sim-chunks", "mixed") as server, connect(server) as client:
        *chunks, _done = events((await client.post(CHAT, json=lookup("k", stream=True))).text)
        assert set(chunks[1]["choices"][0]["delta"]) == {"content", "tool_calls"}
        assert chunks[-1]["choices"][0]["delta"]["tool_calls"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_unindexed_deltas_have_no_index():
    """The streams of C38."""
    async with emulator("--sim-chunks", "unindexed") as server, connect(server) as client:
        text = (await client.post(CHAT, json=lookup("k", stream=True))).text
        calls = [call for chunk in events(text)[:-1] for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert len(calls) == 4
        assert not any("index" in call for call in calls)


async def test_several_sentences_are_several_calls():
    """Each with an id of its own, streamed or not."""
    async with emulator() as server, connect(server) as client:
        body = lookup("x", messages=plain("Call lookup_key with key a. Call lookup_key with key b.")["messages"])
        answer = (await client.post(CHAT, json=body)).json()
        assert called(answer) == [("lookup_key", {"key": "a"}), ("lookup_key", {"key": "b"})]
        assert len({call["id"] for call in answer["choices"][0]["message"]["tool_calls"]}) == 2


async def test_text_and_completions_echo_the_request():
    """Whole and streamed answers begin with the echo, CJK and emoji as they are."""
    async with emulator() as server, connect(server) as client:
        content = "桜の 🌸"
        whole = (await client.post(CHAT, json=plain(content))).json()["choices"][0]["message"]["content"]
        streamed = events((await client.post(CHAT, json=plain(content, stream=True))).text)[:-1]
        assert whole.startswith(f"{expected_echo(content)} 桜の 🌸")
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed) == whole
        body = {"prompt": content, "stream": True}
        completion = events((await client.post("/v1/completions", json=body)).text)[:-1]
        assert "".join(chunk["choices"][0]["text"] for chunk in completion) == whole


async def test_the_other_endpoints_answer():
    """Plausible results for everything the real server offers."""
    files = {"file": ("a.wav", b"RIFF\r\n--x", "audio/wav")}
    async with emulator("--model", "/models/second.base") as server, connect(server) as client:
        models = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["model", "second"]
        embedded = (await client.post("/v1/embeddings", json={"input": ["a", "b"]})).json()["data"]
        assert [len(entry["embedding"]) for entry in embedded] == [8, 8]
        ranked = (await client.post("/v1/rerank", json={"query": "red car", "documents": ["sky", "red car"]})).json()
        assert [result["index"] for result in ranked["results"]] == [1, 0]
        heard = (await client.post("/v1/audio/transcriptions", files=files)).json()
        assert heard["text"].startswith("echo ")
        assert (await client.post("/v1/tokenize", json={"content": "12345"})).json()["count"] == 2
        assert (await client.post("/v1/files", files=files)).json()["bytes"] == 9
        for path in ("/v1/batches", "/v1/models/load", "/v1/models/unload", "/v1/lora/load", "/v1/lora/unload"):
            assert (await client.post(path, json={})).status_code == 200
        kinds = [record["kind"] for record in server.journal("begin")]
        assert kinds == ["embedding", "rerank", "transcription"]
        for path in ("/metrics", "/v1/metrics"):
            assert "basert_sim_begun_total 3\n" in (await client.get(path)).text


async def test_a_contaminated_engine_embeds_and_ranks_wrongly():
    """What generates no tokens is wrong as well, so that a canary of that kind can see it."""
    async with emulator() as server, connect(server) as client:
        paths = {"/v1/embeddings": {"input": "a"}, "/v1/rerank": {"query": "a b", "documents": ["a b"]}}
        before = [(await client.post(path, json=body)).json() for path, body in paths.items()]
        await client.post(CHAT, json=plain("[[fault=contaminate]]"))
        after = [(await client.post(path, json=body)).json() for path, body in paths.items()]
        assert all(left != right for left, right in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b"{}", 400, "invalid_request"),
        (json.dumps(plain("x" * 20_000)).encode(), 400, "context_length_exceeded"),
    ],
)
async def test_refusals_have_openais_shape(body, status, code):
    """Malformed or too long: 400 with a message, type, param and code; and nothing was generated."""
    async with emulator() as server, connect(server) as client:
        response = await client.post(CHAT, content=body)
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["code"] == code
        assert server.journal("begin") == []


async def test_unknown_paths_and_methods_are_404():
    """In OpenAI's shape too."""
    async with emulator() as server, connect(server) as client:
        assert (await client.get("/nothing")).json()["error"]["code"] == "not_found"
        assert (await client.get(CHAT)).status_code == 404


async def test_the_api_key_guards_everything_but_health():
    """Without or with a wrong key 401, with the right one 200."""
    async with emulator("--api-key", "secret") as server, connect(server) as client:
        assert (await client.get("/health")).status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert (await client.get("/slots", headers=headers)).status_code == 401
        assert (await client.post(CHAT, json=plain("x"))).json()["error"]["code"] == "invalid_api_key"
        assert (await client.get("/slots", headers={"Authorization": "Bearer secret"})).status_code == 200


async def test_the_rate_limit_counts_requests_per_minute():
    """The third request within a minute is 429; /slots and the like are free."""
    async with emulator("--rate-limit", "2") as server, connect(server) as client:
        statuses = [(await client.post(CHAT, json=plain("x"))).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await client.get("/slots")).status_code == 200


async def test_large_bodies_and_100_continue():
    """Two megabytes arrive whole, also from a client that waits to be asked for them."""
    async with emulator("--max-context", "1000000") as server:
        content = "語" * 700_000
        body = json.dumps(plain(content, max_tokens=2), ensure_ascii=False).encode()
        answer = await raw(server, post(body, "Expect: 100-continue"))
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert expected_echo(content).encode() in answer


async def test_framing_is_exact():
    """A whole answer has its Content-Length and nothing after it; a stream ends with the empty chunk."""
    async with emulator() as server:
        head, _, body = (await raw(server, post(json.dumps(plain("x")).encode()))).partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert b"connection: close" in head
        stream = await raw(server, post(json.dumps(plain("x", stream=True)).encode()))
        assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_requests_sent_ahead_are_answered_in_order():
    """On one connection the second waits for the first."""
    async with emulator() as server:
        first = b"GET /slots HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await raw(server, first + last)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert answer.endswith(b'{"status":"ok"}')


async def test_nothing_runs_behind_a_request_that_closes_the_connection():
    """What was sent after it is dropped, not generated for nobody."""
    async with emulator() as server:
        body = json.dumps(plain("x")).encode()
        answer = await raw(server, post(body) + post(body))
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert len(server.journal("begin")) == 1


async def test_what_is_no_http_gets_400():
    """And the connection is closed."""
    async with emulator() as server:
        assert (await raw(server, b"\x16\x03\x01 no\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_a_request_timeout_ends_the_generation():
    """504 for a whole answer, an error event without `[DONE]` for a begun stream; the slot is idle after both."""
    slow = ("--request-timeout", "100", "--sim-tokens-per-second", "40")
    async with emulator(*slow) as server, connect(server) as client:
        response = await client.post(CHAT, json=plain("x"))
        assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
        *_, last = events((await client.post(CHAT, json=plain("x", stream=True))).text)
        assert last["error"]["code"] == "request_timeout"
        assert (await client.get("/slots")).json()[0]["is_processing"] is False
        assert [record["cancelled"] for record in server.journal("end")] == [True, True]


async def test_the_idle_timeout_resets_the_counters():
    """They show 0/0 once the slot was idle that long."""
    async with emulator("--idle-timeout", "0.05") as server, connect(server) as client:
        await client.post(CHAT, json=lookup("seq-0"))
        while (await client.get("/slots")).json()[0]["cache_tokens"] != 0:
            assert server.process.returncode is None


async def test_the_access_log_has_a_line_per_request(tmp_path):
    """Time, method, path, status."""
    log = tmp_path / "access.log"
    async with emulator("--log-file", str(log)) as server, connect(server) as client:
        await client.get("/health")
        await client.post(CHAT, content=b"{")
        lines = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
        assert lines == ["GET /health 200", f"POST {CHAT} 400"]
