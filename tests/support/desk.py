"""The gateway's end of a real agent, played by a test: it gives leases out one by one and keeps what comes back."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from basert_fleet.agent.agent import NOTHING_ATTACHED, Agent
from basert_fleet.agent.attached import AttachedServer
from basert_fleet.agent.state import StateDirectory
from basert_fleet.core.api import BasertPool, BasertWorker, WorkerState
from basert_fleet.core.delivery import VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.plan import NodeView, WorkerView, plan
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
MODEL = "Qwen/Qwen3.6-35B-A3B"
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
                "model": {"name": MODEL, "path": "model.base"},
                "replicas": replicas,
                "server": {"command": SIM, "args": [*sim_options, *journal_options]},
                **spec,
            },
        }
    )


def chat(content: str, **more: Any) -> bytes:
    """Return a plain chat request."""
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}], **more}).encode()


class Desk:
    """What the agent sent, and ways to answer it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.received: list[ToGateway] = []
        self.statuses: dict[str, WorkerStatus] = {}
        self.offers: dict[str, Epoch] = {}
        """By worker: those of idle slots."""
        self.offers_ahead: dict[str, Epoch] = {}
        """Those of slots whose last lease has not ended."""
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._link: memory.MemoryLink[ToAgent] | None = None
        self._revision = 0

    def message_received(self, message: ToGateway) -> None:
        self.received.append(message)
        match message:
            case WorkerStatus():
                self.statuses[message.worker] = message
            case Offer(ahead=False):
                self.offers[message.worker] = message.epoch
            case Offer():
                self.offers_ahead[message.worker] = message.epoch
            case End() if message.worker in self.offers_ahead:
                self.offers[message.worker] = self.offers_ahead.pop(message.worker)
            case Withdraw():
                self.offers.pop(message.worker, None)
                self.offers_ahead.pop(message.worker, None)
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

    def dial(self) -> None:
        """Let the agent introduce itself on a new link."""
        self._link, to_desk = memory.connect(self, self._agent)
        self._agent.bind(to_desk)

    def cut(self) -> None:
        """Lose the link. What was offered on it is worth nothing any more."""
        assert self._link is not None
        self._link.close()
        self.offers.clear()
        self.offers_ahead.clear()

    def send(self, message: ToAgent) -> None:
        assert self._link is not None
        self._link.send(message)

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

    async def begun(self, epoch: Epoch) -> None:
        """Wait for the first piece of a lease's response."""
        await self.until(lambda: any(isinstance(m, Body) and m.epoch == epoch for m in self.received))

    def reported(self) -> list[WorkerStatus]:
        """Return every status that was reported, in order."""
        return [message for message in self.received if isinstance(message, WorkerStatus)]

    def phases(self) -> list[str]:
        """Return every phase that was reported, in order."""
        return [status.phase for status in self.reported()]

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
        epoch = await self.lease(lookup_key_request(key, MODEL), **lease)  # type: ignore[arg-type]
        return await self.end(epoch), self.body(epoch)


@asynccontextmanager
async def desk(state: Path, attached: Mapping[str, AttachedServer] = NOTHING_ATTACHED) -> AsyncIterator[Desk]:
    """Run a real agent against a desk; afterwards none of its processes is left."""
    agent = Agent(NODE, StateDirectory(state), version="test", log=make_logger(io.BytesIO()), attached=attached)
    front = Desk(agent)
    front.dial()
    try:
        yield front
    finally:
        await agent.close()


def edited(worker: BasertWorker, **spec: object) -> BasertWorker:
    """Return the worker's document with other values in its spec, and the same template."""
    return worker.model_copy(update={"spec": worker.spec.model_copy(update=spec)})


def stopped(worker: BasertWorker) -> BasertWorker:
    """Return the document by which this worker is asked to stop."""
    return edited(worker, state=WorkerState.STOPPED)


def replanned(pool: BasertPool, workers: list[BasertWorker]) -> list[BasertWorker]:
    """Return the same workers as a changed pool wants them at once, whether they serve or not."""
    return list(
        plan([pool], [NodeView(NODE, None, connected=True)], [WorkerView(worker) for worker in workers]).workers
    )
