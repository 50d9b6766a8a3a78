"""The agent: makes its workers what the gateway's newest desired state says, and passes each message to its worker."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict

from structlog.typing import FilteringBoundLogger

from basert_fleet.agent.node import allocatable_bytes
from basert_fleet.agent.processes import kill_leftover
from basert_fleet.agent.state import SlotAlreadyHeld, SlotRecord, StateDirectory, boot_time
from basert_fleet.agent.worker import Worker
from basert_fleet.core.api import BasertWorker
from basert_fleet.core.isolation import DriftTrust
from basert_fleet.core.lifecycle import State
from basert_fleet.wire.link import Link
from basert_fleet.wire.messages import Cancel, Desired, Hello, Lease, ToAgent, ToGateway, WorkerStatus


class Agent:
    """One node's workers, under one gateway. After `close` no process that it started is left."""

    def __init__(self, node: str, state: StateDirectory, *, version: str, log: FilteringBoundLogger) -> None:
        self._node, self._state, self._version, self._log = node, state, version, log
        self._incarnation = secrets.token_hex(8)
        self._link: Link[ToGateway] | None = None
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._documents: dict[str, bytes] = {}
        self._trusts: defaultdict[str, DriftTrust] = defaultdict(DriftTrust)
        self._revision = 0

    # --- the link

    def bind(self, link: Link[ToGateway]) -> None:
        """Introduce the agent on a new link, and say how every worker is."""
        self._link = link
        link.send(Hello(self._node, self._incarnation, self._version, allocatable_bytes()))
        for worker in self._workers.values():
            link.send(worker.status())

    def message_received(self, message: ToAgent) -> None:
        """Take one message of the gateway."""
        match message:
            case Lease():
                worker = self._workers.get(message.worker)
                if worker is not None:
                    worker.lease(message)
            case Cancel():
                worker = self._workers.get(message.worker)
                if worker is not None:
                    worker.cancel(message)
            case Desired():
                self._apply(message)

    def link_lost(self) -> None:
        """Take note that the gateway is gone. Workers stay: absence is never an instruction (promise 5)."""
        self._link = None
        for worker in self._workers.values():
            worker.abandoned()

    def _send(self, message: ToGateway) -> None:
        if self._link is not None:
            self._link.send(message)

    # --- the workers

    async def drain(self, seconds: float) -> None:
        """Stop all workers after their leases; those that need longer than `seconds` are left to `close`."""
        for worker in self._workers.values():
            worker.stop()
        if self._workers:
            await asyncio.wait(
                [asyncio.ensure_future(worker.rested()) for worker in self._workers.values()], timeout=seconds
            )

    async def close(self) -> None:
        """End all workers now. On return no process of theirs is left."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _apply(self, desired: Desired) -> None:
        if desired.revision <= self._revision:
            return
        self._revision = desired.revision
        listed = set()
        for document in desired.workers:
            worker = BasertWorker.model_validate_json(document)
            name = worker.metadata.name
            listed.add(name)
            if self._documents.get(name) != document:
                self._documents[name] = document
                self._apply_worker(worker)
        for name in self._workers.keys() - listed:
            self._forget_if_at_rest(name)

    def _apply_worker(self, document: BasertWorker) -> None:
        known = self._workers.get(document.metadata.name)
        if known is not None:
            known.update(document)
            return
        try:
            record = self._state.open_slot(document.metadata.name)
        except SlotAlreadyHeld as error:
            self._documents.pop(document.metadata.name)
            self._send(_fatal(document, str(error)))
            return
        self._end_leftover(document.metadata.name, record)
        self._start_worker(document, record)

    def _start_worker(self, document: BasertWorker, record: SlotRecord) -> None:
        name = document.metadata.name
        worker = Worker(
            document,
            incarnation=self._incarnation,
            record=record,
            log=self._state.logs / f"{name}.log",
            trust=self._trusts[document.spec.pool],
            send=self._send,
        )
        self._workers[name] = worker
        self._send(worker.status())
        task = asyncio.create_task(worker.run(), name=f"worker {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(worker, done))

    def _end_leftover(self, name: str, record: SlotRecord) -> None:
        """End what an earlier agent left: only one that lives may be offered, and nobody knows what it is doing."""
        left = record.read()
        if left is not None and left.boot == boot_time() and kill_leftover(left.pid, left.created):
            self._log.warning("leftover_killed", worker=name, pid=left.pid, settled=left.settled)

    def _forget_if_at_rest(self, name: str) -> None:
        if self._workers[name].at_rest:
            self._tasks[name].cancel()

    def _ended(self, worker: Worker, task: asyncio.Task[None]) -> None:
        """Take a worker out whose loop ended; one that ended by a bug stays visible as FATAL."""
        name = worker.name
        document = self._documents.pop(name, None)
        del self._workers[name], self._tasks[name]
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._log.error("worker_loop_failed", worker=name, exc_info=bug)
            if document is not None:
                message = (
                    f"a bug in the agent ended this worker: {bug!r}. Please report it; a changed spec starts anew."
                )
                self._send(_fatal(BasertWorker.model_validate_json(document), message))


def _fatal(document: BasertWorker, message: str) -> WorkerStatus:
    return WorkerStatus(
        worker=document.metadata.name,
        pool=document.spec.pool,
        phase=State.FATAL.value,
        generation=0,
        template="",
        message=message,
    )
