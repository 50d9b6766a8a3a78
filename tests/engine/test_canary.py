"""The requests the fleet sends itself, and when a canary passes."""

from __future__ import annotations

import json

import pytest

from basert_fleet.engine.canary import (
    calibration_requests,
    canary_failure,
    canary_request,
    lookup_key_request,
    scrub_request,
)

SEED_REQUEST = {
    "model": "Qwen/Qwen3.6-35B-A3B",
    "messages": [{"role": "user", "content": "Call lookup_key with key seq-0."}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "lookup_key",
                "description": "Lookup a key",
                "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
            },
        }
    ],
    "max_tokens": 2048,
    "temperature": 0,
}


def completion(*calls, finish="tool_calls"):
    """Return a chat completion with these calls."""
    tool_calls = [{"id": "c", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    return json.dumps({"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()


def test_request_is_the_seeds():
    """The request that corrupted is sent to the letter."""
    assert json.loads(lookup_key_request("seq-0", "Qwen/Qwen3.6-35B-A3B")) == SEED_REQUEST
    assert json.loads(lookup_key_request("seq-0", "m", stream=True))["stream"] is True


def test_canary_is_the_seeds_request_with_a_nonce():
    """A canary differs from the seed's request by its key and its limit only."""
    canary = json.loads(canary_request("n0nce", "m"))
    assert canary["messages"][0]["content"] == "Call lookup_key with key n0nce."
    assert (canary["temperature"], canary["max_tokens"]) == (0, 256)
    assert canary["tools"] == SEED_REQUEST["tools"]


def test_canary_passes_with_exactly_its_call():
    """One call of that name with that key passes, however its JSON is spaced."""
    assert canary_failure(completion(("lookup_key", '{"key":"a-1"}')), "a-1") is None
    assert canary_failure(completion(("lookup_key", '{ "key" : "a-1" }')), "a-1") is None


@pytest.mark.parametrize(
    "body",
    [
        completion(("lookup_key", '{"key":"key"}')),  # seed: c2-0
        completion(("lookup_key", '{"key":"1"}')),  # seed: a lost prefix
        completion(finish="length"),  # seed: c2-1
        completion(("lookup_key", '{"key":"a-1"}'), ("lookup_key", '{"key":"a-1"}')),
        completion(("lookup_key", '{"key":"a-1","more":1}')),
        completion(("other", '{"key":"a-1"}')),
        completion(("lookup_key", '{"key":"a-1"')),
        completion(("lookup_key", "[]")),
        b'{"choices":[]}',
        b'{"choices":[{"message":{"content":"a-1"}}]}',
        b'{"error":{"message":"x"}}',
        b"\xff",
        b"",
    ],
)
def test_canary_fails_with_anything_else(body):
    """Every corruption of the seed fails, and what was found is told."""
    assert canary_failure(body, "a-1")


def test_scrub_shares_no_prefix():
    """A scrub is a plain chat that begins differently each time, and unlike a canary."""
    first, second = (json.loads(scrub_request(nonce, "m")) for nonce in ("a", "b"))
    contents = [request["messages"][0]["content"] for request in (first, second)]
    assert contents[0][0] != contents[1][0]
    assert "tools" not in first


def test_calibration_asks_for_two_lengths():
    """The two length requests differ only in their limit, and the one to be cancelled streams."""
    requests = calibration_requests("m")
    short, long = json.loads(requests.short_length), json.loads(requests.long_length)
    assert (short.pop("max_tokens"), long.pop("max_tokens")) == (4, 16)
    assert short == long
    assert json.loads(requests.cancelled)["stream"] is True
    assert "stream" not in json.loads(requests.stop)
