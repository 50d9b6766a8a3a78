"""A tenant that does everything wrong costs nobody else anything (promise 7)."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from support.fleet import MODEL, Fleet, fleet, pool
from support.users import REQUEST_SECONDS, Got, Kind, body_of, judge

KEYS = {"good": "sk-good-one", "bad": "sk-bad-one"}
GOOD_USERS, BAD_USERS, WORKERS, ROUNDS = 24, 2, 8, 40


def keys_file() -> str:
    """Return a keys file for both tenants."""
    entries = [
        {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": name} for name, key in KEYS.items()
    ]
    return json.dumps({"keys": entries})


def tool(parameters: Any) -> dict[str, Any]:
    """Return a tool whose arguments have this schema."""
    return {"type": "function", "function": {"name": "lookup_key", "parameters": parameters}}


def chat(content: str, **more: Any) -> dict[str, Any]:
    """Return a chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


def misdeeds(trap: str) -> list[dict[str, Any]]:
    """Return everything that a request alone might do to a worker."""
    call = "Call lookup_key with key x."
    return [
        chat(call, tools=[tool({"type": "object"})], max_tokens=1),
        chat(call, tools=[tool({"type": "no such type"})]),
        chat(call, tools=[tool({"$ref": f"{trap}/schema.json"})]),
        chat(call, tools=[tool({"$ref": "file:///etc/passwd"})]),
        chat(call, tools=[tool({"type": "object", "properties": {"key": {"type": "integer"}}})]),
        chat(call, tools=[tool(17)]),
        chat("[[crash]]"),
        chat("hello", tools="no list"),
        chat("hello", stream="perhaps"),
    ]


class Trap:
    """A server that nobody should ever ask."""

    def __init__(self) -> None:
        self.visits = 0
        self.url = ""

    async def visit(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.close()


@asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    """Listen on loopback for a schema being fetched."""
    waiting = Trap()
    server = await asyncio.start_server(waiting.visit, "127.0.0.1", 0)
    waiting.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield waiting


def client(running: Fleet, tenant: str) -> httpx.AsyncClient:
    """Return a client with the tenant's key."""
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
    return httpx.AsyncClient(base_url=running.url, timeout=REQUEST_SECONDS, headers=headers)


async def good_user(running: Fleet, name: str, rounds: int) -> tuple[list[Got], list[int]]:
    """Ask one request after another; return what came back and how long each waited in the queue, in ms."""
    got, waits = [], []
    async with client(running, "good") as http:
        for number in range(rounds):
            kind, key = (Kind.TOOL, Kind.TEXT)[number % 2], f"{name}-{number}"
            path, body = body_of(kind, key)
            answer = await http.post(path, json=body)
            got.append(judge(kind, key, answer.status_code, answer.text).got)
            waits.append(int(answer.headers["x-basert-queue-ms"]))
    return got, waits


async def good_users(running: Fleet, label: str) -> tuple[list[Got], float]:
    """Let the good tenant's users ask; return what came back and the 95th percentile of their waits in ms."""
    results = await asyncio.gather(*(good_user(running, f"{label}{n}", ROUNDS) for n in range(GOOD_USERS)))
    got = list(itertools.chain.from_iterable(result[0] for result in results))
    waits = list(itertools.chain.from_iterable(result[1] for result in results))
    return got, statistics.quantiles(waits, n=20)[-1]


async def bad_user(running: Fleet, trap_url: str, stop: asyncio.Event) -> None:
    """Send one misdeed after another until told to stop; every answer must be a clear one."""
    async with client(running, "bad") as http:
        for body in itertools.cycle(misdeeds(trap_url)):
            if stop.is_set():
                return
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200 or answer.json()["error"]["code"], answer.text


async def test_a_bad_tenant_costs_the_other_one_nothing(tmp_path: Path) -> None:
    """No worker is recycled for content, nothing is fetched, and the other tenant hardly notices."""
    document = pool("--sim-tokens-per-second", "1000", replicas=WORKERS)
    async with trap() as snare, fleet(tmp_path, document, keys=keys_file()) as running:
        alone, alone_p95 = await good_users(running, "alone")
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as bad:
            for _ in range(BAD_USERS):
                bad.create_task(bad_user(running, snare.url, stop))
            disturbed, disturbed_p95 = await good_users(running, "disturbed")
            stop.set()
        recycles = {
            dict(labels)["reason"]: value
            for (name, labels), value in (await running.metrics()).items()
            if name == "basert_fleet_recycles_total" and value
        }
        assert set(alone) == set(disturbed) == {Got.RIGHT}
        assert disturbed_p95 <= 2 * alone_p95, (disturbed_p95, alone_p95, recycles)
        assert set(recycles) <= {"server_restarted", "no_proof_of_idle"}  # only what the crash itself ended
        assert sum(recycles.values()) <= 2 * BAD_USERS  # the same body may run twice at once before it is known
        assert snare.visits == 0
