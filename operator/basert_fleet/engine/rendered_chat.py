"""A chat request turned into a completion request: the one place where it is done.

The prompt is made by the model's chat template, everything that steers sampling stays as the client sent it, and what
cannot be kept outside the engine is refused by name. How the answer is turned back is in `chat_from_completion`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from basert_fleet.core.api import ModelSpec, ServerSpec, ToolDialect
from basert_fleet.engine.canary import CHAT_PATH
from basert_fleet.engine.chat_messages import template_variables
from basert_fleet.engine.chat_template import ChatTemplate, TemplateRefused
from basert_fleet.engine.dialects import Dialect, dialect_of
from basert_fleet.engine.endpoints import ENDPOINTS
from basert_fleet.engine.request import COMPLETION_PATH, InvalidRequest, Prepared, prepare, read_object, typed
from basert_fleet.engine.spoken_answer import THINK_CLOSE, THINK_OPEN, Speech
from basert_fleet.engine.template_files import ModelTemplates, load_templates
from basert_fleet.engine.toolcalls import NO_TOOLS, ToolSet

RENDERED_AWAY = frozenset(
    {
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "response_format"),
        *("logprobs", "top_logprobs", "functions", "function_call", "max_completion_tokens", "prompt"),
    }
)
"""Members of a chat request that a completion must not have: rendered, renamed, or refused unless empty."""
REFUSED: Mapping[str, str] = {
    "functions": "Use 'tools'.",
    "function_call": "Use 'tool_choice'.",
    "logprobs": "A completion's are no chat's.",
    "top_logprobs": "A completion's are no chat's.",
    "chat_template": "The template is the operator's.",
    "prompt": "A chat has 'messages'.",
}
"""Members that are not honoured, and what to do instead."""
MAX_STOPS = 4
"""OpenAI's limit for `stop`; an engine may refuse more."""

_ANY = msgspec.json.Decoder()
_FORMAT = msgspec.json.Decoder(dict[str, Any] | None)
_STOP = msgspec.json.Decoder(str | list[str] | None)

_DIALECTS = {ToolDialect.QWEN: Dialect.QWEN, ToolDialect.HERMES: Dialect.HERMES}


class RenderedChat:
    """Renders the chats of one process. It holds no state of a request."""

    def __init__(self, templates: ModelTemplates, dialect: ToolDialect) -> None:
        self._templates = templates
        self._dialect = _DIALECTS.get(dialect) or dialect_of(templates.with_tools.source)

    @classmethod
    def load(cls, server: ServerSpec, model: ModelSpec) -> RenderedChat:
        """Read the pool's template.

        Raises:
            TemplateMissing: there is none that can be used.
        """
        return cls(load_templates(server, model), server.tool_dialect)

    def prepare(self, body: bytes, request_id: str) -> Prepared:
        """Make a client's chat ready for the engine as a completion; takes CPU time, so not for an event loop.

        Raises:
            InvalidRequest: as for `request.prepare`; or the template cannot render it, or it asks for what a rendered
                pool has not.
        """
        fields = read_object(body)
        _refuse_what_is_lost(fields)
        tools = ToolSet.read(fields)
        variables = template_variables(fields, tools)
        if variables["tools"] is None:
            tools = NO_TOOLS
        elif self._dialect is None:
            raise InvalidRequest(
                "This model's chat template teaches no tool calls that can be read here; server.toolDialect may tell "
                "how the model writes them.",
                "tools",
            )
        template = self._templates.with_tools if tools else self._templates.plain
        prompt = _rendered(template, variables)
        prepared = prepare(COMPLETION_PATH, msgspec.json.encode(self._completion(fields, prompt)), request_id)
        speech = Speech(
            dialect=self._dialect if tools else None,
            tools=tools,
            thinks=THINK_CLOSE in template.source,
            is_thinking=prompt.rstrip().endswith(THINK_OPEN),
        )
        return replace(prepared, endpoint=ENDPOINTS[CHAT_PATH], tools=tools, speech=speech)

    def _completion(self, fields: Mapping[str, msgspec.Raw], prompt: str) -> Mapping[str, Any]:
        completion: dict[str, Any] = {name: value for name, value in fields.items() if name not in RENDERED_AWAY}
        if "max_completion_tokens" in fields:
            completion["max_tokens"] = fields["max_completion_tokens"]
        stops = self._stops(fields)
        if stops:
            completion["stop"] = stops
        return {**completion, "prompt": prompt}

    def _stops(self, fields: Mapping[str, msgspec.Raw]) -> list[str]:
        """Return the client's stop texts, and the end of the model's turn: a completion need not know it."""
        asked = typed(fields, "stop", _STOP) or []
        stops = [asked] if isinstance(asked, str) else asked
        end = self._templates.eos_token
        return stops if end is None or end in stops or len(stops) >= MAX_STOPS else [*stops, end]


def _rendered(template: ChatTemplate, variables: Mapping[str, Any]) -> str:
    try:
        return template.render(variables)
    except TemplateRefused as refused:
        raise InvalidRequest(str(refused), "messages") from refused


def _refuse_what_is_lost(fields: Mapping[str, msgspec.Raw]) -> None:
    for name, instead in REFUSED.items():
        if typed(fields, name, _ANY):
            raise InvalidRequest(f"'{name}' cannot be used where server.chat is rendered. {instead}", name)
    wanted = typed(fields, "response_format", _FORMAT)
    if wanted is not None and wanted.get("type") != "text":
        raise InvalidRequest(
            "'response_format' cannot be kept where server.chat is rendered: the engine would not know of it. "
            "Ask for it in the messages, or use a pool with server.chat: native.",
            "response_format",
        )
