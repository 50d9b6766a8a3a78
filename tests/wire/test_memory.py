"""A link within one process: ordered, never re-entrant, and lost once."""

from __future__ import annotations

import asyncio

from basert_fleet.wire.memory import MemoryLink, connect
from support.turns import settled


class Ear:
    """A receiver that keeps what it hears, and may answer at once."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.answers: MemoryLink[object] | None = None

    def message_received(self, message: object) -> None:
        self.heard.append(message)
        if self.answers is not None:
            self.answers.send(f"answer to {message}")

    def link_lost(self) -> None:
        self.heard.append("lost")


async def test_messages_arrive_in_order_and_not_from_within_send() -> None:
    """The sender's own call is over before anything is delivered."""
    a, b = Ear(), Ear()
    from_a, _ = connect(a, b)
    from_a.send(1)
    from_a.send(2)
    assert b.heard == []
    await settled(2)
    assert b.heard == [1, 2]


async def test_each_end_learns_once_that_the_link_is_lost() -> None:
    """After the messages before it; what is sent later is dropped."""
    a, b = Ear(), Ear()
    from_a, from_b = connect(a, b)
    from_a.send(1)
    from_b.close()
    from_a.close()
    from_a.send(2)
    await settled(3)
    assert (a.heard, b.heard) == (["lost"], [1, "lost"])


async def test_two_ends_that_answer_each_other_leave_the_loop_to_others() -> None:
    """An endless conversation takes turns with everything else."""
    a, b = Ear(), Ear()
    a.answers, b.answers = connect(a, b)
    a.answers.send("hello")
    await asyncio.sleep(0)
    await settled(10)
    assert 1 <= len(a.heard) < 20
    a.answers.close()
    await settled(3)
    assert a.heard[-1] == b.heard[-1] == "lost"
