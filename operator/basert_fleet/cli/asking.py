"""Sends shapes to a server that speaks OpenAI's protocol, and hands back what came. Decides nothing about it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import httpx
import msgspec

from basert_fleet.cli.answers import Answer, failed, judged_together, read_answer
from basert_fleet.cli.findings import ShapeFound, Slot, shape_found
from basert_fleet.cli.shapes import Question, Shape
from basert_fleet.core.errors import FleetError

CONNECT_SECONDS = 10.0
"""Chosen: longer than a retransmitted SYN takes, short enough for a mistyped address."""
FACTS_SECONDS = 10.0
"""Chosen: for what needs no generation; a busy server may be silent for longer, and then nothing is known of it."""
OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
ATTEMPTS_HEADER = "x-basert-attempts"


class ServerUnusable(FleetError):
    """The server cannot be asked at all: nothing was found out about it."""

    code = "server_unusable"


class Server:
    """One server under examination; use `connected`."""

    def __init__(self, client: httpx.AsyncClient, url: str, timeout_seconds: float) -> None:
        self._client, self.url, self._timeout_seconds = client, url, timeout_seconds
        self._has_slots = True

    async def models(self) -> tuple[str, ...]:
        """Return the models that the server lists; none if it has no such list.

        Raises:
            ServerUnusable: it cannot be reached, or wants another key.
        """
        try:
            response = await self._client.get("/v1/models", timeout=FACTS_SECONDS)
        except httpx.TransportError as error:
            raise ServerUnusable(
                f"{self.url} cannot be reached: {_words(error)}. Is the server running, and is this its address?"
            ) from error
        if response.status_code == UNAUTHORIZED:
            raise ServerUnusable(f"{self.url} refuses the API key (401). Give one that it knows with --api-key.")
        try:
            return tuple(model.id for model in msgspec.json.decode(response.content, type=_Models).data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ()

    async def slots(self) -> tuple[Slot, ...] | None:
        """Return what /slots shows, or None where it cannot be read; a server without it is asked once."""
        if not self._has_slots:
            return None
        try:
            response = await self._client.get("/slots", timeout=FACTS_SECONDS)
        except httpx.TransportError:
            return None
        self._has_slots = response.status_code != NOT_FOUND
        if response.status_code != OK:
            return None
        try:
            return msgspec.json.decode(response.content, type=tuple[Slot, ...])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def examine(self, shape: Shape) -> ShapeFound:
        """Send a shape's requests, as many at once as it says, and count what came back."""
        now = asyncio.get_running_loop().time
        before = await self.slots()
        started = now()
        answers: list[Answer] = []
        for start in range(0, len(shape.questions), shape.together):
            answers += await self._ask_together(shape.questions[start : start + shape.together])
        took = now() - started
        after = await self.slots()
        return shape_found(shape, judged_together(answers), took, slots_before=before, slots_after=after)

    async def _ask_together(self, questions: Sequence[Question]) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(question), name=question.label) for question in questions]
        return [task.result() for task in tasks]

    async def _ask(self, question: Question) -> Answer:
        """Send one request; whatever happens is an answer."""
        now = asyncio.get_running_loop().time
        sent = now()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._client.post(question.path, content=question.body)
        except TimeoutError:
            return failed(question, f"no answer within {self._timeout_seconds:g} s", now() - sent)
        except httpx.TransportError as error:
            return failed(question, f"the connection failed: {_words(error)}", now() - sent)
        answer = read_answer(question, response.status_code, response.content, now() - sent)
        attempts = response.headers.get(ATTEMPTS_HEADER, "")
        return replace(answer, attempts=int(attempts)) if attempts.isdecimal() else answer


@contextlib.asynccontextmanager
async def connected(url: str, *, api_key: str | None = None, timeout_seconds: float = 600.0) -> AsyncIterator[Server]:
    """Give a server to examine; `timeout_seconds` bounds each request in all.

    No proxy of the environment is used: what answers must be the server itself. There is no limit to connections:
    requests that are to be sent at once must not wait for each other here.
    """
    headers = {"content-type": "application/json"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    async with httpx.AsyncClient(
        base_url=url,
        headers=headers,
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    ) as client:
        yield Server(client, url, timeout_seconds)


def _words(error: httpx.TransportError) -> str:
    """Some of httpx's errors carry no text."""
    return str(error) or type(error).__name__


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]
