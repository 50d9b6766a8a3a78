"""The bodies of the bug report's requests."""

from __future__ import annotations

import json
from typing import Any

LOOKUP_KEY = {
    "type": "function",
    "function": {
        "name": "lookup_key",
        "description": "Lookup a key",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


def lookup(key: str, **more: Any) -> dict[str, Any]:
    """Return the report's tool request for a key."""
    return {
        "model": "Qwen/Qwen3.6-35B-A3B",
        "messages": [{"role": "user", "content": f"Call lookup_key with key {key}."}],
        "tools": [LOOKUP_KEY],
        "max_tokens": 2048,
        "temperature": 0,
    } | more


def plain(text: str, **more: Any) -> dict[str, Any]:
    """Return a chat request without tools."""
    return {"model": "m", "messages": [{"role": "user", "content": text}]} | more


def called(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of a whole chat answer."""
    calls = answer["choices"][0]["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def finish(answer: dict[str, Any]) -> str:
    """Return the finish_reason of a whole answer."""
    return str(answer["choices"][0]["finish_reason"])
