"""What prompt a model's own chat template makes of a conversation.

Templates are written for Hugging Face's transformers, so they get what its `apply_chat_template` gives them: a
sandboxed Jinja that changes nothing, blocks trimmed, `tojson` without HTML escapes, `raise_exception`, `strftime_now`,
`break` and `continue`, and `generation` blocks, which mark text for training and mean nothing here.

A template is the operator's own file and trusted as the model is; what it is fed comes from clients. So rendering is
bounded in what a conversation can make grow: CPU time, looked at in every turn of a loop and every macro, and output.
A template that is made to do harm within one expression is not stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from basert_fleet.core.errors import FleetError

MAX_SECONDS = 5.0
"""Chosen, and of CPU, so that a busy machine fails no request: the longest conversations take well under a second."""
MAX_PROMPT_BYTES = 64 * 1024**2
"""Chosen: above any context that an engine serves, and a bound for a template that repeats its input."""
_BUDGET = " budget"
"""Under this name a rendering's budget travels: no template can say it, no client can replace it."""

RAISED_BY_TEMPLATES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an expression can raise when a conversation is not as the template expects."""


class TemplateRefused(FleetError):
    """The template cannot render this conversation: by its own word, or because something is not as it expects."""

    code = "invalid_request"


class TemplateInvalid(FleetError):
    """The text is no template."""

    code = "template_invalid"


class ChatTemplate:
    """One template, ready to render; renderings in several threads do not touch each other."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        """Compile a template.

        Args:
            source: its text.
            special_tokens: what it may name besides the conversation, such as `bos_token`.
            now: the clock of `strftime_now`; local time, as transformers has it.
            cpu_seconds: the clock of the time limit.

        Raises:
            TemplateInvalid: with the line that is wrong.
        """
        self.source = source
        self._cpu_seconds = cpu_seconds
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        self._fixed = environment.globals | {
            "raise_exception": _raise,
            "strftime_now": lambda form: now().strftime(form),
        }
        self._fixed |= special_tokens
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateInvalid(f"line {error.lineno}: {error.message}") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the prompt. Variables replace neither a special token nor a function of the template's.

        Raises:
            TemplateRefused: with the template's own message if it has one, or with the bound that was reached.
        """
        budget = _Budget(self._cpu_seconds, self._cpu_seconds() + MAX_SECONDS)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate({**variables, **self._fixed, _BUDGET: budget}):
                size += len(piece.encode("utf-8", "surrogatepass"))
                if size > MAX_PROMPT_BYTES:
                    raise TemplateRefused(f"The prompt is longer than {MAX_PROMPT_BYTES} bytes.")
                pieces.append(piece)
        except RAISED_BY_TEMPLATES as error:
            raise TemplateRefused(f"The model's chat template cannot render these messages: {error}") from error
        return "".join(pieces)


class _GenerationBlock(Extension):
    """`{% generation %}` … `{% endgeneration %}`: what is between, and nothing else."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # never changed, so it need not be a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Budget:
    """How much CPU time one rendering has left."""

    def __init__(self, clock: Callable[[], float], until: float) -> None:
        self._clock, self._until = clock, until

    def spend(self) -> None:
        if self._clock() > self._until:
            raise TemplateRefused(f"Rendering the messages took more than {MAX_SECONDS:g} s of CPU time.")


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox whose loops and macros look at their budget each time round."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro] = [*template.find_all(nodes.For), *template.find_all(nodes.Macro)]
        for repeating in repeated:
            look = nodes.Call(
                nodes.EnvironmentAttribute("spend"), [nodes.ContextReference()], [], None, None, lineno=repeating.lineno
            )
            repeating.body.insert(0, nodes.ExprStmt(look, lineno=repeating.lineno).set_environment(self))
        return template

    @staticmethod
    def spend(context: Context) -> None:
        """Look at the budget of the rendering that this context belongs to."""
        context.parent[_BUDGET].spend()


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the order in which templates may give them
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - as above
) -> str:
    """Return JSON as it is: Jinja's own filter escapes HTML, which a model would read."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
