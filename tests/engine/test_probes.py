"""Asking an engine for its counters: what counts as an answer."""

from __future__ import annotations

import asyncio

import pytest

from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SlotsPage
from basert_fleet.engine.probes import MAX_ANSWER_BYTES, ProbeClient, read_slots
from support.turns import until

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
    assert client.page is SlotsPage.PRESENT
    assert await ask(peer, client.slots(20), answer(b"", 404)) is None
    assert client.page is SlotsPage.ABSENT


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_told_apart_from_silence(peer, client, status):
    """It is the last answer that counts, for the key may be put right on the server's side."""
    first = asyncio.create_task(client.slots(20))
    reader, writer = await peer.accept()
    await peer.take_request(reader)
    writer.write(answer(b"", status))
    assert (await first, client.key_refusal) == (None, status)
    second = asyncio.create_task(client.slots(20))
    await peer.take_request(reader)
    writer.write(answer(SEED_SLOTS))
    assert (await second, client.key_refusal) == (Probe(False, 275, 403), None)


@pytest.mark.parametrize(
    "raw", [answer(b"", 503), answer(b"oops"), b"SSH-2.0\r\n", answer(b" " * (MAX_ANSWER_BYTES + 1))]
)
async def test_other_answers_tell_nothing(peer, client, raw):
    """An error, a stranger or an endless answer is no evidence, and no error either."""
    assert await ask(peer, client.slots(20), raw) is None
    assert client.page is SlotsPage.PRESENT


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
    question = asyncio.create_task(client.slots(20))
    reader, writer = await peer.accept()
    for _ in range(2):
        await peer.take_request(reader)
        writer.write(answer(SEED_SLOTS))
        assert await question is not None
        question = asyncio.create_task(client.slots(20))
    assert peer.connections == 1
    await peer.take_request(reader)
    writer.close()  # after the question arrived: a race that every idle connection may lose
    reader, writer = await peer.accept()
    await peer.take_request(reader)
    writer.write(answer(SEED_SLOTS))
    assert await question is not None


@pytest.mark.parametrize(
    "raw",
    [
        answer(b" " * MAX_ANSWER_BYTES + SEED_SLOTS),
        b"SSH-2.0\r\n",
        answer(SEED_SLOTS)[:-1],
        b"HTTP/1.1 200",
    ],
    ids=["too long", "a stranger's", "cut in its body", "cut in its head"],
)
async def test_a_question_that_was_answered_badly_is_not_asked_again(peer, client, raw):
    """An engine that closes an idle connection has said nothing; one that answers badly has, and it is told once."""
    asked = asyncio.create_task(client.slots(20))
    reader, writer = await peer.accept()
    await peer.take_request(reader)
    writer.write(answer(SEED_SLOTS))
    assert await asked is not None
    told = []
    client.ask_slots(told.append)
    await peer.take_request(reader)
    writer.write(raw)
    writer.close()
    async with asyncio.timeout(20):
        await until(lambda: told)
    assert (told, peer.connections) == ([None], 1)
    assert await ask(peer, client.slots(20), answer(SEED_SLOTS)) is not None


async def test_an_answer_that_is_too_long_is_none_even_if_it_is_whole(peer, client):
    """What is read of an answer has a limit, however the network cuts it."""
    raw = answer(b" " * MAX_ANSWER_BYTES + SEED_SLOTS)
    assert await ask(peer, client.slots(20), raw) is None
    assert await ask(peer, client.slots(20), answer(SEED_SLOTS)) is not None


async def test_a_new_question_gives_up_the_one_before(peer, client):
    """The first is never answered, and its late answer is not taken for the second's."""
    first, second = [], []
    client.ask_slots(first.append)
    _, late = await peer.accept()
    client.ask_slots(second.append)
    reader, writer = await peer.accept()
    late.write(answer(b"[]"))
    await peer.take_request(reader)
    writer.write(answer(SEED_SLOTS))
    async with asyncio.timeout(20):
        await until(lambda: second)
    assert (first, second) == ([], [Probe(False, 275, 403)])


async def test_a_question_that_was_given_up_is_never_answered(peer, client):
    """Given up while it waits, its answer is dropped with its connection; giving up once more does nothing."""
    told = []
    question = client.ask_slots(told.append)
    reader, writer = await peer.accept()
    await peer.take_request(reader)
    writer.write(answer(SEED_SLOTS))
    question.give_up()
    question.give_up()
    assert await ask(peer, client.slots(20), answer(SEED_SLOTS)) == Probe(False, 275, 403)
    assert told == []


async def test_a_question_may_be_given_up_before_it_is_connected(peer, client):
    """Its connection is not used by it nor by the next question."""
    told = []
    client.ask_slots(told.append).give_up()
    asked = asyncio.create_task(client.slots(20))
    await until(lambda: peer.connections)
    reader, writer = await peer.accept()
    while not await reader.read(1):  # the first connection, if it came about at all
        reader, writer = await peer.accept()
    writer.write(answer(SEED_SLOTS))
    assert await asked == Probe(False, 275, 403)
    assert told == []


async def test_a_closed_client_answers_nothing_and_asks_anew(peer, client):
    """Closing leaves nothing under way; the question that waited ends as silence at its time."""
    waiting = asyncio.create_task(client.slots(0.05))
    reader, _ = await peer.accept()
    await peer.take_request(reader)
    client.close()
    assert await waiting is None
    assert await ask(peer, client.slots(20), answer(SEED_SLOTS)) is not None


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
