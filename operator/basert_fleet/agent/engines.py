"""What a worker needs of an engine and of where its engines come from.

Two things differ between a process that the agent starts (`starting.Spawner`) and a server that something else runs
(`attached.Attachment`): how the next one comes to be, and what can be done about one that is not trusted.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from basert_fleet.agent.generation import Process
from basert_fleet.core.api import BasertWorker
from basert_fleet.core.errors import FleetError

if TYPE_CHECKING:
    from basert_fleet.agent.slot import Slot


class StartFailed(FleetError):
    """An engine did not come to listen, or not as the worker's own."""

    code = "start_failed"


class Engine(Process, Protocol):
    """One engine for as long as a worker uses it. `exited` resolves once it is not to be used any more."""

    @property
    def pid(self) -> int | None:
        """The pid of the process, if it is ours."""

    @property
    def probe_good_for_seconds(self) -> float:
        """How long what its idle slot showed may be taken to hold, before it is asked again ahead of a lease."""

    def has_exited(self) -> bool:
        """Say whether it is gone, as far as can be seen now: `exited` may resolve some turns of the loop later."""

    def suspect_restart(self, sign: str) -> None:
        """Take note of what may mean that another process answers now; it matters where no pid tells that."""

    def remember_family(self) -> None:
        """Note which processes it has forked so far."""

    async def end(self, *, drain_seconds: float) -> None:
        """Be done with it: with some time to drain it is trusted, with 0 it is not. Its worker uses it no more."""


class EngineSource(Protocol):
    """Where one worker's engines come from, for the worker's whole life."""

    @property
    def note(self) -> str:
        """What a start waits for, for a person; empty if that it starts says it all."""

    @property
    def out_of_service(self) -> str:
        """Why there can be no next engine now, and what to do; empty if there can."""

    def turn(self) -> AbstractContextManager[asyncio.Event]:
        """Ask for a turn to start within the block, whose end gives it back; the event is set once it has come."""

    async def launch(self, worker: BasertWorker, generation: int) -> Slot:
        """Return the slot of the next engine, as the worker's document asks for it; it need not listen yet.

        Raises:
            FleetError, OSError: there is none.
        """

    async def listening(self, slot: Slot) -> None:
        """Return once the engine answers, and is known to be the one that is meant.

        Raises:
            StartFailed: it will not.
        """

    def ended(self) -> str:
        """Take note that the last engine was ended, whether or not there was one. Must not fail.

        Return what a person has to know because it could not be recorded; empty if nothing is lost by that.
        """

    async def mended(self) -> None:
        """Return once there can be a next engine though there could not before; that may be never."""
