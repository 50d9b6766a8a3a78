"""What a prompt says that somebody else rendered: the last message, the tools, and how a call is to be written.

Read as a model would: from the ChatML turns and the `<tools>` block that Qwen's and Hermes's templates write. A prompt
without turns is one text, as ever.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_TOOL_BLOCK = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_TOOL_NAME = re.compile(r'"name"\s*:\s*"(\w+)"|<function>\s*<name>(\w+)</name>')
_XML_CALL, _OPEN_THOUGHT, _TOOL_RESPONSE = "<function=", "<think>", "<tool_response>"


class CallForm(Enum):
    """How a model writes a call into its text."""

    JSON = "a JSON object, as Hermes, Qwen2.5 and Qwen3 do"
    XML = "a function with its parameters in tags, as Qwen3-Coder and Qwen3.6 do"


class RenderedPrompt(NamedTuple):
    """What there is to answer."""

    content: str  # of the last message; of a prompt without turns, all of it
    request: str  # where calls may be asked for; empty after a tool's response
    tools: frozenset[str] = frozenset()
    form: CallForm = CallForm.JSON
    is_thinking: bool = False  # the prompt has opened the model's thought


def read_prompt(prompt: str) -> RenderedPrompt:
    """Read a completion's prompt."""
    turns = _TURN.findall(prompt)
    introduction = next((text for _, text in turns if _TOOL_BLOCK.search(text)), "" if turns else prompt)
    names = [name for block in _TOOL_BLOCK.findall(introduction) for name in _TOOL_NAME.findall(block)]
    tools = frozenset(json_name or xml_name for json_name, xml_name in names)
    form = CallForm.XML if _XML_CALL in introduction and tools else CallForm.JSON
    if not turns:
        return RenderedPrompt(prompt, _TOOL_BLOCK.sub("", prompt), tools, form)
    role, content = turns[-1]
    answers_user = role == "user" and not content.lstrip().startswith(_TOOL_RESPONSE)
    is_thinking = prompt.rstrip().endswith(_OPEN_THOUGHT)
    return RenderedPrompt(content, content if answers_user else "", tools, form, is_thinking)
