"""The agent: makes its workers what the gateway's newest desired state says, and passes each message to its worker."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError
from structlog.typing import FilteringBoundLogger

from basert_fleet.agent.attached import AttachedServer, Attachment
from basert_fleet.agent.engines import EngineSource
from basert_fleet.agent.listeners import Listeners
from basert_fleet.agent.node import allocatable_bytes
from basert_fleet.agent.processes import kill_each, kill_leftover, marked_processes
from basert_fleet.agent.starting import Spawner
from basert_fleet.agent.state import SlotAlreadyHeld, SlotRecord, StateDirectory, StateUnusable
from basert_fleet.agent.turns import STARTS_AT_ONCE, Turns
from basert_fleet.agent.worker import Worker
from basert_fleet.agent.worker_log import rotate
from basert_fleet.core.api import BasertWorker
from basert_fleet.core.isolation import DriftTrust
from basert_fleet.core.lifecycle import State
from basert_fleet.wire.link import Link
from basert_fleet.wire.messages import (
    Cancel,
    Desired,
    Hello,
    Lease,
    Recall,
    Refused,
    Rejected,
    ToAgent,
    ToGateway,
    WorkerStatus,
)

HOUSEKEEPING_SECONDS = 10.0
"""Chosen: an engine that floods its log writes a few times the log's bound in that time, no more."""


NOTHING_ATTACHED: Mapping[str, AttachedServer] = MappingProxyType({})


def keep_nothing(_documents: tuple[bytes, ...]) -> None:
    """Keep no desired state: for an agent that lives and ends with its gateway."""


class Agent:
    """One node's workers, under one gateway: the endpoint of its link, and of each link after a lost one.

    Making one takes its state directory over, and ends the processes that an earlier agent left there. After `close` no
    process that it started is left.
    """

    def __init__(
        self,
        node: str,
        state: StateDirectory,
        *,
        version: str,
        log: FilteringBoundLogger,
        keep: Callable[[tuple[bytes, ...]], None] = keep_nothing,
        attached: Mapping[str, AttachedServer] = NOTHING_ATTACHED,
    ) -> None:
        """`keep` is called with what the workers should be, as JSON, when that has changed; it must not fail.

        `attached` are the workers, by name, that are servers which something else runs.
        """
        self._node, self._state, self._version, self._log = node, state, version, log
        self._keep = keep
        self._attached = attached
        self._turns, self._listeners = Turns(STARTS_AT_ONCE), Listeners()
        self.on_status: list[Callable[[WorkerStatus], None]] = []
        """Called with each status of a worker when it changes, whether or not there is a gateway to tell."""
        self._incarnation = secrets.token_hex(8)
        self._link: Link[ToGateway] | None = None
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._documents: dict[str, bytes] = {}
        self._given_up: dict[str, WorkerStatus] = {}
        self._generations: dict[str, int] = {}
        """The last generation of each worker whose loop ended: another loop of that name goes on from there."""
        self._trusts: defaultdict[tuple[str, str], DriftTrust] = defaultdict(DriftTrust)
        """By pool and template: what is known of a build's counters says nothing about another's."""
        self._revision = 0
        self._rejection = ""
        """Why the gateway did not take this agent, while that lasts."""
        self._draining = False
        self._housekeeping: asyncio.Task[None] | None = None
        self._end_leftovers()

    # --- the link

    def bind(self, link: Link[ToGateway]) -> None:
        """Introduce the agent on a new link, and say how every worker is.

        Whoever is at its other end may be a new gateway, which counts its revisions from the beginning.
        """
        self._link, self._revision = link, 0
        link.send(Hello(self._node, self._incarnation, self._version, allocatable_bytes(), self._held()))
        for status in [*(worker.status() for worker in self._workers.values()), *self._given_up.values()]:
            link.send(status)
        for worker in self._workers.values():
            worker.introduced()

    def message_received(self, message: ToAgent) -> None:
        """Take one message of the gateway."""
        match message:
            case Lease():
                worker = self._workers.get(message.worker)
                if worker is None:
                    self._send(Refused(message.worker, message.epoch))
                else:
                    worker.lease(message)
            case Cancel():
                worker = self._workers.get(message.worker)
                if worker is not None:
                    worker.cancel(message)
            case Recall():
                worker = self._workers.get(message.worker)
                if worker is not None:
                    worker.recall(message)
            case Desired():
                self._rejection = ""
                self._apply(message)
            case Rejected():
                self._rejected(message)

    def _rejected(self, rejected: Rejected) -> None:
        """Log why the gateway does not take this agent: once, not at each time that it dials again."""
        if rejected.reason != self._rejection:
            self._log.warning("agent refused", reason=rejected.reason)
        self._rejection = rejected.reason

    def link_suspended(self) -> None:
        """Go on: what is sent meanwhile arrives once the link is resumed, or never, and `link_lost` tells that."""

    def link_resumed(self) -> None:
        """Go on: nothing was lost."""

    def link_lost(self) -> None:
        """Take note that the gateway is gone. Workers stay: absence is never an instruction (promise 5)."""
        self._link = None
        for worker in self._workers.values():
            worker.abandoned()

    def _send(self, message: ToGateway) -> None:
        if isinstance(message, WorkerStatus):
            for callback in self.on_status:
                callback(message)
        if self._link is not None:
            self._link.send(message)

    # --- the workers

    def restore(self, documents: Iterable[bytes]) -> None:
        """Run what an earlier agent of this node was told last, until a gateway says otherwise (promise 5)."""
        self._take(documents)

    async def drain(self, seconds: float) -> bool:
        """Stop all workers after their leases; say whether `seconds` were enough. The rest is left to `close`."""
        self._draining = True
        for worker in self._workers.values():
            worker.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for worker in list(self._workers.values()):
                    await worker.rested()
                return True
        return False

    async def close(self) -> None:
        """End all workers now. On return no process of theirs is left."""
        tasks = list(self._tasks.values())
        if self._housekeeping is not None:
            tasks.append(self._housekeeping)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _apply(self, desired: Desired) -> None:
        """Take a newer desired state. A worker that is not listed is left as it is.

        A stopped worker is kept, idle, for as long as the agent lives: its epochs must go on growing if it comes back.
        """
        if desired.revision <= self._revision:
            return
        self._revision = desired.revision
        self._take(desired.workers)
        self._keep(self._held())

    def _take(self, documents: Iterable[bytes]) -> None:
        for document in documents:
            try:
                worker = BasertWorker.model_validate_json(document)
            except ValidationError as error:  # of another release: the worker, if there is one, stays as it is
                self._log.error("desired worker unreadable", problem=str(error))
                continue
            if self._documents.get(worker.metadata.name) != document:
                self._documents[worker.metadata.name] = document
                self._apply_worker(worker)

    def _held(self) -> tuple[bytes, ...]:
        """Return the documents of all workers but those that were to stop and have."""
        stopped = {name for name, worker in self._workers.items() if worker.has_stopped}
        return tuple(document for name, document in self._documents.items() if name not in stopped)

    def _apply_worker(self, document: BasertWorker) -> None:
        """Start or change one worker; one that cannot be had is FATAL and keeps no other from starting."""
        known = self._workers.get(document.metadata.name)
        if known is not None:
            known.update(document)
            return
        try:
            record = self._state.open_slot(document.metadata.name)
        except (SlotAlreadyHeld, StateUnusable) as error:
            self._give_up(document, str(error))
            return
        self._start_worker(document, record)

    def _start_worker(self, document: BasertWorker, record: SlotRecord) -> None:
        name, pool = document.metadata.name, document.spec.pool
        worker = Worker(
            document,
            incarnation=self._incarnation,
            record=record,
            engines=self._engines_of(name, record),
            log=self._log_of(name),
            after_generation=self._generations.get(name, 0),
            trust_of=lambda template: self._trusts[pool, template],
            send=self._send,
        )
        if self._draining:
            worker.stop()
        self._workers[name] = worker
        self._given_up.pop(name, None)
        self._send(worker.status())
        task = asyncio.create_task(worker.run(), name=f"worker {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(worker, done))
        if self._housekeeping is None:
            self._housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")

    def _engines_of(self, worker: str, record: SlotRecord) -> EngineSource:
        server = self._attached.get(worker)
        if server is None:
            return Spawner(record, self._log_of(worker), self._turns, self._listeners)
        return Attachment(server, record, self._log_of(worker))

    def _log_of(self, worker: str) -> Path:
        return self._state.logs / f"{worker}.log"

    async def _keep_house(self) -> None:
        """Keep every worker's log within its bound, also while its process lives for weeks (C35)."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            for name in list(self._workers):
                try:
                    await asyncio.to_thread(rotate, self._log_of(name))
                except OSError as error:
                    self._log.warning("worker log not bounded", worker=name, error=str(error))

    def _end_leftovers(self) -> None:
        """End what an earlier agent left, wanted or not: nobody knows what it is doing, so it may not be offered.

        A slot that another agent holds is that agent's.
        """
        marked = marked_processes()
        for name in self._state.slots():
            try:
                record = self._state.open_slot(name)
            except (SlotAlreadyHeld, StateUnusable):
                continue
            left = record.read()
            if left is not None and left.is_ours_to_end and kill_leftover(left.pid, left.created):
                self._log.warning("leftover process killed", worker=name, pid=left.pid, settled=left.settled)
            kill_each(marked.get(str(record.path), ()))
            record.close()

    def _ended(self, worker: Worker, task: asyncio.Task[None]) -> None:
        """Take a worker out whose loop ended; one that ended by itself met a bug, and stays visible as FATAL."""
        document = self._documents.pop(worker.name, None)
        del self._workers[worker.name], self._tasks[worker.name]
        self._generations[worker.name] = worker.generation
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._log.error("worker loop failed", worker=worker.name, exc_info=bug)
            if document is not None:
                why = (
                    f"a bug in the agent ended this worker ({bug!r}); please report it. A changed spec starts it anew."
                )
                self._give_up(BasertWorker.model_validate_json(document), why)

    def _give_up(self, document: BasertWorker, why: str) -> None:
        """Show a worker that cannot be had, on this link and on later ones."""
        status = WorkerStatus(
            worker=document.metadata.name,
            pool=document.spec.pool,
            phase=State.FATAL.value,
            generation=0,
            template="",
            message=why,
        )
        self._given_up[status.worker] = status
        self._send(status)
