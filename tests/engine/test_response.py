"""Reading responses: what each piece is, what is rewritten, and the facts for the judge."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.core.calibration import Ending
from basert_fleet.core.delivery import Part
from basert_fleet.core.verdict import Reason
from basert_fleet.engine import response
from basert_fleet.engine.connection import ResponseHead
from basert_fleet.engine.request import prepare
from basert_fleet.engine.response import Piece, StreamReader, WholeReader, error_body, reader_for

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "lookup_key", "parameters": {"required": ["key"]}}}
ID = "chatcmpl-request"


def prepared(path=CHAT, **members):
    """Prepare a streaming request with these members."""
    return prepare(path, json.dumps({"stream": True} | members).encode(), ID)


def head(status=200, content_type="text/event-stream"):
    """Return a response's head."""
    return ResponseHead(status, ((b"Content-Type", content_type.encode()),))


def chunk(*choices, **members):
    """Return a chat chunk as an engine writes it."""
    base = {"id": "engine-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return base | {"choices": list(choices)} | members


def choice(delta, finish=None, index=0, **members):
    """Return one choice of a chunk."""
    return {"index": index, "delta": delta, "finish_reason": finish} | members


def stream(*chunks, done=True):
    """Return the bytes of a stream."""
    events = [b"data: " + json.dumps(item, ensure_ascii=False).encode() + b"\n\n" for item in chunks]
    return b"".join(events) + (b"data: [DONE]\n\n" if done else b"")


def read(data, request=None, cuts=()):
    """Read a stream, cut at these places; return its pieces and facts."""
    reader = StreamReader(request or prepared())
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [piece for start, end in pairwise(places) for piece in reader.feed(data[start:end])]
    pieces += reader.finish()
    return pieces, reader.facts()


def events_of(pieces):
    """Return every event of the pieces as (part, decoded data)."""
    found = []
    for piece in pieces:
        assert piece.data.endswith(b"\n\n")
        for event in piece.data[:-2].split(b"\n\n"):
            data = event.removeprefix(b"data: ")
            found.append((piece.part, data if data == b"[DONE]" else json.loads(data)))
    return found


def deltas_of(pieces):
    """Return (part, delta, finish_reason) of every chunk with choices."""
    return [
        (part, item["choices"][0]["delta"], item["choices"][0]["finish_reason"])
        for part, item in events_of(pieces)
        if item != b"[DONE]" and item["choices"]
    ]


USAGE = {"prompt_tokens": 274, "completion_tokens": 142, "total_tokens": 416}
CALL = [{"index": 0, "id": "c", "type": "function", "function": {"name": "lookup_key", "arguments": '{"key":"x"}'}}]
USUAL = (
    chunk(choice({"role": "assistant", "content": ""})),
    chunk(choice({"content": "桜の🌸"})),
    chunk(choice({"tool_calls": CALL})),
    chunk(choice({}, "tool_calls")),
    chunk(usage=USAGE),
)


def test_chunks_are_told_apart():
    """Role, text, call and ending are marked as what they are, under the request's id."""
    pieces, facts = read(stream(*USUAL), prepared(tools=[TOOL], stream_options={"include_usage": True}))
    assert [part for part, _ in events_of(pieces)] == [
        *(Part.OPENING, Part.TEXT, Part.TOOL_CALL),
        *(Part.ENDING, Part.ENDING, Part.ENDING),
    ]
    items = [item for _, item in events_of(pieces)]
    assert items == [*(item | {"id": ID} for item in USUAL), b"[DONE]"]
    assert (facts.finish_reason, facts.ending) == ("tool_calls", Ending.TOOL_CALLS)
    assert (facts.prompt_tokens, facts.completion_tokens) == (274, 142)
    assert (facts.saw_done, facts.tool_problem, facts.malformed, facts.engine_error) == (True, None, None, None)


def test_usage_is_left_out_unless_asked_for():
    """Usage that only we asked for is a fact and not the client's, wherever the engine tells it."""
    with_nulls = [item | {"usage": item.get("usage")} for item in USUAL]
    with_nulls[3] |= {"usage": USAGE}
    pieces, facts = read(stream(*with_nulls), prepared(tools=[TOOL]))
    items = [item for _, item in events_of(pieces)]
    assert items == [*(item | {"id": ID} for item in USUAL[:4]), b"[DONE]"]
    assert facts.completion_tokens == 142


def test_mixed_chunk_is_split_in_order():
    """Text goes before its call, and the call before the ending; each told once."""
    mixed = chunk(
        choice(
            {"role": "assistant", "content": "a", "tool_calls": CALL}, "tool_calls", logprobs={"content": []}, extra=1
        ),
        usage=USAGE,
        timings={"ms": 1},
    )
    request = prepared(tools=[TOOL], stream_options={"include_usage": True})
    pieces, facts = read(stream(mixed), request)
    assert deltas_of(pieces) == [
        (Part.TEXT, {"role": "assistant", "content": "a"}, None),
        (Part.TOOL_CALL, {"tool_calls": CALL}, None),
        (Part.ENDING, {}, "tool_calls"),
    ]
    text, call, ending, _ = (item for _, item in events_of(pieces))
    assert text["choices"][0]["logprobs"] == {"content": []}
    assert call["choices"][0]["logprobs"] is None
    assert (ending["choices"][0]["extra"], ending["usage"], ending["timings"]) == (1, USAGE, {"ms": 1})
    assert not {"usage", "timings"} & (text.keys() | call.keys())
    assert {item["model"] for item in (text, call, ending)} == {"m"}
    assert facts.tool_problem is None


@pytest.mark.parametrize(
    ("delta", "finish", "part"),
    [
        ({"role": "assistant"}, None, Part.OPENING),
        ({"role": "assistant", "content": None, "tool_calls": None}, None, Part.OPENING),
        ({}, None, Part.OPENING),
        ({"content": ""}, None, Part.OPENING),
        ({"content": " "}, None, Part.TEXT),
        ({"reasoning_content": "hm"}, None, Part.TEXT),
        ({"refusal": "no"}, None, Part.TEXT),
        ({"something_new": {"a": 1}}, None, Part.TEXT),
        ({"role": "assistant", "content": None, "tool_calls": CALL}, None, Part.TOOL_CALL),
        ({"function_call": {"name": "f", "arguments": ""}}, None, Part.TOOL_CALL),
        ({"content": ""}, "stop", Part.ENDING),
    ],
)
def test_unmixed_chunk_stays_as_it_is(delta, finish, part):
    """What is one thing goes as one chunk, every field of it kept; what is new counts as visible."""
    item = chunk(choice(delta, finish, stop_reason=7), new_field=[1.50])
    pieces, _ = read(stream(item, done=False))
    assert events_of(pieces) == [(part, item | {"id": ID})]


def test_undecided_values_pass_byte_for_byte():
    """Numbers and escapes of fields that decide nothing are not written anew."""
    raw = b'data: {"id":"e","t":1.50e+01,"choices":[{"index":0,"delta":{"content":"\\u684c\\/"},"n":0.10}]}\n\n'
    (piece,) = StreamReader(prepared()).feed(raw)
    assert piece == Piece(Part.TEXT, raw.replace(b'"e"', f'"{ID}"'.encode()))


def test_role_is_told_once_per_choice():
    """Libraries join what is told twice: a second role is dropped, with the chunk if that was all."""
    role = {"role": "assistant"}
    pieces, _ = read(
        stream(
            chunk(choice(role)),
            chunk(choice(role)),
            chunk(choice(role | {"content": "a"})),
            chunk(choice(role, index=1)),
            chunk(choice(role, "stop")),
        )
    )
    assert deltas_of(pieces) == [
        (Part.OPENING, role, None),
        (Part.TEXT, {"content": "a"}, None),
        (Part.OPENING, role, None),
        (Part.ENDING, {}, "stop"),
    ]


def test_completion_stream_is_text():
    """/v1/completions has text and an ending, split when they come together."""
    base = {"id": "e", "object": "text_completion"}
    chunks = [base | {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
              for text, finish in (("", None), ("a", None), ("b", "length"), ("", "stop"))]  # fmt: skip
    pieces, facts = read(stream(*chunks), prepared(COMPLETION))
    told = [(part, item["choices"][0]["text"], item["choices"][0]["finish_reason"])
            for part, item in events_of(pieces) if item != b"[DONE]"]  # fmt: skip
    assert told == [
        *((Part.OPENING, "", None), (Part.TEXT, "a", None), (Part.TEXT, "b", None)),
        *((Part.ENDING, "", "length"), (Part.ENDING, "", "stop")),
    ]
    assert facts.ending is Ending.STOP


def test_neighbours_of_one_kind_are_one_piece():
    """What arrives together and is of one kind costs one message."""
    data = stream(*[chunk(choice({"content": str(n)})) for n in range(5)], done=False)
    (piece,) = StreamReader(prepared()).feed(data)
    assert piece.data.count(b"\n\n") == 5


text_deltas = st.fixed_dictionaries(
    {}, optional={"role": st.just("assistant"), "content": st.none() | st.text(max_size=4), "tool_calls": st.just(CALL)}
)
any_streams = st.lists(
    st.builds(
        lambda delta, finish, index, usage: chunk(choice(delta, finish, index), **usage),
        text_deltas,
        st.sampled_from([None, None, None, "stop", "length"]),
        st.integers(0, 1),
        st.sampled_from([{}, {"usage": None}, {"usage": USAGE}]),
    ),
    max_size=6,
)


def content_of(items):
    """Return what libraries make of a stream: per choice its role, text, calls and finish_reasons."""
    told = {}
    for item in items:
        for one in item["choices"]:
            delta, seen = one["delta"], told.setdefault(one["index"], {"text": "", "calls": [], "ends": []})
            seen["role"] = delta.get("role") or seen.get("role")
            seen["text"] += delta.get("content") or ""
            seen["calls"] += delta.get("tool_calls") or []
            seen["ends"] += [one["finish_reason"]] if one["finish_reason"] else []
    return told


@given(chunks=any_streams, cuts=st.lists(st.integers(0, 100_000), max_size=12), asks=st.booleans())
def test_pieces_tell_what_the_engine_told(chunks, cuts, asks):
    """However it was cut, a stream says the same as the engine's, split by kind and under the request's id."""
    request = prepared(tools=[TOOL], **({"stream_options": {"include_usage": True}} if asks else {}))
    data = stream(*chunks)
    pieces, facts = read(data, request, cuts)
    whole, whole_facts = read(data, request)
    assert b"".join(piece.data for piece in pieces) == b"".join(piece.data for piece in whole)
    assert facts == whole_facts
    items = [item for _, item in events_of(pieces) if item != b"[DONE]"]
    told = {index: told for index, told in content_of(items).items() if any(told.values())}
    assert told == {index: told for index, told in content_of(chunks).items() if any(told.values())}
    assert {item["id"] for item in items} <= {ID}
    assert asks or not any("usage" in item for item in items)
    for part, delta, finish in deltas_of(pieces):
        assert part is Part.TOOL_CALL or not delta.get("tool_calls")
        assert part is Part.TEXT or not delta.get("content")
        assert (part is Part.ENDING) == bool(finish)


@pytest.mark.parametrize("data", [b"data: {", b"data: []", b'data: {"choices":{}}', b'data: {"choices":[{"delta":1}]}',
                                  b'data: {"choices":[{"index":"0","delta":{}}]}', b"data: \xff", b'data: {"a":NaN}',
                                  b'data: {"usage":7}', b'data: {"a":"\\ud800"}', b"data: " + b"[" * 100_000,
                                  b"data: [DONE]\n\ndata: {}"])  # fmt: skip
def test_unreadable_event_ends_the_reading(data):
    """What is no chunk is told as malformed; nothing of it or after it is given on, and nothing is raised."""
    reader = StreamReader(prepared())
    first = stream(chunk(choice({"content": "a"})), done=False)
    pieces = reader.feed(first + data + b"\n\n" + first)
    assert [part for part, item in events_of(pieces) if item != b"[DONE]"] == [Part.TEXT]
    assert reader.feed(first) == []
    assert reader.facts().malformed


@pytest.mark.parametrize("cut", [b"data: [DONE]", b"data: [DONE]\n", b'data: {"choices":'])
def test_cut_stream_is_malformed(cut):
    """A stream that stops inside an event is not whole; one that stops between two has not seen [DONE]."""
    _, facts = read(stream(*USUAL, done=False) + cut)
    assert (facts.saw_done, facts.malformed) == (False, "the stream ended inside an event")
    _, facts = read(stream(*USUAL, done=False))
    assert (facts.saw_done, facts.malformed) == (False, None)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error":{"message":"out of memory"}}', "out of memory"),
        (b'event: error\ndata: {"message":"x"}', '{"message":"x"}'),
        (b'data: {"error":"plain"}', '{"error":"plain"}'),
    ],
)
def test_engines_error_event_is_a_fact(event, message):
    """An error in the midst of a stream is told, and never given on as if it were content."""
    pieces, facts = read(stream(chunk(choice({"content": "a"})), done=False) + event + b"\n\n" + stream())
    assert [piece.part for piece in pieces] == [Part.TEXT]
    assert (facts.engine_error, facts.saw_done) == (message, False)


def test_endless_event_is_malformed(monkeypatch):
    """An event without end is given up."""
    monkeypatch.setattr("basert_fleet.engine.sse.MAX_EVENT_BYTES", 100)
    reader = StreamReader(prepared())
    assert reader.feed(b"x" * 101) == []
    assert "more than" in reader.facts().malformed


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        ([chunk(choice({"content": "x"}, "length"))], Reason.TOOL_CALL_MISSING),  # seed: the sixth answer
        ([chunk(choice({"content": "x"}, "stop"))], None),
        (
            [chunk(choice({"tool_calls": [CALL[0] | {"function": {"name": "f"}}]}, "tool_calls"))],
            Reason.TOOL_NAME_UNKNOWN,
        ),
        ([chunk(choice({"tool_calls": CALL}, "tool_calls"), choice({}, "length", 1))], Reason.TOOL_CALL_MISSING),
        ([], None),
    ],
)
def test_tool_problem_of_a_stream(chunks, found):
    """Every choice of a stream is held against the request's tools."""
    _, facts = read(stream(*chunks), prepared(tools=[TOOL]))
    assert facts.tool_problem is found


def whole(body, request, **of_head):
    """Read a response in one piece."""
    reader = WholeReader(request, head(**({"content_type": "application/json"} | of_head)))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    for start in range(0, len(data), 7):
        assert reader.feed(data[start : start + 7]) == []
    return reader.finish(), reader.facts(), reader.content_type


def test_whole_response_is_one_piece_under_the_requests_id():
    """A response that does not stream changes in its id only, and tells the same facts as a stream."""
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": CALL[0]["function"]}]}
    body = {"new": 1.5, "id": "e", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    pieces, facts, content_type = whole(body | {"usage": USAGE}, prepared(tools=[TOOL], stream=False))
    assert [piece.part for piece in pieces] == [Part.WHOLE]
    assert json.loads(pieces[0].data) == body | {"usage": USAGE, "id": ID}
    assert (facts.ending, facts.completion_tokens, facts.tool_problem) == (Ending.TOOL_CALLS, 142, None)
    assert (facts.saw_done, content_type) == (True, "application/json")


def test_whole_response_is_judged():
    """The seed's corrupted call and its missing call are found in whole responses too."""
    message = {"tool_calls": [{"id": "c", "function": {"name": "lookup_key", "arguments": '{"kex":"a"}'}}]}
    _, facts, _ = whole({"choices": [{"message": message, "finish_reason": "tool_calls"}]}, prepared(tools=[TOOL]))
    assert facts.tool_problem is Reason.TOOL_ARGUMENTS_INVALID
    body = {"choices": [{"message": {"content": "key key"}, "finish_reason": "length"}]}
    _, facts, _ = whole(body, prepared(tools=[TOOL]))
    assert facts.tool_problem is Reason.TOOL_CALL_MISSING


def test_character_cut_by_the_token_limit_is_replaced():
    """A whole response that ends inside a character is delivered with U+FFFD in its place."""
    body = b'{"choices":[{"message":{"content":"\xf0\x9f"},"finish_reason":"length"}]}'
    pieces, _, _ = whole(body, prepared(stream=False))
    assert json.loads(pieces[0].data)["choices"][0]["message"]["content"] == "\ufffd"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"choices":7}', b'{"choices":[{"message":1}]}', b"[" * 9_999]
)
def test_unreadable_whole_response_is_malformed(body):
    """What is no completion gives no piece."""
    pieces, facts, _ = whole(body, prepared(stream=False))
    assert (pieces, facts.saw_done) == ([], False)
    assert facts.malformed


def test_error_with_a_success_status_is_a_fact():
    """An engine's error in a 200 response is no response."""
    pieces, facts, _ = whole({"error": {"message": "broken"}}, prepared(stream=False))
    assert (pieces, facts.engine_error) == ([], "broken")


def test_endless_whole_response_is_malformed(monkeypatch):
    """A body without end is given up."""
    monkeypatch.setattr(response, "MAX_WHOLE_BYTES", 10)
    pieces, facts, _ = whole(b"[" * 100, prepared(stream=False))
    assert (pieces, facts.saw_done) == ([], False)
    assert "more than" in facts.malformed


def test_other_endpoints_pass_as_they_are():
    """Embeddings keep every byte and tell their usage; lists and a transcription's plain text pass too."""
    body = b'{"id":"e", "data":[{"embedding":[0.10]}], "usage":{"prompt_tokens":3,"total_tokens":3}}'
    pieces, facts, _ = whole(body, prepared("/v1/embeddings", input="x"))
    assert pieces == [Piece(Part.WHOLE, body)]
    assert (facts.ending, facts.prompt_tokens, facts.completion_tokens) == (Ending.OTHER, 3, None)
    assert whole(b"[1, 2]", prepared("/v1/tokenize"))[0] == [Piece(Part.WHOLE, b"[1, 2]")]
    assert whole(b"{", prepared("/v1/tokenize"))[1].malformed
    srt = whole(b"1\n00:00", prepared("/v1/audio/transcriptions"), content_type="text/plain; charset=utf-8")
    assert (srt[0], srt[2]) == ([Piece(Part.WHOLE, b"1\n00:00")], "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, b"prompt too long", "invalid_request_error"),
        (404, b"", "invalid_request_error"),
        (503, b"<html>\xff</html>", "server_error"),
        (500, b'{"error":"plain"}', "server_error"),
        (500, b"[" * 100_000, "server_error"),
    ],
)
def test_engines_error_is_openai_shaped(status, body, kind):
    """Whatever an engine says with an error status, clients get an error they can read."""
    pieces, facts, content_type = whole(body, prepared(), status=status, content_type="text/html")
    error = json.loads(pieces[0].data)["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, None, "engine_error")
    assert error["message"]
    assert len(error["message"]) <= response.MAX_QUOTED_CHARACTERS
    assert (content_type, facts.saw_done, facts.malformed) == ("application/json", True, None)


def test_error_that_is_shaped_already_is_kept():
    """An engine's own OpenAI-shaped error passes byte for byte."""
    body = b'{"error": {"message": "no", "type": "t", "param": "messages", "code": "context_length_exceeded"}}'
    assert error_body(400, body) == body


@pytest.mark.parametrize(
    ("of_head", "stream_asked", "reader"),
    [
        ({}, True, StreamReader),
        ({"content_type": "text/event-stream; charset=utf-8"}, True, StreamReader),
        ({"content_type": "application/json"}, True, WholeReader),
        ({"status": 400}, True, WholeReader),
        ({}, False, WholeReader),
    ],
)
def test_reader_fits_what_the_engine_sent(of_head, stream_asked, reader):
    """A stream is read as one only if it was asked for, sent as one, and no error."""
    assert isinstance(reader_for(prepared(stream=stream_asked), head(**of_head)), reader)
