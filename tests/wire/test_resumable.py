"""A link over connections that a test makes, breaks and blocks, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from basert_fleet.core.delivery import Part, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.wire.channel import Frame, Loss
from basert_fleet.wire.codec import Bye, agent_codec, gateway_codec
from basert_fleet.wire.fragments import FRAGMENT_BYTES, Assembly, Fragment
from basert_fleet.wire.messages import Accepted, Body, Cancel, Lease, Offer
from basert_fleet.wire.resumable import (
    DEFAULT_LIMITS,
    FRAME_BYTES,
    FRAMES_PER_TURN,
    LinkCounts,
    LinkLimits,
    ResumableLink,
)
from support.link_ends import LOST, RESUMED, SUSPENDED, LinkEnd
from support.turns import settled, until
from support.virtual_loop import run_virtual

EPOCH = Epoch("ab12", 1, 1)
TO_GATEWAY = gateway_codec()
LARGE = b"".join(number.to_bytes(8, "big") for number in range(1024**2))
"""8 MiB."""


def body(text: bytes, worker: str = "w") -> Body:
    """Return a piece of a response."""
    return Body(worker, EPOCH, text, Part.TEXT)


class Line:
    """A connection that keeps what is written, with the time."""

    def __init__(self) -> None:
        self.writable = True
        self.written: list[tuple[float, Frame]] = []
        self.ended = ""

    @property
    def items(self) -> list:
        return [item for _, frame in self.written for item in frame.items]

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.written.append((asyncio.get_running_loop().time(), TO_GATEWAY.decode_frame(data)))

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"


class Bench:
    """An agent's link with a first connection."""

    def __init__(self, limits: LinkLimits = DEFAULT_LIMITS) -> None:
        self.end, self.line, self.counts = LinkEnd(), Line(), LinkCounts()
        self.overs: list[ResumableLink] = []
        self.link = ResumableLink(
            "c1", self.end, agent_codec(), limits=limits, counts=self.counts, over=self.overs.append
        )
        self.link.open(self.line)

    def hears(self, *messages: object, first: int = 1, acknowledged: int = 0, line: Line | None = None) -> None:
        items = tuple(TO_GATEWAY.encode(message) for message in messages)
        data = TO_GATEWAY.encode_frame(Frame(first, acknowledged, items))
        self.link.frame_received(line or self.line, data)


def test_what_one_turn_sends_is_one_frame() -> None:
    """And it goes out in that turn."""

    async def main() -> None:
        bench = Bench()
        bench.end.send(Accepted("w", EPOCH), body(b"a"), Offer("v", "p", EPOCH))
        await asyncio.sleep(0)
        assert bench.line.written == [(0.0, Frame(1, 0, (Accepted("w", EPOCH), body(b"a"), Offer("v", "p", EPOCH))))]

    run_virtual(main())


def test_a_lone_piece_goes_at_once_and_those_after_it_wait_to_be_joined() -> None:
    """At most 5 ms after the last frame; any other message takes along what waits."""

    async def main() -> None:
        bench = Bench()
        bench.end.send(body(b"a"))
        await asyncio.sleep(0.001)
        bench.end.send(body(b"b"))
        await asyncio.sleep(0.001)
        bench.end.send(body(b"c"))
        await asyncio.sleep(0.01)
        bench.end.send(body(b"d"))
        await asyncio.sleep(0.001)
        bench.end.send(body(b"e"))
        bench.end.send(Accepted("v", EPOCH))
        await asyncio.sleep(0.02)
        assert [(round(at, 4), frame.items) for at, frame in bench.line.written] == [
            (0.0, (body(b"a"),)),
            (0.005, (body(b"bc"),)),
            (0.012, (body(b"d"),)),
            (0.013, (body(b"e"), Accepted("v", EPOCH))),
        ]

    run_virtual(main())


def test_what_arrives_is_acknowledged_within_half_a_second() -> None:
    """By a frame that is sent anyway, or by a bare one."""

    async def main() -> None:
        bench = Bench()
        bench.hears(Cancel("w", EPOCH))
        await asyncio.sleep(1)
        assert bench.line.written == [(0.5, Frame(1, 1, ()))]
        bench.end.on_message = lambda message: bench.link.send(Accepted("w", EPOCH))
        bench.hears(*[Cancel("w", EPOCH)] * 40, first=2)
        await asyncio.sleep(1)
        assert [frame.acknowledged for _, frame in bench.line.written] == [1, 41]
        assert len(bench.line.items) == 40

    run_virtual(main())


def test_a_link_goes_on_with_the_next_connection() -> None:
    """What was lost on the way is sent again, what was sent meanwhile follows; the receiver is told of both moments."""

    async def main() -> None:
        bench, second = Bench(), Line()
        bench.end.send(Accepted("a", EPOCH), Accepted("b", EPOCH))
        await asyncio.sleep(0)
        bench.link.connection_lost(bench.line)
        bench.end.send(Accepted("c", EPOCH))
        await asyncio.sleep(29)
        bench.link.resume(second, peer_received=1)
        assert second.items == [Accepted("b", EPOCH), Accepted("c", EPOCH)]
        assert bench.end.heard == [SUSPENDED, RESUMED]
        await asyncio.sleep(60)
        assert (bench.counts.resumed, bench.counts.lost) == (1, 0)
        bench.hears(Cancel("late", EPOCH))
        assert bench.end.messages == [], "a frame of a connection that was replaced"

    run_virtual(main())


def test_a_connection_that_is_still_there_is_replaced() -> None:
    """The agent slept and dials again; this end has not noticed yet (C40)."""

    async def main() -> None:
        bench, second = Bench(), Line()
        bench.link.resume(second, peer_received=0)
        assert (bench.line.ended, second.ended) == ("aborted", "")
        assert bench.end.heard == [SUSPENDED, RESUMED]
        bench.link.connection_lost(bench.line)
        assert bench.end.heard == [SUSPENDED, RESUMED]

    run_virtual(main())


def test_a_link_is_lost_after_thirty_seconds_without_a_connection() -> None:
    """Told once; what is sent later is dropped."""

    async def main() -> None:
        bench = Bench()
        bench.link.connection_lost(bench.line)
        await asyncio.sleep(29.9)
        assert bench.end.heard == [SUSPENDED]
        await asyncio.sleep(0.2)
        assert bench.end.heard == [SUSPENDED, LOST]
        bench.end.send(Accepted("a", EPOCH))
        bench.link.close()
        await asyncio.sleep(60)
        assert bench.end.heard == [SUSPENDED, LOST]
        assert bench.overs == [bench.link]
        assert bench.counts.lost == 1

    run_virtual(main())


def test_a_peer_that_takes_nothing_costs_a_bounded_backlog() -> None:
    """Connected or not: past the bound the link is lost, and nothing of it is kept."""

    async def main() -> None:
        for connected in (True, False):
            bench = Bench(LinkLimits(backlog_bytes=10 * FRAGMENT_BYTES))
            bench.line.writable = False
            if not connected:
                bench.link.connection_lost(bench.line)
            for _ in range(9):
                bench.end.send(body(b"x" * FRAGMENT_BYTES))
            await asyncio.sleep(0.01)
            assert LOST not in bench.end.heard
            bench.end.send(body(b"x" * FRAGMENT_BYTES))
            await asyncio.sleep(0.01)
            assert bench.end.heard[-1] == LOST
            assert bench.line.items == []

    run_virtual(main())


def test_a_large_message_leaves_room_for_small_ones() -> None:
    """Between two of its fragments goes what other workers have to say; its own worker's next message follows it."""

    async def main() -> None:
        bench = Bench()
        bench.line.writable = False
        bench.end.send(Body("w", EPOCH, b"x" * (10 * FRAGMENT_BYTES), Part.WHOLE), Accepted("w", EPOCH))
        bench.end.send(Accepted("v", EPOCH))
        await asyncio.sleep(0)
        bench.line.writable = True
        bench.link.connection_writable(bench.line)
        items = bench.line.items
        assert items.index(Accepted("v", EPOCH)) <= 2
        assert items[-1] == Accepted("w", EPOCH)
        assert [isinstance(item, Fragment) for item in items].count(False) == 2
        assert max(len(frame.items) for _, frame in bench.line.written) <= 6

    run_virtual(main())


class Turns:
    """Counts the loop's turns, and notes how many bytes a line was given in each."""

    def __init__(self, line: Line) -> None:
        self._written, self._keep = 0, line.write
        self.bytes_of: list[int] = []
        line.write = self._write
        self._turn()

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._keep(data)

    def _turn(self) -> None:
        self.bytes_of.append(self._written)
        self._written = 0
        asyncio.get_running_loop().call_soon(self._turn)


def test_a_large_message_takes_many_turns_of_the_loop() -> None:
    """However much the connection takes, about 1 MiB goes out in one turn; the others are everybody else's (C32)."""

    async def main() -> None:
        bench = Bench()
        turns = Turns(bench.line)
        bench.end.send(Body("w", EPOCH, LARGE, Part.WHOLE))
        await until(lambda: any(getattr(item, "last", False) for item in bench.line.items))
        assert max(turns.bytes_of) <= FRAMES_PER_TURN * (FRAME_BYTES + 2 * FRAGMENT_BYTES)
        assert len([written for written in turns.bytes_of if written]) >= len(LARGE) // (2 * 1024**2)
        assembly = Assembly()
        (whole,) = filter(None, map(assembly.add, bench.line.items))
        assert TO_GATEWAY.decode_message(whole) == Body("w", EPOCH, LARGE, Part.WHOLE)

    run_virtual(main())


def test_what_is_sent_meanwhile_overtakes_a_large_message() -> None:
    """It goes in the next turn's frames, and costs no turn a second megabyte; its own worker's messages keep behind."""

    async def main() -> None:
        bench = Bench()
        turns = Turns(bench.line)
        bench.end.send(Body("w", EPOCH, LARGE, Part.WHOLE))
        await until(lambda: bench.line.items)
        bench.end.send(Accepted("v", EPOCH), Accepted("w", EPOCH))
        before = len(bench.line.items)
        await until(lambda: Accepted("w", EPOCH) in bench.line.items)
        assert bench.line.items.index(Accepted("v", EPOCH)) <= before + FRAMES_PER_TURN * 6
        assert bench.line.items[-1] == Accepted("w", EPOCH)
        assert max(turns.bytes_of) <= FRAMES_PER_TURN * (FRAME_BYTES + 2 * FRAGMENT_BYTES)

    run_virtual(main())


def test_a_large_message_goes_on_with_the_next_connection() -> None:
    """Cut between two turns: nothing goes to the old connection any more, and each fragment once to the new one."""

    async def main() -> None:
        bench, second = Bench(), Line()
        bench.end.send(Body("w", EPOCH, LARGE, Part.WHOLE))
        await until(lambda: bench.line.items)
        before = len(bench.line.items)
        bench.link.connection_lost(bench.line)
        await settled()
        assert len(bench.line.items) == before
        bench.link.resume(second, peer_received=before)
        await until(lambda: second.items and second.items[-1].last)
        data = b"".join(item.data for item in bench.line.items + second.items)
        assert TO_GATEWAY.decode_message(data) == Body("w", EPOCH, LARGE, Part.WHOLE)

    run_virtual(main())


def test_closing_in_the_middle_of_a_large_message_sends_the_rest_first() -> None:
    """The goodbye is the last item, and nothing is written after it."""

    async def main() -> None:
        bench = Bench()
        bench.end.send(Body("w", EPOCH, LARGE, Part.WHOLE))
        await until(lambda: bench.line.items)
        bench.link.close()
        await settled()
        assert bench.line.items[-2].last
        assert bench.line.items[-1] == Bye()
        assert bench.line.ended == "closed"

    run_virtual(main())


def test_a_large_message_arrives_whole_across_a_cut() -> None:
    """Its fragments are numbered like any other item."""

    async def main() -> None:
        bench, second = Bench(), Line()
        lease = Lease("w", EPOCH, "r1", "/v1", "application/json", b"x" * (3 * FRAGMENT_BYTES), 9.0, VerifyMode.OFF)
        gateway_end, far = LinkEnd(), Line()
        gateway = ResumableLink(
            "c1", gateway_end, TO_GATEWAY, limits=DEFAULT_LIMITS, counts=LinkCounts(), over=lambda link: None
        )
        wires: list[bytes] = []
        far.write = wires.append
        gateway.open(far)
        gateway_end.send(lease)
        await asyncio.sleep(0)
        bench.link.frame_received(bench.line, wires[0])
        assert bench.end.messages == [lease]
        half = agent_codec().decode_frame(wires[0]).items
        other = Bench()
        other.hears(*half[:2])
        other.link.connection_lost(other.line)
        other.link.resume(second, peer_received=0)
        other.hears(*half, line=second)
        assert other.end.messages == [lease]
        assert other.counts.duplicates == 2

    run_virtual(main())


def test_the_end_that_closes_says_so_after_all_that_it_sent() -> None:
    """Whether or not the connection takes it at once; the other end then knows and does not wait."""

    async def main() -> None:
        bench = Bench()
        bench.line.writable = False
        bench.end.send(Accepted("a", EPOCH))
        bench.link.close()
        bench.link.close()
        bench.end.send(Accepted("b", EPOCH))
        assert bench.end.heard == []
        await asyncio.sleep(0)
        assert bench.line.items == [Accepted("a", EPOCH), Bye()]
        assert (bench.line.ended, bench.end.heard) == ("closed", [LOST])
        other = Bench()
        other.hears(Cancel("a", EPOCH), Bye(), Cancel("b", EPOCH))
        assert other.end.heard == [Cancel("a", EPOCH), LOST]
        assert bench.counts.lost == other.counts.lost == 0

    run_virtual(main())


def test_a_peer_that_sends_nonsense_loses_the_link() -> None:
    """Unreadable bytes, a gap, and fragments that make no message: counted, and told as a loss."""

    async def main() -> None:
        for act in (
            lambda bench: bench.link.frame_received(bench.line, b"\xc1"),
            lambda bench: bench.hears(Cancel("a", EPOCH), first=2),
            lambda bench: bench.hears(Fragment("a", b"\xc1", last=True)),
        ):
            bench = Bench()
            act(bench)
            assert bench.end.heard == [LOST]
            assert (bench.counts.malformed, bench.counts.lost, bench.line.ended) == (1, 1, "aborted")

    run_virtual(main())


def test_a_connection_to_a_peer_that_knows_less_than_it_acknowledged_is_no_resume() -> None:
    """The two do not speak of one channel, whatever its name."""

    async def main() -> None:
        bench, second = Bench(), Line()
        bench.end.send(Accepted("a", EPOCH))
        await asyncio.sleep(0)
        bench.hears(acknowledged=1)
        bench.link.resume(second, peer_received=0)
        assert bench.end.heard == [SUSPENDED, LOST]
        assert second.ended == "aborted"

    run_virtual(main())


def test_a_receiver_that_fails_on_one_message_still_gets_the_next() -> None:
    """A bug costs what it broke, not the messages behind it."""

    async def main() -> None:
        bench = Bench()

        def fail(message: object) -> None:
            bench.end.on_message = lambda message: None
            raise RuntimeError("a bug")

        bench.end.on_message = fail
        with pytest.raises(RuntimeError, match="a bug"):
            bench.hears(Cancel("a", EPOCH), Cancel("b", EPOCH))
        await asyncio.sleep(0)
        assert bench.end.heard == [Cancel("a", EPOCH), Cancel("b", EPOCH)]

    run_virtual(main())


def test_giving_a_link_up_tells_its_receiver_at_once_and_only_once() -> None:
    """The transport may give up what is lost already."""

    async def main() -> None:
        bench = Bench()
        bench.link.lose(Loss.FORGOTTEN)
        bench.link.lose(Loss.MALFORMED)
        assert bench.end.heard == [LOST]
        assert bench.line.ended == "aborted"

    run_virtual(main())
