"""The alarm: earliest time wins, and what is over already rings at once, on whatever loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from basert_fleet.wire.alarm import Alarm
from support.virtual_loop import run_virtual

uvloop = pytest.importorskip("uvloop", reason="the loop whose handles of past times are no timers")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_time_that_is_over_rings_at_once_and_may_be_asked_for_twice(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Uvloop answers `call_at` of a past time with a handle that has no `when()`: asking again must not fail."""

    async def ask_twice() -> int:
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()
        times: list[float] = []

        def ring() -> None:
            times.append(loop.time())
            rung.set()

        alarm = Alarm(ring)
        alarm.set_by(loop.time() - 1)
        alarm.set_by(loop.time() - 1)
        alarm.set_by(loop.time() + 60)
        await rung.wait()
        return len(times)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(ask_twice()) == 1


def test_the_earliest_time_wins() -> None:
    """A later time does not postpone, an earlier one brings forward; having rung, it rings anew only if asked."""

    async def rings() -> list[float]:
        loop = asyncio.get_running_loop()
        times: list[float] = []
        alarm = Alarm(lambda: times.append(loop.time()))
        for due in (7.0, 9.0, 3.0, None):
            alarm.set_by(due)
        await asyncio.sleep(5)
        alarm.set_by(8.0)
        await asyncio.sleep(5)
        alarm.set_by(12.0)
        alarm.cancel()
        await asyncio.sleep(5)
        return times

    assert run_virtual(rings()) == [3.0, 8.0]
