"""A conversation with tools, as a chat template is given it, with all that templates differ in."""

from __future__ import annotations

from typing import Any

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tells "now" & <later>',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ASKED = {"role": "user", "content": "Wie wird's in Köln & 東京? <b>"}
CALLING: dict[str, Any] = {
    "role": "assistant",
    "content": "I look.",
    "reasoning_content": "Two cities.",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}},
        {"id": "2", "type": "function", "function": {"name": "weather", "arguments": {"city": "東京 <1>"}}},
    ],
}
CONVERSATION: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "  Be brief.  "},
        ASKED,
        CALLING,
        {"role": "tool", "tool_call_id": "1", "content": '{"rain": true}'},
        {"role": "tool", "tool_call_id": "2", "content": "sun"},
    ],
    "tools": [WEATHER],
    "add_generation_prompt": True,
}
