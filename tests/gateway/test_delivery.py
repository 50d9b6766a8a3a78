"""What a client gets of one or several attempts."""

from __future__ import annotations

import asyncio
import json

import pytest

from basert_fleet.core.delivery import Outcome, Part, VerifyMode
from basert_fleet.core.verdict import Reason, Verdict
from support.scripted_agent import ANSWER, DRIFTED, ENDING, ROLE, SUSPECT, ScriptedAgent, pool, text

CHAT = "/v1/chat/completions"
ASK = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**ASK, "stream": True}


def begin_with_text(agent: ScriptedAgent, lease) -> None:
    """Stream one word, and leave the rest to the test."""
    agent.begin(lease)
    agent.body(lease, text("one"), Part.TEXT)


def by_turns(*turns):
    """Return a script that handles the first lease by the first function, and so on; the last one goes on."""
    left = list(turns)

    def script(agent: ScriptedAgent, lease) -> None:
        turn = left.pop(0) if len(left) > 1 else left[0]
        turn(agent, lease)

    return script


def crash(agent: ScriptedAgent, lease) -> None:
    """Begin a stream, and die before anything of it could be seen."""
    agent.begin(lease)
    agent.end(lease, Outcome.CRASHED, Verdict.because(Reason.SERVER_RESTARTED))
    agent.settle(lease, new_process=True)


def error_of(response) -> tuple[int, str, str]:
    """Return status, code and whether SDKs may retry."""
    return response.status_code, response.json()["error"]["code"], response.headers.get("x-should-retry", "")


async def test_a_whole_answer_comes_with_its_trace(gateway):
    """A non-streamed answer is passed on as it is, with headers that tell which lease it had."""
    agent = ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    response = await gateway.client.post(CHAT, json=ASK, headers={"x-request-id": "mine-1"})
    assert (response.status_code, response.content) == (200, ANSWER)
    headers = response.headers
    assert headers["x-request-id"] == "mine-1" == agent.leases[0].request_id
    assert (headers["x-basert-worker"], headers["x-basert-lease"]) == ("qwen-0", "aaaa.1.1")
    assert (headers["x-basert-attempts"], headers["x-basert-verdict"]) == ("1", "clean")
    assert int(headers["content-length"]) == len(ANSWER)
    assert gateway.metric("requests_total", pool="qwen", outcome="ok") == 1


async def test_a_stream_is_passed_on_event_by_event(gateway):
    """Text reaches the client while the generation still runs."""
    agent = ScriptedAgent(begin_with_text).join(gateway.fleet)
    async with gateway.client.stream("POST", CHAT, json=STREAM) as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == ROLE + text("one")
        agent.body(agent.leases[0], text("two"), Part.TEXT)
        agent.finish(agent.leases[0])
        assert b"".join([piece async for piece in pieces]) == text("two") + ENDING
    assert response.headers["content-type"] == "text/event-stream"
    assert "x-basert-verdict" not in response.headers  # it was not known yet


async def test_the_clients_key_never_reaches_an_agent(gateway):
    """A lease carries the body and its type, and no header of the client."""
    agent = ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    await gateway.client.post(CHAT, json=ASK, headers={"authorization": "Bearer sk-secret"})
    assert "sk-secret" not in repr(agent.leases)
    assert b"sk-secret" not in gateway.log.getvalue()


async def test_a_crash_before_visible_output_leaves_no_trace(gateway):
    """The answer of the second attempt has one role chunk, and one set of headers."""
    agent = ScriptedAgent(by_turns(crash, lambda agent, lease: agent.stream(lease, "one"))).join(gateway.fleet)
    response = await gateway.client.post(CHAT, json=STREAM)
    assert response.content == ROLE + text("one") + ENDING
    assert response.headers["x-basert-attempts"] == "2"
    assert agent.leases[1].epoch.generation == 2
    assert agent.leases[1].request_id == agent.leases[0].request_id


async def test_two_crashes_blame_the_request(start):
    """A body that crashed two workers is refused, at once from then on, and only for its tenant and content."""
    async with start(pool(replicas=2)) as gateway:
        agent = ScriptedAgent(crash, workers=("qwen-0", "qwen-1")).join(gateway.fleet)
        assert error_of(await gateway.client.post(CHAT, json=STREAM)) == (422, "request_refused", "false")
        assert {lease.worker for lease in agent.leases} == {"qwen-0", "qwen-1"}
        assert error_of(await gateway.client.post(CHAT, json=STREAM)) == (422, "request_refused", "false")
        assert len(agent.leases) == 2
        agent.script = lambda agent, lease: agent.answer(lease)
        assert (await gateway.client.post(CHAT, json=ASK)).status_code == 200


async def test_an_engines_error_runs_elsewhere_once(gateway):
    """A 500 of an engine is no answer; two of them are the fleet's error."""
    agent = ScriptedAgent(lambda agent, lease: agent.answer(lease, b'{"oops":1}', status=500)).join(gateway.fleet)
    assert error_of(await gateway.client.post(CHAT, json=ASK)) == (502, "worker_lost", "false")
    assert len(agent.leases) == 2


async def test_an_engines_refusal_is_passed_on(gateway):
    """A 400 of an engine is the client's to see, stream or not."""
    body = b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}'
    agent = ScriptedAgent(lambda agent, lease: agent.answer(lease, body, status=400)).join(gateway.fleet)
    response = await gateway.client.post(CHAT, json=STREAM)
    assert (response.status_code, response.content) == (400, body)
    assert response.headers["content-type"] == "application/json"
    assert gateway.metric("requests_total", pool="qwen", outcome="client_error") == 1
    assert len(agent.leases) == 1


async def test_a_contaminated_answer_runs_elsewhere(gateway):
    """What a contaminated slot answered is never seen; the next process's clean answer is."""
    turns = by_turns(
        lambda agent, lease: agent.withhold(lease, DRIFTED), lambda agent, lease: agent.stream(lease, "good")
    )
    ScriptedAgent(turns).join(gateway.fleet)
    response = await gateway.client.post(CHAT, json=STREAM)
    assert response.content == ROLE + text("good") + ENDING
    labels = {"pool": "qwen", "engine": "0.1.7"}
    assert gateway.metric("leases_total", verdict="contaminated", reason="position_drift", **labels) == 1
    assert gateway.metric("leases_total", verdict="clean", reason="", **labels) == 1


async def test_contamination_everywhere_ends_in_an_error(gateway):
    """After maxAttempts contaminated attempts the client gets response_contaminated, and no part of any answer."""
    agent = ScriptedAgent(lambda agent, lease: agent.withhold(lease, DRIFTED)).join(gateway.fleet)
    response = await gateway.client.post(CHAT, json=STREAM)
    assert error_of(response) == (502, "response_contaminated", "false")
    assert response.headers["x-basert-verdict"] == "contaminated"
    assert [lease.epoch.generation for lease in agent.leases] == [1, 2, 3]
    for part in Part:
        assert gateway.metric("released_total", pool="qwen", verdict="contaminated", part=part.value) == 0


async def test_a_suspect_answer_is_agreed_upon(start):
    """The second worker learns what the first one found, so that the same finding again is delivered."""

    def suspect(agent: ScriptedAgent, lease) -> None:
        if SUSPECT.reason in lease.agreed:
            agent.answer(lease, verdict=SUSPECT)
        else:
            agent.withhold(lease, SUSPECT)

    async with start(pool(replicas=2)) as gateway:
        agent = ScriptedAgent(suspect, workers=("qwen-0", "qwen-1")).join(gateway.fleet)
        response = await gateway.client.post(CHAT, json=ASK)
        assert (response.status_code, response.content) == (200, ANSWER)
        assert response.headers["x-basert-verdict"] == "suspect"
        assert [lease.agreed for lease in agent.leases] == [frozenset(), {Reason.TOOL_ARGUMENTS_INVALID}]
        assert {lease.worker for lease in agent.leases} == {"qwen-0", "qwen-1"}


async def test_an_error_after_text_is_an_event(gateway):
    """Once text is out, contamination ends the stream by an error event, and never by [DONE]."""
    agent = ScriptedAgent(begin_with_text).join(gateway.fleet)
    async with gateway.client.stream("POST", CHAT, json=STREAM) as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == ROLE + text("one")
        agent.end(agent.leases[0], Outcome.WITHHELD, DRIFTED)
        rest = b"".join([piece async for piece in pieces])
    assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "response_contaminated"
    assert rest.endswith(b"}\n\n")
    assert b"[DONE]" not in rest
    assert gateway.metric("released_total", pool="qwen", verdict="contaminated", part="text") == 1
    assert gateway.metric("requests_total", pool="qwen", outcome="response_contaminated") == 1


async def test_a_lost_link_runs_the_request_elsewhere(start):
    """A Mac that goes away takes nothing along that nobody has seen yet."""
    async with start(pool(replicas=1)) as gateway:
        first = ScriptedAgent(lambda agent, lease: agent.begin(lease)).join(gateway.fleet)
        asked = asyncio.create_task(gateway.client.post(CHAT, json=STREAM))
        await first.until(lambda: first.leases)
        second = ScriptedAgent(
            lambda agent, lease: agent.stream(lease, "hi"), workers=("qwen-1",), node="mac-2", incarnation="bbbb"
        ).join(gateway.fleet)
        first.link.close()
        response = await asked
        assert response.content == ROLE + text("hi") + ENDING
        assert response.headers["x-basert-worker"] == "qwen-1"
        assert len(second.leases) == 1


async def test_a_lost_link_after_text_is_an_error_event(gateway):
    """A stream that was seen in part is not joined with another attempt's."""
    agent = ScriptedAgent(begin_with_text).join(gateway.fleet)
    async with gateway.client.stream("POST", CHAT, json=STREAM) as response:
        pieces = response.aiter_raw()
        await anext(pieces)
        agent.link.close()
        rest = b"".join([piece async for piece in pieces])
    assert b'"worker_lost"' in rest
    assert b"[DONE]" not in rest
    assert gateway.fleet.traffic.leases == {}


async def test_frames_of_an_old_lease_are_dropped_and_counted(gateway):
    """A late frame of a lease that is over reaches no client."""
    agent = ScriptedAgent(begin_with_text).join(gateway.fleet)
    async with gateway.client.stream("POST", CHAT, json=STREAM) as response:
        pieces = response.aiter_raw()
        await anext(pieces)
        agent.finish(agent.leases[0])
        agent.body(agent.leases[0], text("late"), Part.TEXT)
        assert b"late" not in b"".join([piece async for piece in pieces])
    assert gateway.metric("stale_frames_total", node="mac-1") == 1


@pytest.mark.parametrize(
    ("of_pool", "asked", "sent"),
    [
        ("toolCalls", "full", VerifyMode.FULL),
        ("full", "off", VerifyMode.FULL),
        ("off", None, VerifyMode.OFF),
    ],
)
async def test_a_client_can_only_raise_verification(start, of_pool, asked, sent):
    """The lease carries the stricter of the pool's mode and the header's."""
    headers = {} if asked is None else {"x-basert-verify": asked}
    async with start(pool(delivery={"verify": of_pool})) as gateway:
        agent = ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
        await gateway.client.post(CHAT, json=ASK, headers=headers)
        assert agent.leases[0].verify is sent


async def test_each_lease_is_one_log_line(gateway):
    """The line tells request, worker, verdict and times in the words of the design, and nothing that anybody wrote."""
    ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    await gateway.client.post(CHAT, json=ASK, headers={"x-request-id": "r-1"})
    (line,) = [json.loads(line) for line in gateway.log.getvalue().splitlines()]
    expected = {"event": "lease ended", "request": "r-1", "tenant": "default", "pool": "qwen", "worker": "qwen-0"}
    expected |= {"epoch": "aaaa.1.1", "attempt": 1, "outcome": "released", "verdict": "clean", "reason": None}
    assert line.items() >= expected.items()
    assert "hello" not in gateway.log.getvalue().decode()


async def test_a_lease_line_names_its_own_worker_when_the_retry_has_begun(start):
    """A request that is at once given to an idle slot leaves one line for each of its leases: none is told twice."""
    async with start(pool(replicas=2)) as gateway:
        script = by_turns(crash, lambda agent, lease: agent.answer(lease))
        agent = ScriptedAgent(script, workers=("qwen-0", "qwen-1")).join(gateway.fleet)
        assert (await gateway.client.post(CHAT, json=ASK)).status_code == 200
    lines = [json.loads(line) for line in gateway.log.getvalue().splitlines()]
    assert [(line["worker"], line["epoch"]) for line in lines] == [
        (lease.worker, str(lease.epoch)) for lease in agent.leases
    ]
    assert len({line["worker"] for line in lines}) == 2
    assert [(line["attempt"], line["outcome"]) for line in lines] == [(1, "crashed"), (2, "released")]


async def test_a_late_frame_never_reaches_the_next_request_on_the_slot(gateway):
    """Frames of a lease that is over are dropped, though the same slot serves somebody else by now."""
    agent = ScriptedAgent(begin_with_text).join(gateway.fleet)
    first = asyncio.create_task(gateway.client.post(CHAT, json=STREAM))
    await agent.until(lambda: agent.leases)
    agent.finish(agent.leases[0])
    await first
    async with gateway.client.stream("POST", CHAT, json=STREAM) as response:
        agent.body(agent.leases[0], text("not yours"), Part.TEXT)
        agent.end(agent.leases[0])
        agent.finish(agent.leases[1])
        body = b"".join([piece async for piece in response.aiter_raw()])
    assert body == ROLE + text("one") + ENDING
    assert gateway.metric("stale_frames_total", node="mac-1") == 2
