"""Sends shapes to a server that speaks OpenAI's protocol, and hands back what came. Decides nothing about it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import httpx
import msgspec

from basert_fleet.cli.answers import Answer, failed, judged_together, read_answer
from basert_fleet.cli.findings import ShapeFound, Slot, shape_found
from basert_fleet.cli.shapes import Question, Shape
from basert_fleet.core.calibration import Probe
from basert_fleet.core.errors import FleetError
from basert_fleet.engine.probes import read_slots

CONNECT_SECONDS = 10.0
"""Chosen: longer than a retransmitted SYN takes, short enough for a mistyped address."""
FACTS_SECONDS = 10.0
"""Chosen: for what needs no generation; a busy server may be silent for longer, and then nothing is known of it."""
SETTLE_SECONDS = 10.0
"""The default of `isolation.settleSeconds`: a slot that is busy for longer after an answer would cost its process."""
SETTLE_POLL_SECONDS = 0.02
"""Chosen: no event tells that a slot is idle, and a look costs a fraction of the shortest generation."""
OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
ATTEMPTS_HEADER = "x-basert-attempts"


class ServerUnusable(FleetError):
    """The server cannot be asked at all: nothing was found out about it."""

    code = "server_unusable"


class NoAnswer(FleetError):
    """A request got no HTTP response: the connection failed, or time was up."""

    code = "no_answer"


class Server:
    """One server under examination; use `connected`."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, timeout_seconds: float, *, deadline: float = math.inf
    ) -> None:
        """Take the client; nothing waits past `deadline`, a time of the event loop's clock."""
        self._client, self.url, self._timeout_seconds = client, url, timeout_seconds
        self._deadline = deadline
        self.has_slots = True
        """False once the server has answered that it has no /slots."""

    @property
    def name(self) -> str:
        """The server's address as a report may show it: without a user's name and password."""
        return str(httpx.URL(self.url).copy_with(userinfo=b""))

    @property
    def seconds_left(self) -> float:
        """How long the next request may take in all; 0 once the whole time is used up."""
        return min(self._timeout_seconds, max(0.0, self._deadline - asyncio.get_running_loop().time()))

    async def models(self) -> tuple[str, ...]:
        """Return the models that the server lists; none if it has no such list.

        Raises:
            ServerUnusable: it cannot be reached, or wants another key.
        """
        try:
            response = await self._client.get("/v1/models", timeout=FACTS_SECONDS)
        except httpx.TransportError as error:
            raise ServerUnusable(
                f"{self.name} cannot be reached: {_words(error)}. Is the server running, and is this its address?"
            ) from error
        if response.status_code == UNAUTHORIZED:
            raise ServerUnusable(f"{self.name} refuses the API key (401). Give one that it knows with --api-key.")
        try:
            return tuple(model.id for model in msgspec.json.decode(response.content, type=_Models).data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ()

    async def slots(self) -> tuple[Slot, ...] | None:
        """Return what /slots shows, or None where it cannot be read; a server without it is asked once."""
        page = await self._slots_page()
        try:
            return None if page is None else msgspec.json.decode(page, type=tuple[Slot, ...])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def settled(self) -> Probe | None:
        """Return the counters of the server's only slot once it is idle.

        None: they cannot be read, there are more slots than one, or it was still busy after SETTLE_SECONDS.
        """
        try:
            async with asyncio.timeout(min(SETTLE_SECONDS, self.seconds_left)):
                while (probe := await self._probe()) is not None and probe.is_processing:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(SETTLE_POLL_SECONDS)
                return probe
        except TimeoutError:
            return None

    async def is_up(self) -> bool:
        """Say whether the server lists its models, which one that is starting does not."""
        try:
            return (await self._client.get("/v1/models", timeout=FACTS_SECONDS)).status_code == OK
        except httpx.TransportError:
            return False

    async def post(self, path: str, body: bytes) -> httpx.Response:
        """Send one request and return the whole response, whatever its status.

        Raises:
            NoAnswer: there is none.
        """
        seconds = self.seconds_left
        try:
            async with asyncio.timeout(seconds):
                return await self._client.post(path, content=body)
        except TimeoutError as error:
            raise NoAnswer(self._too_late(seconds)) from error
        except httpx.TransportError as error:
            raise NoAnswer(f"the connection failed: {_words(error)}") from error

    async def hang_up(self, path: str, body: bytes) -> bool:
        """Send a request and leave at its first byte; say whether the server was seen at work on it by then.

        Raises:
            NoAnswer: not even a first byte came.
        """
        seconds = self.seconds_left
        try:
            async with asyncio.timeout(seconds), self._client.stream("POST", path, content=body) as response:
                pieces = response.aiter_raw()  # kept: dropping it would hang up before the look at the slot
                await anext(pieces, b"")
                probe = await self._probe()
                return probe is not None and probe.is_processing
        except TimeoutError as error:
            raise NoAnswer(self._too_late(seconds)) from error
        except httpx.TransportError as error:
            raise NoAnswer(f"the connection failed: {_words(error)}") from error

    async def examine(
        self,
        shape: Shape,
        *,
        before_each: Callable[[], Awaitable[None]] | None = None,
    ) -> ShapeFound:
        """Send a shape's requests, as many at once as it says, and count what came back.

        `before_each` is awaited before each request, or before all that are sent at once.
        """
        now = asyncio.get_running_loop().time
        slots_before = await self.slots()
        started = now()
        answers: list[Answer] = []
        for start in range(0, len(shape.questions), shape.together):
            if before_each is not None:
                await before_each()
            answers += await self._ask_together(shape.questions[start : start + shape.together])
        took = now() - started
        slots_after = await self.slots()
        return shape_found(shape, judged_together(answers), took, slots_before=slots_before, slots_after=slots_after)

    async def _ask_together(self, questions: Sequence[Question]) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(question), name=question.label) for question in questions]
        answers = [task.result() for task in tasks]
        return [replace(answers[0], settled=await self.settled())] if len(answers) == 1 else answers

    async def _ask(self, question: Question) -> Answer:
        """Send one request; whatever happens is an answer."""
        now = asyncio.get_running_loop().time
        sent = now()
        try:
            response = await self.post(question.path, question.body)
        except NoAnswer as error:
            return failed(question, str(error), now() - sent)
        answer = read_answer(question, response.status_code, response.content, now() - sent)
        attempts = response.headers.get(ATTEMPTS_HEADER, "")
        return replace(answer, attempts=int(attempts)) if attempts.isdecimal() else answer

    async def _probe(self) -> Probe | None:
        page = await self._slots_page()
        return None if page is None else read_slots(page)

    async def _slots_page(self) -> bytes | None:
        if not self.has_slots or not self.seconds_left:
            return None
        try:
            response = await self._client.get("/slots", timeout=min(FACTS_SECONDS, self.seconds_left))
        except httpx.TransportError:
            return None
        self.has_slots = response.status_code != NOT_FOUND
        return response.content if response.status_code == OK else None

    def _too_late(self, seconds: float) -> str:
        if seconds < self._timeout_seconds:
            return "no answer before the time for the whole check was used up"
        return f"no answer within {seconds:g} s"


@contextlib.asynccontextmanager
async def connected(
    url: str, *, api_key: str | None = None, timeout_seconds: float = 600.0, total_seconds: float = math.inf
) -> AsyncIterator[Server]:
    """Give a server to examine; `timeout_seconds` bounds each request in all, `total_seconds` all of them together.

    A request for which no time is left is not sent: it counts as one without an answer.

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
        deadline = asyncio.get_running_loop().time() + total_seconds
        yield Server(client, url, timeout_seconds, deadline=deadline)


def _words(error: httpx.TransportError) -> str:
    """Some of httpx's errors carry no text."""
    return str(error) or type(error).__name__


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]
