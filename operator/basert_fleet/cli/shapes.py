"""Which requests `check` sends, in which order, and what each must be answered with.

The shapes are those of the bug report (docs/background.md): its controls first, since they were right on a broken
build as well, then what broke it. Decides nothing about answers: `answers` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from basert_fleet.engine.canary import CHAT_PATH, LOOKUP_TOOL, lookup_key_request

SCHEMAS, COMPLETIONS_SHAPE, CJK, FRESH, SEQUENTIAL, CONCURRENT = (
    "schemas", "completions", "cjk", "fresh", "sequential", "concurrent",
)  # fmt: skip
"""Names of shapes; of CONCURRENT there is one for each size."""
COMPLETIONS_PATH = "/v1/completions"
FRESH_REQUESTS = 3
"""Report, control 1: three of three were right."""
COMPLETIONS = 3
"""Report, control 3: three of three were right."""
MAX_TOKENS = 2048
"""Report: the limit that its runaway answers reached."""
CALL_MAX_TOKENS = 512
"""Chosen: room for a call by a model that writes some words before it; the report's took up to 142 tokens."""
PLAIN_MAX_TOKENS = 32
"""Chosen: the plain chat is there for its prompt, not for its answer."""
CHINESE_MAX_TOKENS = 512
"""Report, control 4."""
DEFAULT_SEQUENTIAL = 12
"""Chosen: twice as many as the report's build survived."""
DEFAULT_CONCURRENCY = (2, 4)
"""Report: both were wrong altogether."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool with one argument, a string."""

    tool: str
    parameter: str
    value: str

    def __str__(self) -> str:
        """Write it as the report does."""
        return f'{self.tool}({{"{self.parameter}":"{self.value}"}})'


@dataclass(frozen=True, slots=True)
class Question:
    """One request of a shape."""

    label: str
    """What a person calls it; the value that was asked for, if a call was."""
    path: str
    body: bytes
    wanted: Call | None
    """The only right answer; None: any text is taken that is whole, for nobody knows a model's words."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of requests that is judged as one."""

    name: str
    """Stable: the JSON output names it."""
    title: str
    together: int
    """How many are sent at once; 1 sends each after the answer before it."""
    questions: tuple[Question, ...]


def seed_shapes(model: str, *, sequential: int, concurrency: Sequence[int]) -> tuple[Shape, ...]:
    """Return all shapes in the order in which they are sent: the less a shape can spoil a server, the earlier."""
    return (
        _schemas(model),
        _completions(model),
        _cjk(model),
        Shape(SEQUENTIAL, "one after another", 1, tuple(_lookups("seq", model, sequential))),
        *(
            Shape(f"{CONCURRENT}-{size}", f"{size} at once", size, tuple(_lookups(f"c{size}", model, size)))
            for size in concurrency
        ),
    )


def fresh_shape(model: str) -> Shape:
    """Make the report's control 1; a restart of the server belongs before each of its requests."""
    questions = tuple(_lookups("fresh", model, FRESH_REQUESTS))
    return Shape(FRESH, "control: a fresh process for each request", 1, questions)


def _lookups(prefix: str, model: str, count: int) -> list[Question]:
    return [
        Question(
            label=f"{prefix}-{number}",
            path=CHAT_PATH,
            body=lookup_key_request(f"{prefix}-{number}", model, max_tokens=MAX_TOKENS),
            wanted=Call("lookup_key", "key", f"{prefix}-{number}"),
        )
        for number in range(count)
    ]


def _schemas(model: str) -> Shape:
    """Make the report's control 2: another schema, or a plain chat, between tool requests."""
    questions = (
        _call(Call("alpha_lookup", "id", "A1"), model),
        _text("plain", "Reply with the word ok.", model, PLAIN_MAX_TOKENS),
        _call(Call("beta_fetch", "city", "Paris"), model),
        _call(Call("beta_fetch", "city", "Rome"), model),
    )
    return Shape(SCHEMAS, "control: tools separated by a plain chat", 1, questions)


def _completions(model: str) -> Shape:
    """Make the report's control 3: the prompt rendered and the call parsed by the client."""
    calls = [Call("lookup_key", "key", f"text-{number}") for number in range(COMPLETIONS)]
    return Shape(COMPLETIONS_SHAPE, "control: /v1/completions", 1, tuple(_completion(call, model) for call in calls))


def _cjk(model: str) -> Shape:
    """Make the report's control 4: texts that a broken tokenizer would cut inside a character."""
    questions = (
        _text("japanese", "「桜の」に続けて、春の短い文を書いてください。", model, CHINESE_MAX_TOKENS),
        _text("chinese", "请用中文写一篇五百字左右的文章,介绍长城的历史。", model, CHINESE_MAX_TOKENS),
    )
    return Shape(CJK, "control: Japanese and Chinese texts", 1, questions)


def _call(wanted: Call, model: str) -> Question:
    tool = {
        "type": "function",
        "function": {
            "name": wanted.tool,
            "description": wanted.tool.replace("_", " ").capitalize(),
            "parameters": {
                "type": "object",
                "properties": {wanted.parameter: {"type": "string"}},
                "required": [wanted.parameter],
            },
        },
    }
    body = _chat(_sentence(wanted), model, CALL_MAX_TOKENS) | {"tools": [tool]}
    return Question(wanted.value, CHAT_PATH, msgspec.json.encode(body), wanted)


def _text(label: str, content: str, model: str, max_tokens: int) -> Question:
    return Question(label, CHAT_PATH, msgspec.json.encode(_chat(content, model, max_tokens)), None)


def _chat(content: str, model: str, max_tokens: int) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def _completion(wanted: Call, model: str) -> Question:
    body = {"model": model, "prompt": _rendered(wanted), "max_tokens": CALL_MAX_TOKENS, "temperature": 0}
    return Question(wanted.value, COMPLETIONS_PATH, msgspec.json.encode(body), wanted)


def _rendered(wanted: Call) -> str:
    """Render the chat as the templates of Qwen's models do, thinking switched off."""
    return (
        "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        f"{msgspec.json.encode(LOOKUP_TOOL).decode()}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        f"<|im_start|>user\n{_sentence(wanted)} Answer with the call alone.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def _sentence(wanted: Call) -> str:
    return f"Call {wanted.tool} with {wanted.parameter} {wanted.value}."
