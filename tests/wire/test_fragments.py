"""Lanes: small messages go between a large one's fragments, and each worker's messages keep their order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.wire.fragments import (
    AHEAD,
    FRAGMENT_BYTES,
    MAX_INCOMPLETE_BYTES,
    MAX_MESSAGE_BYTES,
    Assembly,
    Fragment,
    Lanes,
    OversizedMessage,
)

DECODER = msgspec.msgpack.Decoder(Fragment)


def large(letter: bytes, fragments: float = 3) -> bytes:
    """Return a message of that many fragments."""
    return letter * int(FRAGMENT_BYTES * fragments)


def test_a_small_message_goes_between_the_fragments_of_another_workers_large_one() -> None:
    """It waits for no more than what one lane may send in its turn."""
    lanes = Lanes()
    lanes.put("a", large(b"A"))
    lanes.put("b", b"small")
    assert [len(lanes.take(1)) for _ in range(2)] == [1, 1]
    assert lanes.waiting_bytes == 2 * FRAGMENT_BYTES


def test_a_message_never_overtakes_one_of_its_own_worker() -> None:
    """A Cancel comes after its Lease, however large that is."""
    lanes = Lanes()
    lanes.put("a", large(b"A"))
    lanes.put("a", b"cancel")
    taken = lanes.take(10**9)
    assert taken[-1] == b"cancel"
    assert [DECODER.decode(item).last for item in taken[:-1]] == [False, False, True]


def test_nothing_overtakes_what_goes_ahead() -> None:
    """Not even a small message of another lane, whichever was put in first."""
    lanes = Lanes()
    lanes.put("a", b"small")
    lanes.put(AHEAD, large(b"A"))
    taken = [item for _ in range(4) for item in lanes.take(1)]
    assert [DECODER.decode(item).last for item in taken[:-1]] == [False, False, True]
    assert taken[-1] == b"small"


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3 * FRAGMENT_BYTES)), max_size=8), st.integers(1, 10**5)
)
def test_whatever_is_put_in_comes_out_whole_and_in_order(messages: list[tuple[str, int]], budget: int) -> None:
    """For each lane, with any budget; and the count of waiting bytes ends at zero."""
    lanes, assembly = Lanes(), Assembly()
    for lane, size in messages:
        lanes.put(lane, lane.encode() * size)
    whole = []
    while lanes:
        taken = lanes.take(budget)
        assert sum(map(len, taken)) < budget + FRAGMENT_BYTES * 2.1
        for item in taken:
            if item and item[:1] in b"abc":
                whole.append(item)
            elif item:
                done = assembly.add(DECODER.decode(item))
                whole += [done] if done is not None else []
    assert lanes.waiting_bytes == 0
    for lane in "abc":
        sent = [size for name, size in messages if name == lane and size]
        assert [len(item) for item in whole if item[:1] == lane.encode()] == sent


def test_a_message_that_is_too_large_is_refused() -> None:
    """Before all of it is kept."""
    assembly, piece = Assembly(), b"x" * 2**20
    for _ in range(MAX_MESSAGE_BYTES // len(piece)):
        assembly.add(Fragment("a", piece))
    with pytest.raises(OversizedMessage):
        assembly.add(Fragment("a", b"x"))


def test_too_many_incomplete_messages_are_refused() -> None:
    """A peer cannot fill the memory with beginnings."""
    assembly, piece = Assembly(), b"x" * 2**20
    for place in range(MAX_INCOMPLETE_BYTES // len(piece)):
        assembly.add(Fragment(str(place), piece))
    with pytest.raises(OversizedMessage):
        assembly.add(Fragment("last", b"x"))
