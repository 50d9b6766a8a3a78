"""Server-sent events: the same events, however the network cut the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.engine import sse
from basert_fleet.engine.sse import EventTooLong, SseEvent, SseParser

LINES = [b"data: {}", b"data:x", b"data", b"data:  two", b": comment", b"event: error", b"id: 7", b"retry: 1", b"", b"",
         "data: 桜の🌸".encode(), b"da", b":", b"\xef\xbb\xbfdata: y", b"data: \xff"]  # fmt: skip
streams = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=20).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def parse(*pieces):
    """Return the events of these pieces, and whether the stream stopped inside one."""
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events, parser.unfinished


def in_pieces(data, cuts):
    """Cut bytes at these places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


@given(data=streams | st.binary(max_size=200), cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_events_do_not_depend_on_cuts(data, cuts):
    """Cut anywhere, inside a character or between CR and LF, the events are the same."""
    assert parse(*in_pieces(data, cuts)) == parse(data)
    assert parse(*(data[at : at + 1] for at in range(len(data)))) == parse(data)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_rules_of_the_standard(end):
    """All three line ends, comments, several data lines, one leading space, a byte order mark, an event's kind."""
    lines = [b"\xef\xbb\xbfdata: a", b": comment", b"data:  b", b"", b"", b"event: error", b"data", b"", b"id: 1", b""]
    assert parse(end.join([*lines, b""])) == ([SseEvent(b"", b"a\n b"), SseEvent(b"error", b"")], False)


def test_broken_characters_are_replaced():
    """Bytes that are no UTF-8 become U+FFFD, as the standard says; whole characters stay."""
    (event,), _ = parse("data: 桜".encode() + b"\xf0\x9f\n\n")
    assert event.data.decode() == "桜\ufffd"


def test_kind_ends_with_its_event():
    """An event without data is none, and its kind does not colour the next."""
    assert parse(b"event: error\n\ndata: x\n\n")[0] == [SseEvent(b"", b"x")]


def test_cut_event_is_no_event():
    """Without its empty line an event did not arrive."""
    assert parse(b"data: x\n") == ([], True)
    assert parse(b"data: x") == ([], True)


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: " + b"x" * 100 + b"\n"])
def test_endless_event_is_refused(monkeypatch, piece):
    """Neither an endless line nor endless lines eat the memory."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
    with pytest.raises(EventTooLong):
        parse(b"data: ", *[piece] * 20)


def test_long_stream_of_small_events_is_fine(monkeypatch):
    """The limit is one event's, not the stream's."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
    events, _ = parse(*[b"data: " + b"x" * 900 + b"\n\n"] * 20, *[b": ping\n"] * 500)
    assert len(events) == 20


@pytest.mark.parametrize(
    "unusual",
    [
        b"data: a\ndata: b\n\n",
        b"data: a\n\n\n",
        b"data: a\n\nid: 1\n\n",
        b"data: a\n\ndata:b\n\n",
        b"event: x\n\n",
        b"data: a\n",
    ],
)
def test_usual_bytes_are_read_as_all_others(unusual):
    """Whole events of one data line are read at once; before and after other ones they mean the same as by lines."""
    usual = b"data: {}\n\ndata: \xe6\xa1\x9c\n\ndata: \xff\n\n"
    pieces = [usual, unusual, usual, b"event: error\n", usual, b"da", b"ta: x\n\n", usual]
    whole = b"".join(pieces)
    assert parse(*pieces) == parse(*(whole[at : at + 1] for at in range(len(whole))))
