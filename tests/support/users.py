"""Users of a fleet: each request knows its right answer, and what came back is either that, an error, or wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import warnings
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from basert_fleet.sim.answer import expected_echo
from support.fleet import MODEL
from support.seed import LOOKUP_KEY

REQUEST_SECONDS = 120.0


class Kind(StrEnum):
    """The kinds of requests in a storm."""

    TOOL = "tool"
    TEXT = "text"
    TOOL_STREAM = "tool stream"
    TEXT_STREAM = "text stream"
    COMPLETION = "completion"


class Got(StrEnum):
    """What became of a request, as its user sees it."""

    RIGHT = "right"
    WRONG = "wrong"
    ERROR = "error"
    HUNG_UP = "hung up"


@dataclass(frozen=True)
class Reply:
    """One request's result."""

    kind: Kind
    key: str
    got: Got
    detail: str = ""
    seconds: float = 0.0


def body_of(kind: Kind, key: str, model: str = MODEL) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request whose answer depends on the key."""
    if kind is Kind.COMPLETION:
        return "/v1/completions", {"model": model, "prompt": f"Tell me about {key}.", "max_tokens": 64}
    asks_tool = kind in {Kind.TOOL, Kind.TOOL_STREAM}
    content = f"Call lookup_key with key {key}." if asks_tool else f"Tell me about {key}."
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 2048}
    if asks_tool:
        body["tools"] = [LOOKUP_KEY]
    if kind in {Kind.TOOL_STREAM, Kind.TEXT_STREAM}:
        body["stream"] = True
    return "/v1/chat/completions", body


def judge(kind: Kind, key: str, status: int, text: str) -> Reply:
    """Say what a whole response is worth to the user who asked with this key."""
    if status != 200:
        try:
            error = json.loads(text)["error"]
            return Reply(kind, key, Got.ERROR, f"{status} {error['code']}")
        except (ValueError, KeyError):
            return Reply(kind, key, Got.WRONG, f"{status} without an OpenAI error: {text[:200]}")
    try:
        if kind in {Kind.TOOL_STREAM, Kind.TEXT_STREAM}:
            return _judge_stream(kind, key, text)
        choice = json.loads(text)["choices"][0]
        said = choice["text"] if kind is Kind.COMPLETION else choice["message"].get("content") or ""
        calls = [] if kind is Kind.COMPLETION else choice["message"].get("tool_calls") or []
        return _judge_answer(kind, key, said, [(c["function"]["name"], c["function"]["arguments"]) for c in calls])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return Reply(kind, key, Got.WRONG, f"unreadable ({error!r}): {text[:300]}")


def _judge_stream(kind: Kind, key: str, text: str) -> Reply:
    said, names, arguments, done = "", {}, {}, False
    for block in text.split("\n\n"):
        data = block.removeprefix("data: ")
        if not block or block.startswith(":"):
            continue
        if data == "[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            return Reply(kind, key, Got.ERROR, f"event {event['error']['code']}")
        for choice in event["choices"]:
            delta = choice["delta"]
            said += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                names[call["index"]] = names.get(call["index"], "") + (call["function"].get("name") or "")
                arguments[call["index"]] = arguments.get(call["index"], "") + (call["function"].get("arguments") or "")
    if not done:
        return Reply(kind, key, Got.WRONG, f"a stream without [DONE]: {text[-300:]}")
    return _judge_answer(kind, key, said, [(names[index], arguments[index]) for index in names])


def _judge_answer(kind: Kind, key: str, said: str, calls: list[tuple[str, str]]) -> Reply:
    if kind in {Kind.TOOL, Kind.TOOL_STREAM}:
        found = [(name, json.loads(text)) for name, text in calls]
        right = found == [("lookup_key", {"key": key})]
        return Reply(kind, key, Got.RIGHT if right else Got.WRONG, "" if right else f"{found} {said[:100]}")
    right = said.startswith(expected_echo(f"Tell me about {key}.")) and not calls
    return Reply(kind, key, Got.RIGHT if right else Got.WRONG, "" if right else f"{said[:100]} {calls}")


async def ask(client: httpx.AsyncClient, kind: Kind, key: str, *, hang_up_after: float | None = None) -> Reply:
    """Send one request and judge its answer; a user that hangs up sees nothing."""
    loop = asyncio.get_running_loop()
    path, body = body_of(kind, key)
    started = loop.time()
    try:
        async with asyncio.timeout(hang_up_after):
            answer = await client.post(path, json=body)
    except TimeoutError:
        return Reply(kind, key, Got.HUNG_UP)
    except httpx.RemoteProtocolError as error:
        return Reply(kind, key, Got.WRONG, f"cut off: {error}")
    reply = judge(kind, key, answer.status_code, answer.text)
    return Reply(reply.kind, reply.key, reply.got, reply.detail, loop.time() - started)


async def storm(
    url: str,
    *,
    requests: int,
    clients: int,
    seed: int,
    hang_up_share: float = 0.0,
    kinds: tuple[Kind, ...] = tuple(Kind),
) -> list[Reply]:
    """Let so many clients send so many requests in all, each one after the other; return every reply."""
    draw = random.Random(seed)
    work = [
        (
            kinds[number % len(kinds)],
            f"s{seed}-{number}",
            draw.uniform(0.0, 0.4) if draw.random() < hang_up_share else None,
        )
        for number in range(requests)
    ]
    replies: list[Reply] = []

    async def user() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS) as client:
            while work:
                kind, key, patience = work.pop()
                replies.append(await ask(client, kind, key, hang_up_after=patience))

    async with asyncio.TaskGroup() as users:
        for number in range(clients):
            users.create_task(user(), name=f"user {number}")
    forget_cut_connections()
    return replies


def forget_cut_connections() -> None:
    """Let go of sockets that httpx leaves to the collector when a connect is cut; else they would fail a later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def tally(replies: list[Reply]) -> Counter[Got]:
    """Count what became of the requests."""
    return Counter(reply.got for reply in replies)


def wrong(replies: list[Reply]) -> list[Reply]:
    """Return the replies that must not be."""
    return [reply for reply in replies if reply.got is Got.WRONG]
