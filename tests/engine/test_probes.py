"""Asking an engine for its counters: what counts as an answer."""

from __future__ import annotations

import asyncio

import pytest

from basert_fleet.core.calibration import Probe
from basert_fleet.engine.probes import MAX_ANSWER_BYTES, ProbeClient, SlotsAbsent, read_slots

SEED_SLOTS = b'[{"id":0,"is_processing":false,"cache_tokens":275,"cache_position":403}]'


def answer(body, status=200):
    """Return a response as the engine writes it."""
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


async def ask(peer, question, *raw):
    """Put one question, answer it on one connection, and return what came of it."""
    asked = asyncio.create_task(question)
    reader, writer = await peer.accept()
    await peer.take_request(reader)
    writer.write(b"".join(raw))
    async with asyncio.timeout(20):
        return await asked


@pytest.fixture
def client(peer):
    """Ask the scripted engine."""
    client = ProbeClient("127.0.0.1", peer.port, "key")
    yield client
    client.close()


async def test_counters_are_read_as_the_seed_shows_them(peer, client):
    """The seed's own answer gives its counters, and the question carries the engine's key."""
    probe = await ask(peer, client.slots(20), answer(SEED_SLOTS))
    assert probe == Probe(is_processing=False, cache_tokens=275, cache_position=403)
    assert b"GET /slots HTTP/1.1\r\n" in peer.requests[0]
    assert b"Authorization: Bearer key\r\n" in peer.requests[0]


async def test_missing_slots_are_told_apart_from_silence(peer, client):
    """A 404 is an answer that no waiting will change."""
    with pytest.raises(SlotsAbsent, match="requireSlots"):
        await ask(peer, client.slots(20), answer(b"", 404))


@pytest.mark.parametrize(
    "raw", [answer(b"", 503), answer(b"oops"), b"SSH-2.0\r\n", answer(b" " * (MAX_ANSWER_BYTES + 1))]
)
async def test_other_answers_tell_nothing(peer, client, raw):
    """An error, a stranger or an endless answer is no evidence, and no error either."""
    assert await ask(peer, client.slots(20), raw) is None


async def test_silence_tells_nothing(peer, client):
    """/slots that does not answer in time is None (C16), and a late answer cannot be taken for the next question's."""
    assert await client.slots(0.01) is None
    reader, _ = await peer.accept()
    await peer.take_request(reader)
    assert await reader.read() == b""  # closed
    assert await ask(peer, client.slots(20), answer(SEED_SLOTS)) is not None


async def test_unreachable_engine_tells_nothing():
    """Nothing listens: nothing is known, and it is not healthy."""
    client = ProbeClient("127.0.0.1", 1, "key")
    assert await client.slots(20) is None
    assert await client.healthy(20) is False


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (404, False)])
async def test_health_is_a_200(peer, client, status, healthy):
    """Only 200 is healthy."""
    assert await ask(peer, client.healthy(20), answer(b"", status)) is healthy


async def test_connection_is_kept_and_replaced(peer, client):
    """Questions share a connection; one that the engine closed meanwhile is replaced without anybody noticing."""
    first = asyncio.create_task(client.slots(20))
    reader, writer = await peer.accept()
    for question in (first, asyncio.create_task(client.slots(20))):
        await peer.take_request(reader)
        writer.write(answer(SEED_SLOTS))
        assert await question is not None
    assert peer.connections == 1
    third = asyncio.create_task(client.slots(20))
    await peer.take_request(reader)
    writer.close()  # after the question arrived: a race that every idle connection may lose
    reader, writer = await peer.accept()
    await peer.take_request(reader)
    writer.write(answer(SEED_SLOTS))
    assert await third is not None


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        SEED_SLOTS[:-1] + b"," + SEED_SLOTS[1:],
        b"{}",
        b'[{"id":0}]',
        b'[{"is_processing":0,"cache_tokens":1}]',
        b"\xff",
    ],
)
def test_anything_but_one_slot_tells_nothing(body):
    """No slot, two slots or missing counters are not the counters of one slot."""
    assert read_slots(body) is None
