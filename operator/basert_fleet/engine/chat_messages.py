"""What a chat template is given of a client's request.

OpenAI's form and the templates' differ in a few places, and every server that renders closes them alike: arguments of
earlier calls become objects, text parts one text, no content an empty one, left out parameters none, and a developer
is a system. What cannot be rendered is refused by name, never left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from basert_fleet.engine.request import InvalidRequest, typed
from basert_fleet.engine.toolcalls import Choice, ToolSet

_MESSAGES = msgspec.json.Decoder(list[dict[str, Any]])
_TOOLS = msgspec.json.Decoder(list[dict[str, Any]] | None)
_VARIABLES = msgspec.json.Decoder(dict[str, Any] | None)
NO_PARAMETERS = {"type": "object", "properties": {}}
"""What OpenAI takes a function for that leaves its parameters out; templates go through them."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""The names under which clients send back what a model thought, and under which templates look for it."""
PART_BREAK = "\n"
"""Between the text parts of one message, as other servers that render join them."""


def template_variables(fields: Mapping[str, msgspec.Raw], tools: ToolSet) -> dict[str, Any]:
    """Return the variables of a chat template: the client's own (`chat_template_kwargs`), then those that are fixed.

    Raises:
        InvalidRequest: messages or tools are not as OpenAI's, or hold more than text.
    """
    messages = typed(fields, "messages", _MESSAGES)
    if not messages:
        raise InvalidRequest("'messages' must be a list of at least one message.", "messages")
    return {
        **(typed(fields, "chat_template_kwargs", _VARIABLES) or {}),
        "messages": [_message(message) for message in messages],
        "tools": _tools(fields, tools),
        "add_generation_prompt": True,
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequest("Each message needs a 'role'.", "messages")
    rendered = {**message, "role": "system" if role == "developer" else role, "content": _text(message.get("content"))}
    thought = next((message[name] for name in THOUGHTS if message.get(name)), None)
    if thought is not None:
        rendered |= dict.fromkeys(THOUGHTS, thought)
    calls = message.get("tool_calls")
    if calls is not None:
        rendered["tool_calls"] = _calls(calls)
    return rendered


def _text(content: Any) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case [*parts]:
            return PART_BREAK.join(map(_part, parts))
        case _:
            raise InvalidRequest("'content' must be a text or a list of text parts.", "messages")


def _part(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            raise InvalidRequest("A pool with server.chat: rendered takes text only: no images or audio.", "messages")


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Return earlier tool calls with their arguments as objects; what is none stays for the template to judge."""
    if not isinstance(calls, list):
        raise InvalidRequest("'tool_calls' must be a list.", "messages")
    return [_call(call) for call in calls]


def _call(call: Any) -> dict[str, Any]:
    match call:
        case {"function": {"name": str(), **_rest} as function}:
            return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}
        case _:
            raise InvalidRequest("Each of 'tool_calls' needs a 'function' with a 'name'.", "messages")


def _arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _tools(fields: Mapping[str, msgspec.Raw], tools: ToolSet) -> Sequence[Mapping[str, Any]] | None:
    """Return the tools that the request lets the model use; None where there are none."""
    given = typed(fields, "tools", _TOOLS)
    if not given or tools.choice is Choice.NONE:
        return None
    for tool in given:
        match tool:
            case {"function": {"name": str()}}:
                continue
            case _:
                raise InvalidRequest("Each tool needs a 'function' with a 'name'.", "tools")
    allowed = [_with_parameters(tool) for tool in given if tool["function"]["name"] in tools.schemas]
    if not allowed:
        raise InvalidRequest("'tool_choice' names a tool that is not among 'tools'.", "tool_choice")
    return allowed


def _with_parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool["function"]
    return tool if "parameters" in function else {**tool, "function": {**function, "parameters": NO_PARAMETERS}}
