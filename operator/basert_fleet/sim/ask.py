"""What a request asks of the engine, read from its body: the prompt, the calls it names, its limits.

Reading is strict about what the emulator uses and blind to the rest (temperature, seed, stop and the like).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import NamedTuple

from basert_fleet.sim.directives import NO_DIRECTIVES, Directives, read_directives, without_directives
from basert_fleet.sim.errors import BadRequest, ContextExceeded
from basert_fleet.sim.rendered import CallForm, read_prompt
from basert_fleet.sim.tokens import chat_tokens, message_tokens, text_tokens

_CALL = re.compile(r"\bCall (\w+) with (\w+) (.+?)\.(?=\s|$)")

Body = Mapping[str, object]


class Kind(StrEnum):
    """What kind of generation a request asks for, as the journal names it."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"


class ToolCall(NamedTuple):
    """One call with the one argument that a `Call NAME with PARAM VALUE.` sentence can give."""

    name: str
    parameter: str
    value: str

    def arguments(self) -> str:
        """Return the arguments as the JSON text of an OpenAI tool call."""
        return json.dumps({self.parameter: self.value}, ensure_ascii=False, separators=(",", ":"))


class Limits(NamedTuple):
    """The command line's part in reading a request."""

    max_context: int
    max_tokens: int
    directives: bool


class Ask(NamedTuple):
    """One request for a generation, reduced to what decides its answer."""

    kind: Kind
    content: str  # of the last message, as sent: the echo is its hash
    prompt_tokens: int  # rendered anew
    max_tokens: int = 0
    has_tools: bool = False
    calls: tuple[ToolCall, ...] = ()
    schema: object = None  # of response_format, or None
    prefix: str | None = None  # names the rendered prefix up to the last user message; None is never reused
    suffix_tokens: int = 0  # what is left of the prompt when the prefix is reused
    directives: Directives = NO_DIRECTIVES
    call_form: CallForm = CallForm.JSON  # how a completion writes its calls
    is_thinking: bool = False  # a completion goes on with a thought that its prompt has opened


def read_chat(body: Body, limits: Limits) -> Ask:
    """Read a /v1/chat/completions body."""
    messages = _list_of_objects(body, "messages")
    if not messages:
        raise BadRequest("'messages' must have at least one message.", "messages")
    contents = [_content(message) for message in messages]
    tools = _list_of_objects(body, "tools") if body.get("tools") is not None else []
    last_user = max((n for n, message in enumerate(messages) if message.get("role") == "user"), default=0)
    ask = Ask(
        kind=Kind.CHAT,
        content=contents[-1],
        prompt_tokens=chat_tokens(contents, tools),
        has_tools=bool(tools),
        prefix=_digest([tools, messages[:last_user]]) if tools else None,
        suffix_tokens=sum(map(message_tokens, contents[last_user:])),
        schema=_schema(body.get("response_format")),
        directives=read_directives(contents[-1]) if limits.directives else NO_DIRECTIVES,
    )
    if last_user == len(messages) - 1 and body.get("tool_choice") != "none":
        ask = ask._replace(calls=named_calls(ask.content, set(map(_tool_name, tools))))
    return _within_limits(ask, body, limits)


def read_completion(body: Body, limits: Limits) -> Ask:
    """Read a /v1/completions body; its prompt may be a rendered chat, as Qwen's and Hermes's templates make it."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("'prompt' must be one string.", "prompt")
    rendered = read_prompt(prompt)
    ask = Ask(
        kind=Kind.COMPLETION,
        content=rendered.content,
        prompt_tokens=text_tokens(prompt),
        has_tools=bool(rendered.tools),
        calls=named_calls(rendered.request, rendered.tools),
        directives=read_directives(rendered.content) if limits.directives else NO_DIRECTIVES,
        call_form=rendered.form,
        is_thinking=rendered.is_thinking,
    )
    return _within_limits(ask, body, limits)


def read_texts(kind: Kind, texts: Sequence[str], limits: Limits) -> Ask:
    """Make an ask that generates no tokens (embedding, rerank, transcription) of the texts it works on."""
    content = "\n".join(texts)
    directives = read_directives(content) if limits.directives else NO_DIRECTIVES
    ask = Ask(kind, content, prompt_tokens=sum(map(text_tokens, texts)), directives=directives)
    return _within_limits(ask, {}, limits)


def named_calls(content: str, tools: AbstractSet[str]) -> tuple[ToolCall, ...]:
    """Return the calls that a text names and the tools allow; one unknown name makes it a plain text request."""
    calls = tuple(ToolCall(*found) for found in _CALL.findall(without_directives(content)))
    return calls if all(call.name in tools for call in calls) else ()


def string_list(body: Body, key: str) -> list[str]:
    """Return a field that holds one string or a list of strings."""
    value = body.get(key)
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        return value
    raise BadRequest(f"'{key}' must be a string or a list of strings.", key)


def _within_limits(ask: Ask, body: Body, limits: Limits) -> Ask:
    if ask.prompt_tokens > limits.max_context:
        raise ContextExceeded(ask.prompt_tokens, limits.max_context)
    wanted = body.get("max_completion_tokens", body.get("max_tokens"))
    if wanted is None:
        wanted = limits.max_tokens
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise BadRequest("'max_tokens' must be a whole number of at least 1.", "max_tokens")
    return ask._replace(max_tokens=min(wanted, max(1, limits.max_context - ask.prompt_tokens)))


def _list_of_objects(body: Body, key: str) -> list[Mapping[str, object]]:
    value = body.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadRequest(f"'{key}' must be a list of objects.", key)
    return value


def _content(message: Mapping[str, object]) -> str:
    """Return a message's text; parts that are no text (images) are left out."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text", "") for part in content if isinstance(part, dict)]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise BadRequest("'content' must be a string or a list of parts.", "messages")


def _tool_name(tool: Mapping[str, object]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise BadRequest("Each tool needs a 'function' with a 'name'.", "tools")
    return name


def _schema(response_format: object) -> object:
    if not isinstance(response_format, dict):
        return None
    match response_format.get("type"):
        case "json_schema":
            named = response_format.get("json_schema")
            return named.get("schema", {}) if isinstance(named, dict) else {}
        case "json_object":
            return {}
        case _:
            return None


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
