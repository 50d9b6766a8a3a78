"""What OpenAI's own client makes of the gateway's answers and errors."""

from __future__ import annotations

import openai
import pytest

from basert_fleet.core.delivery import Outcome, Part
from support.scripted_agent import DRIFTED, ScriptedAgent, pool, text

ASK = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def sdk(gateway):
    """The SDK with its default retries, against the gateway."""
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-any", http_client=gateway.client)


async def test_an_answer_is_typed(gateway, sdk):
    """A completion parses into the SDK's own type."""
    ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    completion = await sdk.chat.completions.create(**ASK)
    assert completion.choices[0].message.content == "hi"


async def test_a_stream_is_typed(gateway, sdk):
    """A stream's chunks arrive one by one, and it ends."""
    ScriptedAgent(lambda agent, lease: agent.stream(lease, "a", "b")).join(gateway.fleet)
    stream = await sdk.chat.completions.create(**ASK, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "ab"


async def test_models_are_typed(sdk):
    """The models list parses into the SDK's own type."""
    assert [model.id async for model in sdk.models.list()] == ["qwen"]


async def test_a_final_error_is_typed_and_not_tried_again(gateway, sdk):
    """The SDK retries no request that the fleet has given up on."""
    agent = ScriptedAgent(lambda agent, lease: agent.withhold(lease, DRIFTED)).join(gateway.fleet)
    with pytest.raises(openai.InternalServerError) as raised:
        await sdk.chat.completions.create(**ASK)
    assert raised.value.code == "response_contaminated"
    assert len(agent.leases) == 3


async def test_an_unknown_model_is_typed(sdk):
    """The SDK raises NotFoundError with code and param."""
    with pytest.raises(openai.NotFoundError) as raised:
        await sdk.chat.completions.create(**{**ASK, "model": "gpt-5"})
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_a_full_queue_is_typed(start):
    """The SDK raises RateLimitError, which it would retry by itself after the time that it is told."""
    async with start(pool(queue={"maxBytes": 1024**2})) as gateway:
        sdk = openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="sk-any", http_client=gateway.client, max_retries=0
        )
        large = {**ASK, "messages": [{"role": "user", "content": "x" * 1024**2}]}
        with pytest.raises(openai.RateLimitError) as raised:
            await sdk.chat.completions.create(**large)
    assert raised.value.code == "queue_full"
    assert int(raised.value.response.headers["retry-after"]) >= 1


async def collect(stream, seen: list[str | None]) -> None:
    """Note what each chunk says, up to the end or an error."""
    async for chunk in stream:
        seen.append(chunk.choices[0].delta.content)  # noqa: PERF401 - extend() would lose them all at the error


async def test_an_error_in_a_stream_is_raised(gateway, sdk):
    """After text was seen, the SDK raises instead of taking the cut for an end."""

    def text_then_drift(agent: ScriptedAgent, lease) -> None:
        agent.begin(lease)
        agent.body(lease, text("a"), Part.TEXT)
        agent.end(lease, Outcome.WITHHELD, DRIFTED)

    ScriptedAgent(text_then_drift).join(gateway.fleet)
    stream = await sdk.chat.completions.create(**ASK, stream=True)
    seen = []
    with pytest.raises(openai.APIError) as raised:
        await collect(stream, seen)
    assert seen == [None, "a"]
    assert raised.value.code == "response_contaminated"
