"""The clients' port: what is served, what is refused, and what browsers need."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from basert_fleet.engine.endpoints import ENDPOINTS
from basert_fleet.gateway.auth import Key, Keys
from basert_fleet.gateway.uploads import UploadLimits
from support.scripted_agent import ScriptedAgent, pool
from support.turns import until

CHAT = "/v1/chat/completions"
ASK = {"model": "qwen", "messages": []}
KEYS = Keys([Key(name="ci", sha256=hashlib.sha256(b"sk-good").hexdigest(), tenant="build")])


def error_of(response) -> tuple[int, str]:
    """Return status and code."""
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize(
    "path",
    ["/v1/models/load", "/v1/models/unload", "/v1/lora/load", "/v1/files", "/v1/batches", "/slots", "/metrics", "/"],
)
async def test_nothing_else_of_the_engine_is_reachable(gateway, path):
    """Only listed endpoints are forwarded; the rest of the engine does not exist here."""
    agent = ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    response = await gateway.client.post(path, json=ASK)
    assert response.status_code in (404, 405)
    assert response.headers["x-should-retry"] == "false"
    assert agent.leases == []


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
async def test_every_allowed_endpoint_is_forwarded(gateway, path):
    """The lease names the very endpoint, and carries the body as it came."""
    agent = ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    response = await gateway.client.post(path, content=b'{ "model": "qwen" }')
    assert response.status_code == 200
    assert (agent.leases[0].path, agent.leases[0].body) == (path, b'{ "model": "qwen" }')


async def test_a_form_finds_its_pool_by_its_model_field(gateway):
    """Audio comes as a form; its model field picks the pool."""
    agent = ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    response = await gateway.client.post(
        "/v1/audio/transcriptions", data={"model": "qwen"}, files={"file": ("a.wav", b"RIFF\r\n--x", "audio/wav")}
    )
    assert response.status_code == 200
    assert agent.leases[0].content_type.startswith("multipart/form-data; boundary=")


async def test_get_on_a_post_endpoint_is_told_apart(gateway):
    """A wrong method is 405, not 404."""
    assert error_of(await gateway.client.get(CHAT)) == (405, "method_not_allowed")


async def test_models_are_listed_by_name_and_alias(start):
    """The list has OpenAI's shape, each name can be asked for alone, and each finds its pool."""
    async with start(pool(model={"name": "Qwen/Qwen3.6", "aliases": ["gpt-4o"]})) as gateway:
        ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
        listed = (await gateway.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["Qwen/Qwen3.6", "gpt-4o"]
        for name in ("Qwen/Qwen3.6", "Qwen%2FQwen3.6", "gpt-4o"):
            assert (await gateway.client.get(f"/v1/models/{name}")).json()["object"] == "model"
        assert (await gateway.client.post(CHAT, json={**ASK, "model": "gpt-4o"})).status_code == 200
        assert error_of(await gateway.client.get("/v1/models/gpt-5")) == (404, "model_not_found")
        assert error_of(await gateway.client.post(CHAT, json={**ASK, "model": "gpt-5"})) == (404, "model_not_found")


@pytest.mark.parametrize("authorization", [None, "Bearer sk-bad", "Basic sk-good", "sk-good"])
async def test_an_unknown_key_is_refused(start, authorization):
    """Without a known key nothing but health and preflights is answered, and no body is read."""
    headers = {} if authorization is None else {"authorization": authorization}
    async with start(keys=KEYS) as gateway:
        for response in (
            await gateway.client.post(CHAT, json=ASK, headers=headers),
            await gateway.client.get("/v1/models", headers=headers),
        ):
            assert error_of(response) == (401, "invalid_api_key")
            assert response.headers["access-control-allow-origin"] == "*"
        assert (await gateway.client.get("/health")).status_code == 200
        assert gateway.metric("requests_total", pool="", outcome="client_error") == 2


async def test_a_known_key_is_served_as_its_tenant(start):
    """The key's tenant is what the log names."""
    async with start(keys=KEYS) as gateway:
        ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
        response = await gateway.client.post(CHAT, json=ASK, headers={"authorization": "bearer sk-good"})
        assert response.status_code == 200
        assert b'"tenant":"build"' in gateway.log.getvalue()
        assert b"sk-good" not in gateway.log.getvalue()


@pytest.mark.parametrize("keys", [None, KEYS])
async def test_browsers_may_ask(start, keys):
    """A preflight needs no key and allows the headers it asks for; answers may be read by any page (C09)."""
    async with start(keys=keys) as gateway:
        ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
        wanted = {"origin": "https://x", "access-control-request-headers": "authorization, x-stainless-os"}
        preflight = await gateway.client.options(CHAT, headers=wanted)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "*"
        assert preflight.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
        assert "POST" in preflight.headers["access-control-allow-methods"]
        answer = await gateway.client.post(CHAT, json=ASK, headers={"authorization": "Bearer sk-good"})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "x-basert-worker" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 1}', b'{"model":"qwen","model":"other"}', b"\xff"])
async def test_a_body_that_cannot_be_read_is_the_clients_error(gateway, body):
    """Such a body reaches no worker."""
    agent = ScriptedAgent().join(gateway.fleet)
    assert error_of(await gateway.client.post(CHAT, content=body)) == (400, "invalid_request")
    assert agent.leases == []


async def test_a_body_over_the_limit_is_refused(start):
    """Whether its size is announced or not; the connection goes on."""

    async def chunks():
        for _ in range(20):
            yield b"x" * 100

    async with start(limits=UploadLimits(body_bytes=1000)) as gateway:
        ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
        assert error_of(await gateway.client.post(CHAT, content=b"x" * 1001)) == (413, "payload_too_large")
        assert error_of(await gateway.client.post(CHAT, content=chunks())) == (413, "payload_too_large")
        assert (await gateway.client.post(CHAT, json=ASK)).status_code == 200


@pytest.mark.parametrize("sent", ["a b", "x" * 129, "naïve"])
async def test_an_insane_request_id_is_replaced(gateway, sent):
    """What could break a log line or a header is not taken over."""
    ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    response = await gateway.client.post(CHAT, json=ASK, headers={"x-request-id": sent.encode()})
    assert response.headers["x-request-id"].startswith("req-")


async def test_a_request_id_in_use_is_replaced(gateway):
    """Two requests in progress never share an id, though a client gave both the same."""
    agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(gateway.fleet)
    headers = {"x-request-id": "same"}
    asked = [asyncio.create_task(gateway.client.post(CHAT, json=ASK, headers=headers)) for _ in range(2)]
    await agent.until(lambda: agent.leases)
    await until(lambda: gateway.fleet.traffic.in_progress == 2)
    agent.script = lambda agent, lease: agent.answer(lease)
    agent.answer(agent.leases[0])
    ids = {response.headers["x-request-id"] for response in await asyncio.gather(*asked)}
    assert len(ids) == 2
    assert "same" in ids


async def test_health_answers_while_a_large_body_is_read(gateway):
    """Decoding and queueing megabytes holds up the loop for no more than 100 ms (C32)."""
    loop = asyncio.get_running_loop()
    large = b'{"model":"qwen","messages":[{"role":"user","content":"' + b"x" * 8_000_000 + b'"}]}'
    ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    asked = asyncio.create_task(gateway.client.post(CHAT, content=large))
    longest = 0.0
    while not asked.done():
        before = loop.time()
        assert (await gateway.client.get("/health")).status_code == 200
        longest = max(longest, loop.time() - before)
    assert (await asked).status_code == 200
    assert longest < 1.0  # generous: client and gateway share this loop and a busy machine


async def test_a_bug_is_told_in_the_same_shape(gateway, caplog):
    """Whatever goes wrong in the gateway itself, SDKs get an error that they can read; the log has the traceback."""

    def broken(ask, abort):
        raise LookupError("a bug")

    gateway.fleet.submit = broken
    response = await gateway.client.post(CHAT, json=ASK)
    assert error_of(response) == (500, "internal_error")
    assert response.headers["x-should-retry"] == "false"
    assert "a bug" in caplog.text
