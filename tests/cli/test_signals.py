"""The first signal asks to stop, the second not to wait."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from basert_fleet.cli.signals import SIGNALS, Interrupts


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
async def test_the_first_signal_stops_and_the_second_hurries(number: signal.Signals) -> None:
    """Each of the signals counts, whichever comes first; afterwards the old handlers are back."""
    before = signal.getsignal(number)
    interrupts = Interrupts()
    with interrupts.listening():
        os.kill(os.getpid(), number)
        await interrupts.stop.wait()
        assert not interrupts.at_once.is_set()
        os.kill(os.getpid(), number)
        await interrupts.at_once.wait()
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)


async def test_an_ignored_signal_stays_ignored() -> None:
    """A fleet that was started with nohup outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts().listening():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_work_is_finished_without_a_second_signal() -> None:
    """Work that may take its time gives its result."""

    async def work() -> str:
        return "done"

    assert await Interrupts().unless_at_once(work()) == "done"


async def test_a_second_signal_cuts_the_work() -> None:
    """Work that hangs is cancelled, and its cleanup has run when the call returns."""
    interrupts, cleaned = Interrupts(), []

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)
        return "never"

    waiting = asyncio.create_task(interrupts.unless_at_once(work()))
    interrupts.at_once.set()
    assert await waiting is None
    assert cleaned


async def test_a_failure_of_the_work_is_not_lost() -> None:
    """What the work raises comes out."""

    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Interrupts().unless_at_once(work())


async def test_cancelling_the_caller_cancels_the_work() -> None:
    """No task is left behind when the waiting itself is cancelled."""
    interrupts, cleaned, started = Interrupts(), [], asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    waiting = asyncio.create_task(interrupts.unless_at_once(work()))
    await started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cleaned
    assert len(asyncio.all_tasks()) == 1
