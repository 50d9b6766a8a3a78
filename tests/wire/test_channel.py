"""A channel: what is acknowledged when, what is sent again, and when it is lost."""

from __future__ import annotations

import pytest

from basert_fleet.wire.channel import (
    ACK_AFTER_ITEMS,
    ACK_AFTER_SECONDS,
    BrokenSequence,
    Channel,
    ChannelLimits,
    Frame,
    Loss,
)

LIMITS = ChannelLimits(resume_seconds=30.0, unacknowledged_bytes=100, frame_bytes=4)


def attached() -> Channel[str, str]:
    """Return an end with a connection."""
    channel: Channel[str, str] = Channel(0.0, LIMITS)
    channel.attached(0, 0.0)
    return channel


def test_items_are_numbered_from_one_and_kept_until_acknowledged() -> None:
    """An acknowledgement that rides on any frame lets go of what it covers."""
    channel = attached()
    assert channel.send(["a", "bc"]) == Frame(1, 0, ("a", "bc"))
    assert channel.send(["d"]) == Frame(3, 0, ("d",))
    assert channel.unacknowledged_bytes == 4
    assert channel.received(Frame(1, 2, ("x",)), 0.0) == ("x",)
    assert channel.unacknowledged_bytes == 1


def test_what_was_sent_without_a_connection_goes_first_on_the_next_one() -> None:
    """It is numbered where the other end had stopped, and split into frames of bounded size."""
    channel = attached()
    channel.send(["aa", "bb"])
    channel.detached(1.0)
    assert channel.send(["cc", "dd", "ee"]) is None
    assert channel.attached(1, 2.0) == (Frame(2, 0, ("bb", "cc")), Frame(4, 0, ("dd", "ee")))


def test_an_item_that_comes_again_is_dropped() -> None:
    """A frame may be half known: only its new items are handed over."""
    channel = attached()
    channel.received(Frame(1, 0, ("a", "b")), 0.0)
    assert channel.received(Frame(1, 0, ("a", "b")), 0.0) == ()
    assert channel.received(Frame(2, 0, ("b", "c")), 0.0) == ("c",)
    assert channel.received_up_to == 3


def test_one_received_item_is_acknowledged_after_half_a_second() -> None:
    """Unless a frame that is sent anyway has carried the acknowledgement before."""
    channel = attached()
    channel.received(Frame(1, 0, ("a",)), 1.0)
    assert channel.tick(1.1) is None
    assert channel.next_wake() == 1.0 + ACK_AFTER_SECONDS
    assert channel.tick(1.0 + ACK_AFTER_SECONDS) == Frame(1, 1, ())
    channel.received(Frame(2, 0, ("b",)), 2.0)
    assert channel.send(["x"]) == Frame(1, 2, ("x",))
    assert channel.next_wake() is None


def test_many_received_items_are_acknowledged_at_once() -> None:
    """So that the other end keeps little, however fast it sends."""
    channel = attached()
    channel.received(Frame(1, 0, ("a",) * ACK_AFTER_ITEMS), 1.0)
    assert channel.tick(1.0) == Frame(1, ACK_AFTER_ITEMS, ())


def test_a_channel_is_lost_when_it_was_too_long_without_a_connection() -> None:
    """Exactly then; one that is made before begins the time anew."""
    channel = attached()
    channel.detached(10.0)
    channel.attached(0, 39.0)
    channel.detached(50.0)
    channel.detached(60.0)  # told twice: the time runs from the first
    assert channel.next_wake() == 80.0
    channel.tick(79.9)
    assert channel.lost is None
    channel.tick(80.0)
    assert (channel.lost, channel.next_wake()) == (Loss.NOT_RESUMED, None)


def test_a_channel_is_lost_when_too_much_is_unacknowledged() -> None:
    """Nothing is kept after that, and nothing more is taken."""
    channel = attached()
    assert channel.send(["x" * 100]) is not None
    assert channel.send(["y"]) is None
    assert (channel.lost, channel.unacknowledged_bytes) == (Loss.BACKLOG, 0)
    assert channel.send(["z"]) is None
    assert channel.received(Frame(1, 0, ("a",)), 0.0) == ()


def test_the_first_reason_for_a_loss_stays() -> None:
    """What comes after it is only its consequence."""
    channel = attached()
    channel.lose(Loss.CLOSED)
    channel.lose(Loss.FORGOTTEN)
    assert channel.lost is Loss.CLOSED


@pytest.mark.parametrize("frame", [Frame(2, 0, ("b",)), Frame(0, 0, ("a",)), Frame(1, 1, ("a",))])
def test_numbers_that_contradict_what_was_sent_are_refused(frame: Frame[str]) -> None:
    """A gap, a number before the first, and an acknowledgement of nothing; the channel is as it was."""
    channel = attached()
    before = channel.state()
    with pytest.raises(BrokenSequence):
        channel.received(frame, 0.0)
    assert channel.state() == before


@pytest.mark.parametrize("received", [0, 3])
def test_a_connection_to_another_channel_is_refused(received: int) -> None:
    """The other end has forgotten what it had acknowledged, or knows what was never sent."""
    channel = attached()
    channel.send(["a", "b"])
    channel.received(Frame(1, 1, ()), 0.0)
    channel.detached(1.0)
    with pytest.raises(BrokenSequence):
        channel.attached(received, 2.0)


def test_a_copy_goes_its_own_way() -> None:
    """A model checker may follow both; equal states are told as equal."""
    channel = attached()
    channel.send(["a"])
    other = channel.copy()
    assert other.state() == channel.state()
    other.send(["b"])
    assert other.state() != channel.state()
    assert channel.send(["b"]) == Frame(2, 0, ("b",))
    assert hash(other.state()) == hash(channel.state())
