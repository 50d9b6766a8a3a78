"""Reading and preparing a client's body: what is refused, what is spliced, and that nothing else changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.engine.endpoints import ENDPOINTS
from basert_fleet.engine.request import DECISIVE, InvalidRequest, Peek, peek, prepare

CHAT = "/v1/chat/completions"
JSON = "application/json"
TOOL = {"type": "function", "function": {"name": "lookup_key", "parameters": {"type": "object"}}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
extra_members = st.dictionaries(st.text().filter(lambda name: name not in DECISIVE), json_values, max_size=5)


def body_of(**members):
    """Return a request body."""
    return json.dumps(members).encode()


def test_peek_reads_what_places_a_request():
    """Model and stream are read; absent and null are the same."""
    tools = body_of(model="m", stream=True, tools=[TOOL], response_format={"type": "json_object"})
    assert peek(tools, JSON) == Peek("m", stream=True)
    plain = body_of(model=None, stream=None, tools=None, response_format={"type": "text"})
    assert peek(plain, JSON) == peek(b"{}", JSON) == Peek(None, stream=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"model"',
        b"{} {}",
        b"{",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": ' + b'{"a":' * 100_000,
        b'{"model": "\xff"}',
        b'{"messages": [{"content": "\xff"}]}',
        b'{"mod\xffel": "m"}',
        b"\xef\xbb\xbf{}",
        '{"model": "m"}'.encode("utf-16"),
    ],
)
def test_body_that_is_no_json_object_is_refused(body):
    """Garbage, depth bombs, NaN and other encodings end as an error about the request, never as another one."""
    with pytest.raises(InvalidRequest) as refused:
        peek(body, JSON)
    assert refused.value.code == "invalid_request"
    with pytest.raises(InvalidRequest):
        prepare(CHAT, body, "r")


@pytest.mark.parametrize("key", ["model", "stream", "stream_options", "tools", "tool_choice", "response_format"])
@pytest.mark.parametrize("spelling", ["plain", "escaped"])
def test_decisive_key_may_not_occur_twice(key, spelling):
    """The engine might read the other one; an escape in the name changes nothing about that."""
    other = f"\\u{ord(key[0]):04x}{key[1:]}" if spelling == "escaped" else key
    body = f'{{"{key}": null, "x": 1, "{other}": null}}'.encode()
    with pytest.raises(InvalidRequest, match="more than once") as refused:
        peek(body, JSON)
    assert refused.value.param == key


def test_other_keys_may_occur_twice():
    """What we do not act on is the engine's to read, and a nested key is another key."""
    body = b'{"seed": 1, "seed": 2, "model": "m", "metadata": {"model": "n", "stream": 1}, "stream": true}'
    assert peek(body, JSON) == Peek("m", stream=True)


@pytest.mark.parametrize(
    ("member", "param"),
    [
        ({"model": 1}, "model"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"tools": {}}, "tools"),
        ({"response_format": "json"}, "response_format"),
    ],
)
def test_wrong_type_names_its_field(member, param):
    """A field that we act on has its documented type, or the error says which one has not."""
    with pytest.raises(InvalidRequest) as refused:
        peek(body_of(**member), JSON)
    assert refused.value.param == param


@given(
    extra=extra_members,
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
    tail=st.sampled_from(["", " \r\n\t"]),
)
def test_splice_adds_one_option_and_nothing_else(extra, indent, ascii_only, tail):
    """The engine gets the client's own text, with usage asked for before the last brace."""
    try:
        body = (json.dumps({"stream": True} | extra, indent=indent, ensure_ascii=ascii_only) + tail).encode()
    except UnicodeEncodeError:
        return  # a lone surrogate has no UTF-8
    if ascii_only and any(0xD800 <= ord(letter) <= 0xDFFF for letter in repr(extra)):
        return
    prepared = prepare(CHAT, body, "r")
    assert json.loads(prepared.body) == {"stream": True} | extra | {"stream_options": {"include_usage": True}}
    assert prepared.body.startswith(body[: body.rindex(b"}")])
    assert prepared.strip_usage


@given(extra=extra_members, options=st.dictionaries(st.text(st.characters(codec="utf-8")), json_values, max_size=3))
def test_own_stream_options_are_kept(extra, options):
    """Options that the client sent stay, usage is asked for, and whether the client asked is remembered."""
    options = {"chunk_size": 3} | {key: value for key, value in options.items() if key != "include_usage"}
    try:
        body = json.dumps({"stream_options": options, "stream": True} | extra, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    prepared = prepare(CHAT, body, "r")
    assert json.loads(prepared.body)["stream_options"] == options | {"include_usage": True}
    assert {key: value for key, value in json.loads(prepared.body).items() if key != "stream_options"} == {
        "stream": True
    } | extra
    assert prepared.strip_usage


def test_client_that_asks_for_usage_gets_it():
    """A body that asks for usage already goes as it is, and usage is not taken out again."""
    body = body_of(stream=True, stream_options={"include_usage": True})
    prepared = prepare(CHAT, body, "r")
    assert (prepared.body, prepared.strip_usage) == (body, False)
    assert prepare(CHAT, body_of(stream=True, stream_options=None), "r").strip_usage


def test_only_streams_are_spliced():
    """A request that does not stream, or cannot, goes as it is."""
    for path, body in [(CHAT, body_of(stream=False)), ("/v1/embeddings", body_of(stream=True, input="x"))]:
        prepared = prepare(path, body, "r")
        assert (prepared.body, prepared.stream, prepared.strip_usage) == (body, False, False)


def test_wrong_stream_options_are_refused():
    """stream_options that are no object cannot be extended."""
    with pytest.raises(InvalidRequest) as refused:
        prepare(CHAT, body_of(stream=True, stream_options=[1]), "r")
    assert refused.value.param == "stream_options"


def test_prepared_knows_its_tools_and_schema():
    """What the reader of the response needs comes with the request."""
    prepared = prepare(CHAT, body_of(tools=[TOOL], response_format={"type": "json_schema"}), "r")
    assert set(prepared.tools.schemas) == {"lookup_key"}
    assert prepared.structured
    assert prepared.request_id == "r"


def test_prompt_is_estimated_only_where_size_tells():
    """Text gives an estimate in the prompt's order; pictures, sound and embeddings give none."""
    text = prepare(CHAT, body_of(messages=[{"role": "user", "content": "word " * 400}]), "r")
    assert 400 <= text.expected_prompt_tokens <= 600
    picture = body_of(messages=[{"content": [{"type": "image_url", "image_url": {"url": "data:..."}}]}])
    assert prepare(CHAT, picture, "r").expected_prompt_tokens is None
    assert prepare("/v1/embeddings", body_of(input="word " * 400), "r").expected_prompt_tokens is None


def test_unlisted_endpoint_is_a_bug():
    """A path that is not on the list never reaches an engine by way of this room."""
    assert "/v1/models/load" not in ENDPOINTS
    with pytest.raises(KeyError):
        prepare("/v1/models/load", b"{}", "r")
