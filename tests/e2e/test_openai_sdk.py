"""OpenAI's own Python client against a whole fleet."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from basert_fleet.sim.answer import expected_echo
from support.fleet import MODEL, Fleet, fleet, pool
from support.seed import LOOKUP_KEY

MEGABYTE = 1024**2


@asynccontextmanager
async def sdk(running: Fleet) -> AsyncIterator[openai.AsyncOpenAI]:
    """Return the SDK as a user makes it."""
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        yield client


async def test_chat_and_streamed_tools_and_errors(tmp_path: Path) -> None:
    """The SDK's types hold for a chat, a streamed tool call with the bug on, and each kind of error."""
    async with fleet(tmp_path, pool("--sim-bug", "on", replicas=2)) as running, sdk(running) as client:
        chat = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello 桜"}])
        assert (chat.choices[0].message.content or "").startswith(expected_echo("Hello 桜"))
        for number in range(4):
            assert await streamed_key(client, f"s-{number}") == f"s-{number}"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "x"}])
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.UnprocessableEntityError) as crashed:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "[[crash]]"}])
        assert crashed.value.code == "request_refused"
        models = [model.id async for model in client.models.list()]
        assert models == [MODEL]


async def streamed_key(client: openai.AsyncOpenAI, key: str) -> str:
    """Return the argument of a streamed tool call, as the SDK's own accumulator puts it together."""
    async with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": f"Call lookup_key with key {key}."}],
        tools=[LOOKUP_KEY],  # type: ignore[list-item]
    ) as stream:
        completion = await stream.get_final_completion()
    calls = completion.choices[0].message.tool_calls or []
    assert len(calls) == 1
    return str(json.loads(calls[0].function.arguments)["key"])


async def test_a_prompt_of_a_megabyte_passes(tmp_path: Path) -> None:
    """A long prompt reaches the engine whole: its echo is that of all of it."""
    document = pool(replicas=1, server={"maxContext": 1_000_000})
    document["spec"]["server"] = {**pool()["spec"]["server"], "maxContext": 1_000_000}
    async with fleet(tmp_path, document) as running, sdk(running) as client:
        content = "長い🎈" * (MEGABYTE // 10)
        chat = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])
        assert (chat.choices[0].message.content or "").startswith(expected_echo(content))


async def test_characters_cut_by_tcp_arrive_whole(tmp_path: Path) -> None:
    """桜 and emoji, sent to us one byte a segment and streamed back, arrive as they were."""
    content = "桜の木🌸の下で👩‍👩‍👧‍👦"
    body = json.dumps(
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": content}]}, ensure_ascii=False
    ).encode()
    async with fleet(tmp_path, pool(replicas=1)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode())
        for byte in body:
            writer.write(bytes([byte]))
            await writer.drain()
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    said = "".join(
        choice["delta"].get("content") or ""
        for line in answer.splitlines()
        if line.startswith("data: {")
        for choice in json.loads(line.removeprefix("data: "))["choices"]
    )
    assert said.startswith(expected_echo(content))
    assert "桜" in said
