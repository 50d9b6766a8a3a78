"""The whole room against a real process: basert-sim, healthy and with the seed's bug."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from basert_fleet.core.calibration import Ending
from basert_fleet.core.delivery import Part
from basert_fleet.core.settle import SlotsPage
from basert_fleet.core.verdict import Reason
from basert_fleet.engine.canary import (
    CHAT_PATH,
    calibration_requests,
    canary_failure,
    canary_request,
    lookup_key_request,
)
from basert_fleet.engine.connection import Data, EndOfResponse, EngineConnection, RequestEncoder, ResponseHead
from basert_fleet.engine.probes import ProbeClient
from basert_fleet.engine.request import JSON_TYPE, prepare
from basert_fleet.engine.response import Piece, ResponseFacts, reader_for
from support.conversation import next_event
from support.emulator import Emulator, emulator

KEY = "secret"
SECONDS = 60.0  # a backstop


class Engine:
    """A client of one emulator, with one connection for generations as an agent has it."""

    def __init__(self, server: Emulator) -> None:
        self.server = server
        self.connection = EngineConnection()
        self.requests = RequestEncoder("127.0.0.1", server.port, KEY)
        self.probes = ProbeClient("127.0.0.1", server.port, KEY)

    async def send(self, body: bytes) -> None:
        if not self.connection.reusable:
            await self.connection.connect("127.0.0.1", self.server.port)
        self.connection.send(self.requests.post(CHAT_PATH, JSON_TYPE, body))

    async def run(self, body: bytes) -> tuple[list[Piece], ResponseFacts]:
        """Run one request to its proven end."""
        prepared = prepare(CHAT_PATH, body, "chatcmpl-1")
        await self.send(prepared.body)
        async with asyncio.timeout(SECONDS):
            head = await next_event(self.connection)
            assert isinstance(head, ResponseHead)
            reader, pieces = reader_for(prepared, head), []
            while isinstance(event := await next_event(self.connection), Data):
                pieces += reader.feed(event.data)
        assert event == EndOfResponse(proven=True)
        return pieces + reader.finish(), reader.facts()


@asynccontextmanager
async def engine(*arguments: str) -> AsyncIterator[Engine]:
    """Run an emulator and a client of it."""
    async with emulator("--api-key", KEY, "--sim-tokens-per-second", "0", *arguments) as server:
        client = Engine(server)
        try:
            yield client
        finally:
            client.connection.close()
            client.probes.close()


@pytest.mark.parametrize("chunks", ["split", "mixed", "unindexed"])
async def test_healthy_engine_is_read_as_such(chunks):
    """A stream of a healthy engine, however it frames its chunks, has a sound call, usage and both end marks."""
    async with engine("--sim-bug", "off", "--sim-chunks", chunks) as client:
        pieces, facts = await client.run(lookup_key_request("seq-0", "m", stream=True))
        assert facts.tool_problem is None
        assert (facts.saw_done, facts.malformed, facts.engine_error) == (True, None, None)
        assert (facts.ending, facts.completion_tokens is None) == (Ending.TOOL_CALLS, False)
        assert b"usage" not in b"".join(piece.data for piece in pieces)
        assert {piece.part for piece in pieces} >= {Part.TOOL_CALL, Part.ENDING}
        assert client.connection.reusable


async def test_canary_passes_on_a_healthy_engine():
    """Canaries pass one after another on one connection, and probes tell its counters."""
    async with engine("--sim-bug", "off") as client:
        assert await client.probes.healthy(SECONDS)
        for nonce in ("a-1", "b-2"):
            ((piece,), facts) = await client.run(canary_request(nonce, "m"))
            assert canary_failure(piece.data, nonce) is None
            assert facts.completion_tokens
        probe = await client.probes.slots(SECONDS)
        assert probe is not None
        assert not probe.is_processing


async def test_seeds_bug_is_found():
    """The seed's sequence ends without its call: a missing call in the response, and 128 tokens of drift in /slots."""
    async with engine("--sim-bug", "on") as client:
        findings = [(await client.run(lookup_key_request(f"seq-{n}", "m")))[1].tool_problem for n in range(6)]
        assert findings == [None] * 5 + [Reason.TOOL_CALL_MISSING]
        assert (await client.probes.slots(SECONDS)).offset == 128


async def test_calibration_requests_end_as_they_should():
    """The two lengths end by length after their tokens, and the stop by stop."""
    async with engine("--sim-bug", "off") as client:
        requests = calibration_requests("m")
        ended = [(await client.run(request))[1] for request in requests[:3]]
        assert [facts.ending for facts in ended] == [Ending.LENGTH, Ending.LENGTH, Ending.STOP]
        assert [facts.completion_tokens for facts in ended[:2]] == [4, 16]


async def test_closing_cancels_a_running_generation():
    """After the start was seen, closing the connection ends the generation, and /slots comes to tell so."""
    async with engine("--sim-bug", "off", "--sim-tokens-per-second", "20") as client:
        await client.send(calibration_requests("m").cancelled)
        async with asyncio.timeout(SECONDS):
            assert isinstance(await next_event(client.connection), ResponseHead)
            assert (await client.probes.slots(SECONDS)).is_processing
            client.connection.close()
            while (await client.probes.slots(SECONDS)).is_processing:
                pass
        assert not client.server.overlaps()


async def test_missing_slots_and_refused_keys_are_told_apart():
    """A build without /slots says so; a wrong key is an OpenAI-shaped error with its own words."""
    async with engine("--sim-slots", "off") as client:
        assert await client.probes.slots(SECONDS) is None
        assert client.probes.page is SlotsPage.ABSENT
        await client.connection.connect("127.0.0.1", client.server.port)
        stranger = RequestEncoder("127.0.0.1", client.server.port, "another key")
        client.connection.send(stranger.post(CHAT_PATH, JSON_TYPE, canary_request("a", "m")))
        head = await next_event(client.connection)
        reader = reader_for(prepare(CHAT_PATH, canary_request("a", "m"), "r"), head)
        while isinstance(event := await next_event(client.connection), Data):
            reader.feed(event.data)
        (piece,) = reader.finish()
        assert (head.status, json.loads(piece.data)["error"]["code"]) == (401, "invalid_api_key")
