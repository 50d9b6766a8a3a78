"""Messages as bytes: every class comes back equal, nonsense is one clear error, and bodies are joined in order."""

from __future__ import annotations

import contextlib
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.core.delivery import Outcome, Part, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.verdict import Reason, Verdict, VerdictKind
from basert_fleet.wire.channel import Frame
from basert_fleet.wire.codec import Bye, MalformedFrame, agent_codec, gateway_codec, joined, lane_of
from basert_fleet.wire.fragments import AHEAD, Fragment
from basert_fleet.wire.messages import (
    Accepted,
    Body,
    Cancel,
    Desired,
    End,
    Head,
    Hello,
    Lease,
    Offer,
    Recall,
    Refused,
    Rejected,
    ToAgent,
    ToGateway,
    Withdraw,
    WorkerStatus,
)

E1, E2 = Epoch("ab12", 3, 7), Epoch("ab12", 3, 8)
VERDICT = Verdict(VerdictKind.CONTAMINATED, Reason.POSITION_DRIFT, 128, prefix_reused=True)
TO_AGENT = [
    Desired(4, (b'{"kind": "BasertWorker"}', b"{}")),
    Lease(
        "w-0", E1, "r1", "/v1/completions", "application/json", b"\x00{}", 12.5, VerifyMode.FULL,
        frozenset({Reason.USAGE_MISSING, Reason.TOOL_CALL_MISSING}),
    ),
    Cancel("w-0", E1),
    Recall("w-0", E2),
    Rejected("mac-1 is here already"),
]  # fmt: skip
TO_GATEWAY = [
    Hello("mac-1", "ab12", "0.2.0", 17_179_869_184),
    Hello("mac-1", "ab12", "0.2.0", None, (b'{"kind": "BasertWorker"}', b"{}")),
    WorkerStatus("w-0", "w", "Ready", 3, "hash", calibrated=False, pid=9, recycles={"budget": 2}),
    Offer("w-0", "w", E1, served=5),
    Offer("w-0", "w", E2, served=6, ahead=True),
    Withdraw("w-0", E1),
    Accepted("w-0", E1),
    Refused("w-0", E1),
    Head("w-0", E1, 200, "text/event-stream"),
    Body("w-0", E1, b"data: \xff\n\n", Part.TOOL_CALL),
    End("w-0", E1, Outcome.WITHHELD, VERDICT, completion_tokens=16, execute_seconds=0.25, handoff_seconds=0.001),
]


def test_every_message_of_either_direction_is_tried() -> None:
    """A message that is added to the unions must be added here."""
    assert {type(message) for message in TO_AGENT} == set(typing.get_args(ToAgent))
    assert {type(message) for message in TO_GATEWAY} == set(typing.get_args(ToGateway))


@pytest.mark.parametrize(
    ("sender", "reader", "messages"),
    [(gateway_codec(), agent_codec(), TO_AGENT), (agent_codec(), gateway_codec(), TO_GATEWAY)],
    ids=["to agent", "to gateway"],
)
def test_every_message_comes_back_equal(sender, reader, messages) -> None:
    """In a frame with others, and alone when it came in fragments."""
    items = [*messages, Fragment("w-0", b"\x81", last=True), Bye()]
    frame = Frame(5, 3, tuple(sender.encode(item) for item in items))
    assert reader.decode_frame(sender.encode_frame(frame)) == Frame(5, 3, tuple(items))
    assert [reader.decode_message(sender.encode(message)) for message in messages] == messages


@pytest.mark.parametrize(
    ("sender", "reader", "message", "payload"),
    [
        (gateway_codec(), agent_codec(), msgspec.structs.replace(TO_AGENT[1], body=(large := b"L" * 65_537)), large),
        (agent_codec(), gateway_codec(), Body("w-0", E1, large, Part.WHOLE), large),
    ],
    ids=["lease", "body"],
)
def test_a_large_payload_is_a_part_of_its_message_and_not_copied(sender, reader, message, payload) -> None:
    """The very object that was given, between two small parts; joined, they are the message as it is encoded whole."""
    before, middle, after = sender.encode_parts(message)
    assert middle is payload
    assert before + middle + after == sender.encode(message)
    assert reader.decode_message(before + middle + after) == message
    assert len(before) + len(after) < 300


def test_a_bare_acknowledgement_is_a_frame_of_a_few_bytes() -> None:
    """An idle link costs next to nothing."""
    data = agent_codec().encode_frame(Frame(5, 3, ()))
    assert len(data) == 4
    assert gateway_codec().decode_frame(data) == Frame(5, 3, ())


def test_fields_that_a_newer_peer_added_are_ignored() -> None:
    """In messages, in what they hold, and in frames."""
    later = {"type": "Accepted", "worker": "w", "later": [1]}
    later["epoch"] = {"incarnation": "ab12", "generation": 3, "counter": 7, "later": None}
    data = msgspec.msgpack.encode((1, 0, [later], "later"))
    assert gateway_codec().decode_frame(data) == Frame(1, 0, (Accepted("w", E1),))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_frame_are_one_error(data: bytes) -> None:
    """Whatever they are: a frame, or MalformedFrame and nothing else."""
    for codec in (agent_codec(), gateway_codec()):
        for read in (codec.decode_frame, codec.decode_message):
            with contextlib.suppress(MalformedFrame):
                read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93\x01\x00",  # cut short
        msgspec.msgpack.encode((1, 0, [{"type": "Unknown"}])),
        msgspec.msgpack.encode((1, 0, [{"type": "Accepted", "worker": 5}])),
        msgspec.msgpack.encode((-1, 0, "text")),
        b"\x93\x01\x00\x91" + b"\x91" * 100_000,  # deeply nested
        b"\x93\x01\x00\x91\x81\xa4type\xa2\xff\xfe",  # text that is no UTF-8
        b"\x93\x01\x00\xdd\xff\xff\xff\xff",  # promises four thousand million items
    ],
    ids=["empty", "cut", "unknown", "wrong field", "no list", "nested", "no UTF-8", "promises"],
)
def test_nonsense_of_many_kinds_is_one_error(data: bytes) -> None:
    """No other exception, and no memory for what was only promised."""
    with pytest.raises(MalformedFrame):
        gateway_codec().decode_frame(data)


def test_bodies_of_one_response_are_joined_though_others_come_between() -> None:
    """Each worker's own order stays: a body behind another message of its worker is not joined across it."""
    messages = [
        Body("a", E1, b"1", Part.TEXT),
        Body("b", E1, b"x", Part.TEXT),
        Body("a", E1, b"2", Part.TEXT),
        Body("a", E1, b"3", Part.TOOL_CALL),
        Accepted("b", E1),
        Body("b", E1, b"y", Part.TEXT),
        Body("a", E2, b"4", Part.TOOL_CALL),
        Hello("mac-1", "ab12", "0.2.0", None),
    ]
    assert joined(messages) == [
        Body("a", E1, b"12", Part.TEXT),
        Body("b", E1, b"x", Part.TEXT),
        Body("a", E1, b"3", Part.TOOL_CALL),
        Accepted("b", E1),
        Body("b", E1, b"y", Part.TEXT),
        Body("a", E2, b"4", Part.TOOL_CALL),
        messages[-1],
    ]


def test_messages_of_one_worker_share_a_lane() -> None:
    """What concerns none has one of its own, and an introduction that which nothing overtakes."""
    assert {lane_of(message) for message in TO_AGENT[1:3]} == {"w-0"}
    assert lane_of(TO_AGENT[0]) == ""
    assert lane_of(TO_GATEWAY[0]) == AHEAD
