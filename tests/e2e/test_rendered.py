"""Pools whose chats are rendered outside of the engine, with the bug on: the report's own way around it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from basert_fleet.sim.answer import expected_echo
from support.fleet import MODEL, Fleet, fleet, pool
from support.seed import LOOKUP_KEY
from support.users import REQUEST_SECONDS, Got, Kind, ask, tally

TEMPLATES = Path(__file__).resolve().parents[1] / "engine" / "templates"
SEQUENCE = 60
FETCH = {
    "type": "function",
    "function": {
        "name": "fetch",
        "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]},
    },
}


def rendered(template: str, *sim_options: str, **spec: Any) -> dict[str, Any]:
    """Return a pool of emulated workers with the bug, whose chats are rendered by this template."""
    document = pool("--sim-bug", "on", *sim_options, **spec)
    file = str(TEMPLATES / f"{template}.jinja")
    document["spec"]["server"] |= {"chat": "rendered", "chatTemplate": {"file": file}}
    return document


def generations(running: Fleet) -> list[dict[str, Any]]:
    """Return what really ran in all engines."""
    return running.journal("begin")


@pytest.mark.parametrize("template", ["qwen_xml", "hermes_json"])
async def test_sequential_requests_are_right_without_a_recycle(tmp_path: Path, template: str) -> None:
    """Where the native path fails its sixth request, one worker serves sixty, and no prefix was ever reused."""
    async with fleet(tmp_path, rendered(template, replicas=1)) as running:
        async with httpx.AsyncClient(base_url=running.url, timeout=REQUEST_SECONDS) as client:
            replies = [await ask(client, Kind.TOOL, f"seq-{number}") for number in range(SEQUENCE)]
        assert tally(replies) == {Got.RIGHT: SEQUENCE}, replies
        assert {(entry["kind"], entry["reuse"]) for entry in generations(running)} == {("completion", 0)}
        assert len({entry["pid"] for entry in generations(running)}) == 1
        assert await running.total("basert_fleet_canaries_total", result="passed") >= 2


@pytest.mark.parametrize("users", [2, 4, 64])
async def test_concurrent_requests_are_right(tmp_path: Path, users: int) -> None:
    """The report's lock is the worker's slot: of every kind of request, each user gets their own answer."""
    kinds = [Kind.TOOL, Kind.TOOL_STREAM, Kind.TEXT, Kind.TEXT_STREAM]
    async with fleet(tmp_path, rendered("qwen_xml", replicas=2)) as running:
        limits = httpx.Limits(max_connections=users)
        async with httpx.AsyncClient(base_url=running.url, timeout=REQUEST_SECONDS, limits=limits) as client:
            asked = (ask(client, kinds[number % len(kinds)], f"c{users}-{number}") for number in range(users))
            replies = list(await asyncio.gather(*asked))
        assert tally(replies) == {Got.RIGHT: users}, replies
        assert running.overlaps() == []


@pytest.mark.parametrize("template", ["qwen_xml", "hermes_json"])
async def test_a_streamed_conversation_with_several_tools(tmp_path: Path, template: str) -> None:
    """OpenAI's library sees two calls, answers them, and gets the final text with the model's thought apart."""
    async with fleet(tmp_path, rendered(template, replicas=1)) as running, openai_client(running) as client:
        messages: list[Any] = [{"role": "user", "content": "Call lookup_key with key 7. Call fetch with page 12."}]
        calling = await streamed(client, messages)
        assert calling.choices[0].finish_reason == "tool_calls"
        message = calling.choices[0].message
        calls = message.tool_calls or []
        assert [(call.function.name, json.loads(call.function.arguments)["key"]) for call in calls[:1]] == [
            ("lookup_key", "7")
        ]
        if template == "qwen_xml":  # whose values are typed by the schema: the key stays a text, the page is a number
            assert json.loads(calls[1].function.arguments) == {"page": 12}
        assert len({call.id for call in calls}) == 2
        messages += [message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": f"found {call.id}"} for call in calls]
        final = (await streamed(client, messages)).choices[0]
        assert (final.finish_reason, final.message.tool_calls) == ("stop", None)
        assert (final.message.content or "").startswith("echo ")
        thought = getattr(final.message, "reasoning_content", None)
        assert thought == ("I know." if template == "qwen_xml" else None)


async def test_errors_and_limits_are_those_of_a_chat(tmp_path: Path) -> None:
    """A request that cannot be rendered is its sender's fault, costs no worker, and the next one is served."""
    async with fleet(tmp_path, rendered("qwen_xml", replicas=1)) as running, openai_client(running) as client:
        with pytest.raises(openai.BadRequestError, match="needs a message of the user"):
            await client.chat.completions.create(model=MODEL, messages=[{"role": "system", "content": "x"}])
        with pytest.raises(openai.BadRequestError, match="response_format"):
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"}
            )
        cut = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Call lookup_key with key a."}],
            tools=[LOOKUP_KEY],  # type: ignore[list-item]
            max_tokens=8,
        )
        assert (cut.choices[0].finish_reason, cut.choices[0].message.tool_calls) == ("length", None)
        plain = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi 桜"}])
        assert plain.object == "chat.completion"
        assert (plain.choices[0].message.content or "").startswith(expected_echo("Hi 桜"))
        assert plain.usage is not None
        assert len({entry["pid"] for entry in generations(running)}) == 1


def openai_client(running: Fleet) -> openai.AsyncOpenAI:
    """Return the library as a user makes it."""
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


async def streamed(client: openai.AsyncOpenAI, messages: list[ChatCompletionMessageParam]) -> ChatCompletion:
    """Return a streamed answer as the library's own accumulator puts it together."""
    async with client.chat.completions.stream(
        model=MODEL,
        messages=messages,
        tools=[LOOKUP_KEY, FETCH],  # type: ignore[list-item]
    ) as stream:
        return await stream.get_final_completion()
