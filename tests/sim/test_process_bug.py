"""The report's sequences and controls, against a real process over a socket."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from basert_fleet.sim.answer import expected_echo
from support.emulator import Emulator, emulator
from support.seed import LOOKUP_KEY, called, finish, lookup, plain

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
OVERLAP = ("--sim-bug", "on", "--sim-batch-window", "1")  # seconds: all of a test's requests arrive within it


def connect(server: Emulator) -> httpx.AsyncClient:
    """Return a client of the emulator."""
    return httpx.AsyncClient(base_url=server.url, timeout=60)


async def ask(client: httpx.AsyncClient, body: dict, path: str = CHAT) -> dict:
    """Return the answer to one request."""
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def slot(client: httpx.AsyncClient) -> dict:
    """Return what /slots shows."""
    return (await client.get("/slots")).json()[0]


async def test_the_reports_sequence():
    """Five right answers with the reported usage, the sixth runs away, /slots shows 275/403."""
    async with emulator("--sim-bug", "on") as server, connect(server) as client:
        seen = []
        for number in range(6):
            answer = await ask(client, lookup(f"seq-{number}"))
            usage = answer["usage"]
            seen.append((finish(answer), called(answer), usage["prompt_tokens"], usage["completion_tokens"]))
        assert seen == [
            ("tool_calls", [("lookup_key", {"key": "seq-0"})], 274, 142),
            ("tool_calls", [("lookup_key", {"key": "seq-1"})], 9, 102),
            ("tool_calls", [("lookup_key", {"key": "seq-2"})], 9, 90),
            ("tool_calls", [("lookup_key", {"key": "seq-3"})], 9, 82),
            ("tool_calls", [("lookup_key", {"key": "seq-4"})], 9, 120),
            ("length", [], 9, 2048),
        ]
        assert await slot(client) == {"id": 0, "is_processing": False, "cache_tokens": 275, "cache_position": 403}
        text = (await ask(client, plain("hello")))["choices"][0]["message"]["content"]
        assert not text.startswith(expected_echo("hello"))
        assert [record["contaminated"] for record in server.journal("end")] == [False] * 5 + [True] * 2
        assert server.overlaps() == []


async def begin_in_order(server: Emulator, client: httpx.AsyncClient, bodies: list[dict], path: str = CHAT):
    """Send each request once the one before it has begun; return all answers."""
    tasks = []
    for number, body in enumerate(bodies, start=1):
        tasks.append(asyncio.create_task(ask(client, body, path)))
        while len(server.journal("begin")) < number:
            await slot(client)
    return await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("keys", "values"),
    [(["c2-0", "c2-1"], ["key", None]), (["c4-0", "c4-1", "c4-2", "c4-3"], ["4", "4", None, "4-3"])],
)
async def test_the_reports_concurrent_requests(keys, values):
    """N=2 and N=4: nobody gets the argument that was asked for, and the journal proves the overlap."""
    async with emulator(*OVERLAP) as server, connect(server) as client:
        answers = await begin_in_order(server, client, [lookup(key) for key in keys])
        got = [calls[0][1]["key"] if (calls := called(answer)) else None for answer in answers]
        assert got == values
        assert [finish(answer) for answer in answers] == ["tool_calls" if value else "length" for value in values]
        assert [record["overlap"] for record in server.journal("begin")] == list(range(len(keys)))


async def test_two_requests_sent_at_once_overlap_by_default():
    """The default batch window makes an as-fast-as-possible emulator show the bug too."""
    async with emulator("--sim-bug", "on") as server, connect(server) as client:
        await asyncio.gather(*(client.get("/health") for _ in range(8)))  # both connections are open before
        await asyncio.gather(*(ask(client, lookup(f"k-{number}")) for number in range(8)))
        assert server.overlaps()


async def test_a_stream_that_is_overlapped_half_way_goes_wrong_from_there():
    """What was sent stays sent; then it runs on as the report's first of two: with another echo."""
    async with emulator("--sim-bug", "on", "--sim-tokens-per-second", "10") as server, connect(server) as client:
        async with client.stream("POST", CHAT, json=plain("one two three [[len=24]]", stream=True)) as response:
            lines = response.aiter_lines()
            first = [await anext(lines) for _ in range(3)]  # the role, an empty line, the word "echo"
            await ask(client, plain("other", max_tokens=1))
            rest = [line async for line in lines]
        chunks = [json.loads(line[6:]) for line in first + rest if "{" in line]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text.startswith("echo ")
        assert not text.startswith(expected_echo("one two three [[len=24]]"))
        assert [record["overlap"] for record in server.journal("begin")] == [0, 1]


async def test_without_the_bug_requests_queue_and_are_right():
    """Eight at once are served one after another, each with its own argument."""
    async with emulator() as server, connect(server) as client:
        answers = await asyncio.gather(*(ask(client, lookup(f"k-{number}")) for number in range(8)))
        assert [called(answer)[0][1]["key"] for answer in answers] == [f"k-{number}" for number in range(8)]
        assert server.overlaps() == []
        assert len(server.journal("end")) == 8


async def test_control_1_a_fresh_process_per_request():
    """Right 3/3, even where every reuse contaminates."""
    for name in ("fresh-a", "fresh-b", "fresh-c"):
        async with emulator("--sim-bug", "on", "--sim-bug-after", "1") as server, connect(server) as client:
            assert called(await ask(client, lookup(name))) == [("lookup_key", {"key": name})]


async def test_control_2_a_plain_chat_in_between():
    """Repeated tool requests stay right if a plain chat follows each."""
    async with emulator("--sim-bug", "on", "--sim-bug-after", "1") as server, connect(server) as client:
        for number in range(12):
            assert called(await ask(client, lookup(f"k-{number}"))) == [("lookup_key", {"key": f"k-{number}"})]
            await ask(client, plain("ok?", max_tokens=1))
        assert (await slot(client))["is_processing"] is False
        assert server.journal("end")[-1]["contaminated"] is False


async def test_control_3_completions_one_at_a_time():
    """The compatibility layer's way never builds a reuse run; overlapping it is as wrong as the rest."""
    prompt = f"<tools>{json.dumps(LOOKUP_KEY)}</tools>\nCall lookup_key with key a-1."
    async with emulator(*OVERLAP[:2], "--sim-bug-after", "1") as server, connect(server) as client:
        for _ in range(8):
            text = (await ask(client, {"prompt": prompt}, COMPLETION))["choices"][0]["text"]
            assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>")) == {
                "name": "lookup_key", "arguments": {"key": "a-1"},
            }  # fmt: skip
    async with emulator(*OVERLAP) as server, connect(server) as client:
        answers = await begin_in_order(server, client, [{"prompt": prompt}] * 2, COMPLETION)
        assert not any("a-1" in answer["choices"][0]["text"] for answer in answers)


@pytest.mark.parametrize(("mode", "gap"), [("equal", 0), ("constant", 7), ("completion", 142), ("ending", 1)])
async def test_counter_modes(mode, gap):
    """What /slots shows before and after one healthy tool call."""
    async with emulator("--sim-counters", mode) as server, connect(server) as client:
        assert await slot(client) == {"id": 0, "is_processing": False, "cache_tokens": 0, "cache_position": 0}
        await ask(client, lookup("seq-0"))
        after = await slot(client)
        assert (after["cache_tokens"], after["cache_position"]) == (275, 275 + gap)
