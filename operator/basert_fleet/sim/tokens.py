"""How many tokens a request has: the report's 274 for the report's request, plausible numbers for all others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CHARACTERS_PER_TOKEN = 4  # chosen; with it the report's message of 31 characters and its end mark are its 9 tokens
TEMPLATE_TOKENS = 8  # chosen: what a chat template adds around the messages
TOOL_PREAMBLE_TOKENS = 214  # chosen, so that the report's request has the report's 274 prompt tokens


def text_tokens(text: str) -> int:
    """Return the tokens of a text."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def message_tokens(content: str) -> int:
    """Return the tokens of one rendered message, its end mark included."""
    return text_tokens(content) + 1


def chat_tokens(contents: Sequence[str], tools: Sequence[object]) -> int:
    """Return the prompt tokens of a chat that is rendered anew, without any prefix reuse."""
    total = TEMPLATE_TOKENS + sum(map(message_tokens, contents))
    if tools:
        total += TOOL_PREAMBLE_TOKENS + text_tokens(json.dumps(tools, separators=(",", ":")))
    return total
