"""The gateway's end of a real agent, played by a test: it gives leases out one by one and keeps what comes back."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from basert_fleet.agent.agent import Agent
from basert_fleet.agent.state import StateDirectory
from basert_fleet.core.api import BasertPool, BasertWorker, WorkerState
from basert_fleet.core.delivery import VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.plan import NodeView, plan
from basert_fleet.core.verdict import Reason
from basert_fleet.engine.canary import CHAT_PATH, lookup_key_request
from basert_fleet.telemetry.logs import make_logger
from basert_fleet.wire import memory
from basert_fleet.wire.messages import (
    Body,
    Cancel,
    Desired,
    End,
    Lease,
    Offer,
    Refused,
    ToAgent,
    ToGateway,
    Withdraw,
    WorkerStatus,
)

PATIENCE_SECONDS = 60.0  # a backstop, never waited for in full
NODE = "mac-1"
SIM = [sys.executable, "-m", "basert_fleet.sim"]


def pool_document(*sim_options: str, replicas: int = 1, journal: Path | None = None, **spec: object) -> BasertPool:
    """Return a pool of emulated workers."""
    journal_options = ["--sim-journal", str(journal)] if journal else []
    return BasertPool.model_validate(
        {
            "apiVersion": "fleet.basert.dev/v1alpha1",
            "kind": "BasertPool",
            "metadata": {"name": "qwen"},
            "spec": {
                "model": {"name": "Qwen/Qwen3.6-35B-A3B", "path": "model.base"},
                "replicas": replicas,
                "server": {"command": SIM, "args": [*sim_options, *journal_options]},
                **spec,
            },
        }
    )


class Desk:
    """What the agent sent, and ways to answer it."""

    def __init__(self) -> None:
        self.received: list[ToGateway] = []
        self.statuses: dict[str, WorkerStatus] = {}
        self.offers: dict[str, Epoch] = {}
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.link: memory.MemoryLink[ToAgent] | None = None
        self._revision = 0

    def message_received(self, message: ToGateway) -> None:
        self.received.append(message)
        match message:
            case WorkerStatus():
                self.statuses[message.worker] = message
            case Offer():
                self.offers[message.worker] = message.epoch
            case Withdraw():
                self.offers.pop(message.worker, None)
        self._wake()

    def link_lost(self) -> None:
        self._wake()

    def _wake(self) -> None:
        task = asyncio.ensure_future(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def send(self, message: ToAgent) -> None:
        assert self.link is not None
        self.link.send(message)

    def want(self, *workers: BasertWorker) -> None:
        self._revision += 1
        self.send(Desired(self._revision, tuple(worker.model_dump_json(by_alias=True).encode() for worker in workers)))

    def forget_revision(self) -> None:
        """Begin to number wishes anew, as something that is behind would."""
        self._revision = 0

    def want_pool(self, pool: BasertPool) -> list[BasertWorker]:
        workers = list(plan([pool], [NodeView(NODE, None, connected=True)], []).workers)
        self.want(*workers)
        return workers

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that some message brings about."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(condition)

    async def phase(self, phase: str, worker: str = "qwen-0") -> WorkerStatus:
        await self.until(lambda: worker in self.statuses and self.statuses[worker].phase == phase)
        return self.statuses[worker]

    async def offer(self, worker: str = "qwen-0") -> Epoch:
        """Wait for an offer and take it."""
        await self.until(lambda: worker in self.offers)
        return self.offers.pop(worker)

    async def lease(
        self,
        body: bytes,
        *,
        worker: str = "qwen-0",
        path: str = CHAT_PATH,
        verify: VerifyMode = VerifyMode.TOOL_CALLS,
        agreed: frozenset[Reason] = frozenset(),
        timeout_seconds: float = 60.0,
    ) -> Epoch:
        """Lease the worker's next offer to this request."""
        epoch = await self.offer(worker)
        self.send(
            Lease(worker, epoch, "req-1", path, "application/json", body, timeout_seconds, verify=verify, agreed=agreed)
        )
        return epoch

    def cancel(self, epoch: Epoch, worker: str = "qwen-0") -> None:
        self.send(Cancel(worker, epoch))

    def body(self, epoch: Epoch) -> bytes:
        return b"".join(m.data for m in self.received if isinstance(m, Body) and m.epoch == epoch)

    def ends(self) -> list[End]:
        return [message for message in self.received if isinstance(message, End)]

    async def end(self, epoch: Epoch) -> End:
        def ended() -> bool:
            return any(isinstance(m, End | Refused) and m.epoch == epoch for m in self.received)

        await self.until(ended)
        return next(m for m in self.received if isinstance(m, End) and m.epoch == epoch)

    async def ask(self, key: str, **lease: object) -> tuple[End, bytes]:
        """Run the seed's request and return its end and what was released."""
        epoch = await self.lease(lookup_key_request(key, "Qwen/Qwen3.6-35B-A3B"), **lease)  # type: ignore[arg-type]
        return await self.end(epoch), self.body(epoch)


@asynccontextmanager
async def desk(state: Path) -> AsyncIterator[Desk]:
    """Run a real agent against a desk; afterwards none of its processes is left."""
    front = Desk()
    agent = Agent(NODE, StateDirectory(state), version="test", log=make_logger(io.BytesIO()))
    front.link, link = memory.connect(front, agent)
    agent.bind(link)
    try:
        yield front
    finally:
        await agent.close()


def stopped(worker: BasertWorker) -> BasertWorker:
    """Return the document by which this worker is asked to stop."""
    return worker.model_copy(update={"spec": worker.spec.model_copy(update={"state": WorkerState.STOPPED})})
