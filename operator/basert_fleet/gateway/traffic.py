"""Whose request is on which slot, and which message follows from it.

It owns each pool's dispatch and the leases that have not ended. Decisions are made elsewhere: `core.dispatch` says who
runs where, `core.delivery` what follows an attempt; here their effects become messages, and messages become their
inputs. All of it happens in calls from the event loop: nothing waits, so there is nothing to cancel.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from basert_fleet.core.delivery import Deliver, Fail, FailStream, Next, Outcome, RunElsewhere, blames_request
from basert_fleet.core.dispatch import (
    Assign,
    CancelLease,
    Dropped,
    LeaseLost,
    OfferKind,
    Priority,
    RecallLease,
    Refuse,
    Retake,
)
from basert_fleet.core.lifecycle import State
from basert_fleet.core.refusals import CrashLedger
from basert_fleet.gateway import reports
from basert_fleet.gateway.errors import Code, Failure, RequestFault
from basert_fleet.gateway.outcomes import CANCELLED, CLIENT_ERROR, OK, OUTCOMES, outcome_of
from basert_fleet.gateway.pools import ServedPool, refusal
from basert_fleet.wire.alarm import Alarm
from basert_fleet.wire.messages import Accepted, Body, Cancel, End, Head, Offer, Recall, Refused, Withdraw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from basert_fleet.core.api import BasertPool
    from basert_fleet.core.dispatch import Effect, Exclusion
    from basert_fleet.core.epoch import Epoch
    from basert_fleet.gateway.ask import Ask
    from basert_fleet.gateway.exchange import Exchange
    from basert_fleet.gateway.sessions import Frame, Session
    from basert_fleet.telemetry.logs import FleetLog
    from basert_fleet.telemetry.metrics import Metrics, PoolMetrics

EARLY_HEAD_SECONDS = 15.0
"""After a lease is accepted, how long a stream's status stays open (design 5)."""
DEADLINE_GRACE_SECONDS = 5.0
"""What an agent has, past a request's total time, to end the lease itself and say how it went. Chosen."""
BUFFER_BYTES = 8 * 1024**2
"""Of one response, for a client that reads slower than its worker writes: many minutes of generated text."""
_COMING = frozenset(State) - {State.STOPPED, State.DRAINING, State.BACKOFF, State.FATAL}
"""Phases from which a worker serves, or will before long by itself."""
CRASH_ENTRIES = 10_000
"""Bodies remembered because they crashed a worker: about 2 MB of memory."""

_CRASHED = Failure(Code.REQUEST_REFUSED, "This request has crashed two workers; it is not run again.")


@dataclass(frozen=True, slots=True)
class _Slot:
    """Whose slot it is, and for which pool."""

    session: Session
    pool: ServedPool


@dataclass(slots=True)
class _Running:
    """A lease that was sent and has not ended."""

    pool: ServedPool
    exchange: Exchange
    session: Session
    worker: str
    epoch: Epoch
    accepted: bool = False
    early_head: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        if self.early_head is not None:
            self.early_head.cancel()


class Traffic:
    """The requests of all pools, from their arrival to their final answer."""

    def __init__(self, metrics: Metrics, log: FleetLog, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._log = log
        self._buffer_bytes = buffer_bytes
        self._pools: dict[str, ServedPool] = {}
        self._pool_of_model: dict[str, ServedPool] = {}
        self._running: dict[tuple[str, Epoch], _Running] = {}
        """By worker and epoch: a slot has one lease, and at most one more that waits for that one's end."""
        self._slots: dict[str, _Slot] = {}
        """By worker: all that have been offered and whose agent is connected."""
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._crashes = CrashLedger(max_entries=CRASH_ENTRIES)
        self._alarm = Alarm(self._tick)
        self._idle = asyncio.Event()
        self._idle.set()

    # --- Pools --------------------------------------------------------------------------------------------------------

    @property
    def pools(self) -> Iterator[ServedPool]:
        """The pools that are served; a removed one is not, even while its last requests run."""
        return (pool for pool in self._pools.values() if not pool.retired)

    def metrics_of(self, pool: str) -> PoolMetrics | None:
        """Return a pool's counters, if the pool is known."""
        return self._pools[pool].metrics if pool in self._pools else None

    def apply(self, resources: Iterable[BasertPool]) -> None:
        """Serve these pools from now on. What runs in a removed one may finish; what waits there is refused."""
        wanted = {pool.metadata.name: pool for pool in resources}
        for name, resource in wanted.items():
            if name in self._pools:
                self._pools[name].update(resource)
            else:
                priorities = [priority.name.lower() for priority in Priority]
                metrics = self._metrics.declare_pool(name, outcomes=OUTCOMES, priorities=priorities)
                self._pools[name] = ServedPool(resource, metrics)
        for pool in [pool for name, pool in self._pools.items() if name not in wanted]:
            pool.retired = True
            self.set_capacity(pool, possible=False)
        self._pool_of_model = {model: pool for pool in self.pools for model in pool.models}

    def set_capacity(self, pool: ServedPool, *, possible: bool) -> None:
        """Say whether the pool can have a worker at all; while it cannot, nobody waits in it."""
        self._perform(pool, pool.dispatch.capacity(possible=possible, now=self._loop.time()))
        self._forget_retired(pool)

    # --- Requests -----------------------------------------------------------------------------------------------------

    @property
    def in_progress(self) -> int:
        """Requests without a final answer."""
        return sum(len(pool.exchanges) for pool in self._pools.values())

    @property
    def leases(self) -> Mapping[str, Epoch]:
        """The leases that have not ended, by worker; none that stands behind another one."""
        leases: dict[str, Epoch] = {}
        for worker, epoch in self._running:
            leases.setdefault(worker, epoch)
        return leases

    def is_known(self, request_id: str) -> bool:
        """Say whether a request of this id is in progress, or still holds a slot after its client left."""
        return any(pool.dispatch.knows(request_id) for pool in self._pools.values())

    def submit(self, ask: Ask, abort: Callable[[], None]) -> Exchange:
        """Queue a request; its exchange tells what becomes of it. `abort` must drop the client's connection.

        Raises:
            RequestFault: no pool has this model, or the body has crashed two workers lately.
        """
        if ask.model is None:
            raise RequestFault.because(
                Code.INVALID_REQUEST, "'model' is missing. GET /v1/models lists them.", param="model"
            )
        pool = self._pool_of_model.get(ask.model)
        if pool is None:
            raise RequestFault.because(Code.MODEL_NOT_FOUND, f"The model {ask.model!r} does not exist.", param="model")
        now = self._loop.time()
        if self._is_refused(ask, now):
            raise RequestFault(_CRASHED)
        exchange = pool.exchange_for(ask, now, self._buffer_bytes)
        exchange.abort = abort
        self._idle.clear()
        deadline = pool.deadline(exchange) + DEADLINE_GRACE_SECONDS
        self._deadlines[ask.request_id] = self._loop.call_at(deadline, self._overdue, pool, exchange)
        self._perform(pool, pool.dispatch.enqueue(pool.queued(exchange), now))
        return exchange

    def client_gone(self, exchange: Exchange) -> None:
        """Take in that nobody waits for the answer (C03). Nothing happens if it is complete already."""
        pool = self._pools.get(exchange.pool)
        if pool is not None and self._is_open(pool, exchange):
            exchange.drop()
            self._abandon(pool, exchange, CANCELLED)

    def cut(self, exchange: Exchange) -> None:
        """Drop a client that does not read its response, and whatever it has not read."""
        exchange.drop()
        exchange.abort()
        pool = self._pools.get(exchange.pool)
        if pool is not None and self._is_open(pool, exchange):
            self._abandon(pool, exchange, CLIENT_ERROR)

    def fail_all(self, failure: Failure) -> None:
        """Give every request that is in progress this error."""
        for pool in list(self._pools.values()):
            for exchange in list(pool.exchanges.values()):
                exchange.fail(failure)
                self._abandon(pool, exchange, outcome_of(failure.code))

    def first_byte(self, exchange: Exchange) -> None:
        """Take in that the response begins to reach its client."""
        metrics = self.metrics_of(exchange.pool)
        if metrics is not None:
            metrics.time_to_first_byte_seconds.observe(self._loop.time() - exchange.arrived_at)

    async def idle(self) -> None:
        """Return once no request is in progress."""
        await self._idle.wait()

    def _overdue(self, pool: ServedPool, exchange: Exchange) -> None:
        """Its agent should have ended it by now; the client gets its answer all the same."""
        failure = Failure(Code.REQUEST_TIMEOUT, "The request's time was over before its response was.")
        exchange.fail(failure)
        self._abandon(pool, exchange, outcome_of(failure.code))

    def _abandon(self, pool: ServedPool, exchange: Exchange, outcome: str) -> None:
        self._conclude(pool, exchange, outcome)
        self._perform(pool, pool.dispatch.cancel(exchange.ask.request_id, self._loop.time()))

    def _conclude(self, pool: ServedPool, exchange: Exchange, outcome: str) -> None:
        """Count a request's final answer, once; its lease, if it has one, goes on to its own end."""
        del pool.exchanges[exchange.ask.request_id]
        self._deadlines.pop(exchange.ask.request_id).cancel()
        pool.metrics.outcomes[outcome].inc()
        pool.metrics.request_seconds.observe(self._loop.time() - exchange.arrived_at)
        pool.metrics.request_attempts.observe(exchange.attempts.count)
        if not self.in_progress:
            self._idle.set()
        self._forget_retired(pool)

    def _is_refused(self, ask: Ask, now: float) -> bool:
        return len(self._crashes) > 0 and self._crashes.refused(ask.terms.tenant, _digest(ask), now)

    def _is_open(self, pool: ServedPool, exchange: Exchange) -> bool:
        return pool.exchanges.get(exchange.ask.request_id) is exchange

    def _forget_retired(self, pool: ServedPool) -> None:
        if pool.retired and not pool.exchanges and all(running.pool is not pool for running in self._running.values()):
            self._pools.pop(pool.name, None)

    # --- What agents say ----------------------------------------------------------------------------------------------

    def offered(self, session: Session, offer: Offer) -> None:
        """Take a slot into use."""
        pool = self._pools.get(offer.pool)
        if pool is None:
            return
        if pool.dispatch.would_violate(offer.worker, offer.epoch):
            # Dispatch refuses it; it is counted here, where the node is known.
            pool.metrics.lease_violated(session.node)
        else:
            self._slots[offer.worker] = _Slot(session, pool)
        kind = OfferKind.AHEAD if offer.ahead else OfferKind.IDLE
        now = self._loop.time()
        self._perform(pool, pool.dispatch.offer(offer.worker, offer.epoch, now, served=offer.served, kind=kind))

    def offered_elsewhere(self, session: Session, offer: Offer) -> None:
        """Count an offer of a worker that is another node's; nothing is done with it."""
        pool = self._pools.get(offer.pool)
        if pool is not None and pool.dispatch.would_violate(offer.worker, offer.epoch):
            pool.metrics.lease_violated(session.node)
        else:
            self._metrics.stale_frame(session.node)

    def withdrawn(self, session: Session, withdraw: Withdraw) -> None:
        """Take a slot out of use."""
        slot = self._slots.get(withdraw.worker)
        if slot is not None and slot.session is session:
            self._perform(slot.pool, slot.pool.dispatch.withdraw(withdraw.worker, withdraw.epoch, self._loop.time()))

    def frame_received(self, session: Session, frame: Frame) -> None:
        """Take in a message of a lease; one of a lease that is over is dropped and counted."""
        running = self._running.get((frame.worker, frame.epoch))
        if running is None or running.session is not session:
            self._metrics.stale_frame(session.node)
            return
        match frame:
            case Body():
                if not running.exchange.body(frame.data, frame.part):
                    self.cut(running.exchange)
            case Head():
                running.exchange.head(frame.status, frame.content_type)
            case Accepted():
                self._accepted(running)
            case Refused():
                self._refused(running)
            case End():
                self._ended(frame, running)

    def agent_suspended(self, session: Session) -> None:
        """Give the agent's slots nothing new while it is out of reach; what they have goes on."""
        for pool, workers in self._slots_of(session):
            self._perform(pool, pool.dispatch.agent_suspended(workers, self._loop.time()))

    def agent_resumed(self, session: Session) -> None:
        """Use the agent's slots again."""
        for pool, workers in self._slots_of(session):
            self._perform(pool, pool.dispatch.agent_resumed(workers, self._loop.time()))

    def agent_lost(self, session: Session) -> None:
        """Take the agent's slots out of use; what ran there runs elsewhere if nobody has seen anything of it."""
        slots = self._slots_of(session)
        for _, workers in slots:
            for worker in workers:
                del self._slots[worker]
        for pool, workers in slots:
            self._perform(pool, pool.dispatch.agent_lost(workers, self._loop.time()))
            self._forget_retired(pool)

    def _slots_of(self, session: Session) -> list[tuple[ServedPool, list[str]]]:
        """Return the workers that the session has offered, by pool."""
        by_pool: dict[str, tuple[ServedPool, list[str]]] = {}
        for worker, slot in self._slots.items():
            if slot.session is session:
                by_pool.setdefault(slot.pool.name, (slot.pool, []))[1].append(worker)
        return list(by_pool.values())

    def _accepted(self, running: _Running) -> None:
        now = self._loop.time()
        exchange, pool = running.exchange, running.pool
        self._perform(pool, pool.dispatch.accepted(running.worker, running.epoch, now))
        running.accepted = True
        exchange.accepted(now)
        if exchange.attempts.count == 1:
            pool.metrics.queue_wait_seconds[exchange.ask.terms.priority.name.lower()].observe(exchange.waited_seconds)
        if exchange.ask.streams and self._is_open(pool, exchange):
            running.early_head = self._loop.call_later(EARLY_HEAD_SECONDS, exchange.open_early)

    def _refused(self, running: _Running) -> None:
        self._forget_lease(running.worker, running.epoch)
        self._perform(running.pool, running.pool.dispatch.refused(running.worker, running.epoch, self._loop.time()))

    def _ended(self, end: End, running: _Running) -> None:
        now = self._loop.time()
        pool, exchange = running.pool, running.exchange
        if not running.accepted:  # an end without Accepted is an attempt all the same: attempts are bounded
            self._accepted(running)
        self._forget_lease(end.worker, end.epoch)
        blamed = blames_request(end.outcome, end.verdict)
        effects = pool.dispatch.slot_ended(end.worker, end.epoch, now, blamed=blamed)
        if self._is_open(pool, exchange):
            follows = exchange.ended(end, now)
            if end.outcome is Outcome.CRASHED:
                self._crashes.crashed(exchange.ask.terms.tenant, _digest(exchange.ask), end.worker, now)
                if isinstance(follows, RunElsewhere) and self._is_refused(exchange.ask, now):
                    follows = exchange.refuse(_CRASHED)  # another request with the same body crashed the second one
            effects += self._follow(pool, exchange, follows, now)
        self._perform(pool, effects)
        report = running.session.reports.get(end.worker)
        reports.lease_ended(exchange, end, report=report, metrics=pool.metrics, log=self._log)
        self._forget_retired(pool)

    def _follow(self, pool: ServedPool, exchange: Exchange, follows: Next, now: float) -> tuple[Effect, ...]:
        """Do what follows the end of an attempt."""
        match follows:
            case RunElsewhere():
                exclude = follows.exclude | (follows.avoid if self._has_others(pool, follows.avoid) else frozenset())
                return pool.dispatch.retry(exchange.ask.request_id, exclude, now, fresh=follows.fresh)
            case Deliver():
                self._conclude(pool, exchange, OK if exchange.is_success else CLIENT_ERROR)
            case Fail() | FailStream():
                self._conclude(pool, exchange, outcome_of(Code(follows.code)))
        return pool.dispatch.finished(exchange.ask.request_id, now)

    def _has_others(self, pool: ServedPool, avoided: frozenset[Exclusion]) -> bool:
        """Say whether the pool has a worker beside these that serves, or will again by itself."""
        names = {worker for worker, _ in avoided}
        others = (slot.session.reports.get(name) for name, slot in self._slots.items() if name not in names)
        return any(other is not None and other.pool == pool.name and other.phase in _COMING for other in others)

    # --- What dispatch decides ----------------------------------------------------------------------------------------

    def _perform(self, pool: ServedPool, effects: Iterable[Effect]) -> None:
        """Do what dispatch says, in its order, and what that leads to after it."""
        due = deque(effects)
        while due:
            match due.popleft():
                case Assign() as assign:
                    self._assign(pool, assign)
                case Refuse() as refuse:
                    exchange = pool.exchanges[refuse.request_id]
                    failure = refusal(refuse)
                    exchange.fail(failure)
                    self._conclude(pool, exchange, outcome_of(failure.code))
                case CancelLease() as cancel:
                    self._running[cancel.worker, cancel.epoch].session.send(Cancel(cancel.worker, cancel.epoch))
                case RecallLease() as recall:
                    self._running[recall.worker, recall.epoch].session.send(Recall(recall.worker, recall.epoch))
                case Retake() | Dropped() as over:
                    self._forget_lease(over.worker, over.epoch)
                    self._forget_retired(pool)
                case LeaseLost() as lost:
                    due.extend(self._lost(pool, lost))
        self._alarm.set_by(pool.dispatch.next_wake())

    def _assign(self, pool: ServedPool, assign: Assign) -> None:
        exchange = pool.exchanges[assign.request_id]
        session = self._slots[assign.worker].session
        exchange.leased(assign.worker, assign.epoch)
        self._running[assign.worker, assign.epoch] = _Running(pool, exchange, session, assign.worker, assign.epoch)
        session.send(pool.lease(exchange, assign.worker, assign.epoch, self._loop.time()))

    def _lost(self, pool: ServedPool, lost: LeaseLost) -> tuple[Effect, ...]:
        running = self._forget_lease(lost.worker, lost.epoch)
        exchange = pool.exchanges[lost.request_id]
        now = self._loop.time()
        reports.lease_lost(exchange, lost.worker, lost.epoch, self._log)
        accepted = running is not None and running.accepted
        return self._follow(pool, exchange, exchange.lost(now, started=accepted), now)

    def _forget_lease(self, worker: str, epoch: Epoch) -> _Running | None:
        running = self._running.pop((worker, epoch), None)
        if running is not None:
            running.stop_timer()
        return running

    def _tick(self) -> None:
        """Let time reach every dispatch."""
        now = self._loop.time()
        for pool in list(self._pools.values()):
            self._perform(pool, pool.dispatch.tick(now))


def _digest(ask: Ask) -> str:
    return hashlib.sha256(ask.body).hexdigest()
