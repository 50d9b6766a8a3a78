"""What holds for a link, whatever carries it: in memory, by WebSocket, and by WebSocket with TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from basert_fleet.core.delivery import Part, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.wire.messages import Accepted, Body, Cancel, Hello, Lease
from support.link_ends import LOST
from support.turns import until

if TYPE_CHECKING:
    from conftest import Pair

EPOCH = Epoch("ab12", 1, 1)


async def test_messages_arrive_in_order_both_ways_and_not_from_within_send(pair: Pair) -> None:
    """The sender's own call is over before anything is delivered."""
    to_gateway = [Accepted("w", Epoch("ab12", 1, number)) for number in range(100)]
    to_agent = [Cancel("w", Epoch("ab12", 1, number)) for number in range(100)]
    pair.agent.send(*to_gateway)
    pair.gateway.send(*to_agent)
    assert pair.agent.heard == pair.gateway.heard == []
    await until(lambda: len(pair.agent.heard) == len(pair.gateway.heard) == 100)
    assert (pair.gateway.heard, pair.agent.heard) == (to_gateway, to_agent)


async def test_each_end_learns_once_that_the_link_was_closed(pair: Pair) -> None:
    """The other one after all that was sent before; what is sent later is dropped."""
    pair.gateway.send(Cancel("w", EPOCH))
    pair.gateway.link.close()
    pair.gateway.link.close()
    pair.gateway.send(Cancel("v", EPOCH))
    await until(lambda: LOST in pair.agent.heard and LOST in pair.gateway.heard)
    assert pair.agent.heard[:2] == [Cancel("w", EPOCH), LOST]
    assert pair.gateway.heard == [LOST]


async def test_a_receiver_may_close_the_link_that_it_hears(pair: Pair) -> None:
    """Nothing is delivered from within, and the end is told once."""
    pair.gateway.on_message = lambda message: pair.gateway.link.close()
    pair.agent.send(Accepted("w", EPOCH))
    await until(lambda: LOST in pair.agent.heard and LOST in pair.gateway.heard)
    assert pair.gateway.heard == [Accepted("w", EPOCH), LOST]


async def test_two_ends_may_answer_each_other_at_once(pair: Pair) -> None:
    """Each answer is sent from within a delivery, and delivered later."""
    pair.gateway.on_message = lambda message: pair.gateway.send(Cancel("w", EPOCH))

    def answer(message: object) -> None:
        if len(pair.agent.heard) < 200:
            pair.agent.send(Accepted("w", EPOCH))

    pair.agent.on_message = answer
    pair.agent.send(Accepted("w", EPOCH))
    await until(lambda: len(pair.agent.heard) == 200)
    assert len(pair.gateway.heard) == 200


async def test_the_largest_messages_arrive_whole(pair: Pair) -> None:
    """A request of 32 MiB and an answer of 64; a Cancel stays behind its own Lease."""
    lease = Lease("w", EPOCH, "r1", "/v1/x", "application/json", bytes(32 * 2**20), 9.0, VerifyMode.FULL)
    body = Body("w", EPOCH, b"y" * (64 * 2**20), Part.WHOLE)
    pair.gateway.send(lease, Cancel("w", EPOCH))
    pair.agent.send(body, Accepted("w", EPOCH))
    await until(lambda: len(pair.agent.heard) == len(pair.gateway.heard) == 2)
    assert pair.agent.heard == [lease, Cancel("w", EPOCH)]
    assert pair.gateway.heard == [body, Accepted("w", EPOCH)]


async def test_an_introduction_comes_first_however_much_it_brings(pair: Pair) -> None:
    """A thousand workers' documents are many fragments, and a gateway reads nothing of an agent it does not know."""
    hello = Hello("mac-1", "ab12", "1.0", None, tuple(b"%0999d" % number for number in range(1000)))
    accepted = [Accepted(f"w-{number}", EPOCH) for number in range(1000)]
    pair.agent.send(hello, *accepted)
    await until(lambda: len(pair.gateway.heard) == 1001)
    assert pair.gateway.heard == [hello, *accepted]


async def test_thousands_of_messages_of_many_workers_arrive_each_in_its_order(pair: Pair) -> None:
    """Pieces of one response may come joined; their bytes and their order stay."""
    workers = [f"w-{number}" for number in range(20)]
    for number in range(500):
        pair.agent.send(*[Body(worker, EPOCH, b"%d," % number, Part.TEXT) for worker in workers])
    pair.agent.send(*[Accepted(worker, EPOCH) for worker in workers])
    await until(lambda: sum(isinstance(message, Accepted) for message in pair.gateway.heard) == 20)
    for worker in workers:
        *bodies, last = [message for message in pair.gateway.messages if message.worker == worker]
        assert b"".join(body.data for body in bodies) == b"".join(b"%d," % number for number in range(500))
        assert isinstance(last, Accepted)
