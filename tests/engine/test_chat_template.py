"""What a template makes of a conversation, to the byte, and what bounds it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.engine import chat_template
from basert_fleet.engine.chat_template import ChatTemplate, TemplateInvalid, TemplateRefused
from support.weather_chat import ASKED, CALLING, CONVERSATION, TOKENS

TEMPLATES = Path(__file__).parent / "templates"
ONE_CALL = [*CONVERSATION["messages"][:2], CALLING | {"tool_calls": CALLING["tool_calls"][:1]}]
PLAIN = [ASKED, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "And then?"}]


def template(name: str) -> ChatTemplate:
    """Compile one of the tests' templates, on a day that does not change."""
    source = (TEMPLATES / f"{name}.jinja").read_text()
    return ChatTemplate(source, TOKENS, now=lambda: datetime(2026, 2, 3, tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("qwen_xml", CONVERSATION),
        ("hermes_json", CONVERSATION),
        ("llama_dated", CONVERSATION | {"messages": [*ONE_CALL, CONVERSATION["messages"][3]], "tools": None}),
        ("mistral_strict", {"messages": PLAIN}),
    ],
)
def test_prompt_is_the_golden_one(name, variables):
    """White space, quotes and characters beyond ASCII are as the family's template writes them."""
    assert template(name).render(variables) == (TEMPLATES / f"{name}.txt").read_text()


def test_clients_variables_reach_the_template():
    """`enable_thinking: false` closes the tag that the prompt would leave open."""
    variables = {"messages": [ASKED], "add_generation_prompt": True}
    assert template("qwen_xml").render(variables).endswith("<|im_start|>assistant\n<think>\n")
    prompt = template("qwen_xml").render(variables | {"enable_thinking": False})
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_variables_replace_nothing_of_the_templates():
    """A client that may set variables can take away neither a check nor a token."""
    checked = "{{ bos_token }}{% macro check() %}{{ eos_token }}{{ raise_exception('no') }}{% endmacro %}{{ check() }}"
    with pytest.raises(TemplateRefused, match=": no"):
        ChatTemplate(checked, TOKENS).render({"raise_exception": str, "range": 3})
    shown = ChatTemplate("{{ bos_token }}{% macro end() %}{{ eos_token }}{% endmacro %}{{ end() }}", TOKENS)
    assert shown.render({"bos_token": "", "eos_token": ""}) == "<s></s>"


@pytest.mark.parametrize(
    ("name", "messages", "said"),
    [
        ("mistral_strict", [ASKED, ASKED], "Roles must alternate"),
        ("llama_dated", CONVERSATION["messages"], "Only one call at a time"),
        ("llama_dated", [], "no element 0"),
        ("qwen_xml", [CALLING], "needs a message of the user"),
        ("hermes_json", 3, "'int' object is not iterable"),
    ],
)
def test_refusal_is_in_the_templates_own_words(name, messages, said):
    """What a template raises, and what it stumbles over, is told to whoever sent the messages."""
    with pytest.raises(TemplateRefused, match=said):
        template(name).render({"messages": messages})


def test_generation_blocks_mean_nothing():
    """They mark what a model is trained on; some published templates have them."""
    marked = "{% for m in messages %}{% generation %}[{{ m }}]{% endgeneration %}{% endfor %}"
    assert ChatTemplate(marked, {}).render({"messages": ["a", "b"]}) == "[a][b]"


def test_json_keeps_what_html_would_escape():
    """A model reads `<` and `&`, and the options of transformers' filter are there."""
    source = "{{ x | tojson }} {{ x | tojson(indent=1) }} {{ x | tojson(separators=(',', ':'), sort_keys=true) }}"
    assert ChatTemplate(source, {}).render({"x": {"b": "<é&'>", "a": 1}}) == (
        """{"b": "<é&'>", "a": 1} {\n "b": "<é&'>",\n "a": 1\n} {"a":1,"b":"<é&'>"}"""
    )


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(1000) %}{% for b in range(1000) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(30) }}",
    ],
)
def test_rendering_ends_when_its_time_is_over(source):
    """Loops and macros that print nothing are bounded too."""
    seconds = count()
    with pytest.raises(TemplateRefused, match="more than 5 s of CPU time"):
        ChatTemplate(source, {}, cpu_seconds=lambda: next(seconds)).render({})


def test_prompt_is_bounded(monkeypatch):
    """A template that repeats its input does not eat the memory."""
    monkeypatch.setattr(chat_template, "MAX_PROMPT_BYTES", 100)
    with pytest.raises(TemplateRefused, match="longer than 100 bytes"):
        ChatTemplate("{% for m in range(50) %}東{% endfor %}", {}).render({})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{% for a in range(999999) %}{% endfor %}",
    ],
)
def test_sandbox_holds(source):
    """A template neither changes what it is given nor reaches what is behind it."""
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}).render({"messages": []})


def test_text_that_is_no_template_is_refused_with_its_line():
    """An operator is told where to look."""
    with pytest.raises(TemplateInvalid, match="line 2"):
        ChatTemplate("a\n{% for %}", {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["qwen_xml", "hermes_json", "llama_dated", "mistral_strict"]),
    st.fixed_dictionaries({}, optional={"messages": JSON, "tools": JSON, "add_generation_prompt": JSON}),
)
def test_no_request_makes_a_template_fail_otherwise(name, variables):
    """Whatever a client sends renders or is refused."""
    with suppress(TemplateRefused):
        assert isinstance(template(name).render(variables), str)
