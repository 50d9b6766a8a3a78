"""A gateway: the production `Traffic`, its sessions and exchanges, on a clock that a model moves.

Its clients are here too: they send each request once, may leave, and what each one has when its request is over is
held against promises 3 and 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from basert_fleet.core.api import BasertPool
from basert_fleet.core.dispatch import ACCEPT_SECONDS, Dispatch, Priority
from basert_fleet.core.lifecycle import State
from basert_fleet.gateway.ask import Ask, Terms
from basert_fleet.gateway.exchange import Exchange
from basert_fleet.gateway.sessions import Frame, Session
from basert_fleet.gateway.traffic import Traffic
from basert_fleet.wire.messages import Hello, Offer, ToAgent, Withdraw, WorkerStatus
from model.answers import check_answer
from model.machine import Broken, Event, Fault, Machine, Move, Output, pickled
from model.post import opened, posted

POOL = BasertPool.model_validate(
    {
        "apiVersion": "fleet.basert.dev/v1alpha1",
        "kind": "BasertPool",
        "metadata": {"name": "pool"},
        "spec": {"model": {"name": "model", "path": "model.base"}, "server": {"command": ["serve"]}},
    }
)
NODE = "mac"


class Kind(StrEnum):
    """How a client wants its answer."""

    WHOLE = "whole"
    STREAM = "stream"


def ask_of(number: int, kind: Kind) -> Ask:
    """Return the request of this number; all are one tenant's, so that the queue is first come first served."""
    terms = Terms(tenant="tenant", weight=1.0, priority=Priority.NORMAL, verify=None, max_wait_seconds=None)
    return Ask(
        request_id=f"r{number}",
        path="/v1/chat/completions",
        content_type="application/json",
        body=f"r{number} {kind}".encode(),
        model="model",
        streams=kind is Kind.STREAM,
        terms=terms,
    )


class Silent:
    """Stands for metrics and logs: takes whatever it is told."""

    def __getattr__(self, name: str) -> Silent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, name: object) -> Silent:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Silent:
        return self


@dataclass(slots=True)
class Handle:
    """A timer; the model fires it, or nobody does."""

    at: float
    callback: Callable[..., None]
    args: tuple[Any, ...]

    def cancel(self) -> None:
        """Stay silent: the model never fires what is not wanted any more."""


@dataclass(slots=True)
class Clock:
    """The part of an event loop that `Traffic` uses."""

    now: float = 0.0

    def time(self) -> float:
        """Return the time."""
        return self.now

    def call_at(self, when: float, callback: Callable[..., None], *args: object) -> Handle:
        """Make a timer."""
        return Handle(when, callback, args)

    def call_later(self, delay: float, callback: Callable[..., None], *args: object) -> Handle:
        """Make a timer."""
        return Handle(self.now + delay, callback, args)


@dataclass(slots=True)
class Wire:
    """The session's link: keeps what is sent until the model takes it."""

    sent: list[ToAgent] = field(default_factory=list)

    def send(self, message: ToAgent) -> None:
        """Take one message."""
        self.sent.append(message)

    def close(self) -> None:
        """Refuse the session: never in this model, where one agent has one session."""
        raise Broken(4, "the gateway refused its only agent")


class GatewaySide:
    """One gateway and its clients. It is the owner of its sessions, as `Fleet` is."""

    def __init__(self, asks: Sequence[Ask], workers: Sequence[str]) -> None:
        self._asks = {ask.request_id: ask for ask in asks}
        self._workers = tuple(workers)
        self._coming = [ask.request_id for ask in asks]
        self._open: dict[str, Exchange] = {}
        self._left: set[str] = set()
        self._start()

    def handle(self, event: Event) -> tuple[Output, ...]:
        """Take one event; outputs are messages to the agent."""
        self._take(event)
        self._close_answered()
        if self._dispatch.snapshot(self._clock.now).lease_violations:
            raise Broken(1, "a slot was offered by another incarnation while it was leased")
        sent = tuple(posted(message) for message in self._wire.sent)
        self._wire.sent.clear()
        return sent

    def moves(self) -> tuple[Move, ...]:
        """Return what clients and clocks can do now; requests come in the order of their numbers.

        A retry may wait for another process than those that failed it, where none is coming, until its time is over:
        that time always comes, so it counts as progress there, and nowhere else.
        """
        moves: list[Move] = [(("submit",), None)] if self._coming else []
        waiting = self._dispatch._waiting._places
        for request in self._open:
            moves.append((("leave", request), Fault.LEAVE))
            is_choosy = request in waiting and waiting[request].demand.exclude
            moves.append((("overdue", request), None if is_choosy else Fault.OVERDUE))
        if any(not running.accepted for running in self._traffic._running.values()):
            moves.append((("accept timeout",), Fault.ACCEPT_TIMEOUT))
        return tuple(moves)

    def stored(self) -> Callable[[], Machine]:
        """Keep it as it is."""
        return pickled(self)

    def key(self) -> Hashable:
        """Return its state, times as seconds from now and orders as orders."""
        running = tuple(
            (worker, lease.exchange.ask.request_id, lease.epoch, lease.accepted, lease.session is self._session)
            for (worker, _), lease in sorted(self._traffic._running.items(), key=lambda item: str(item[0]))
        )
        crashes = tuple((body, known.workers) for body, known in self._traffic._crashes._crashes.items())
        exchanges = tuple(_exchange_key(exchange) for _, exchange in sorted(self._open.items()))
        slots = tuple(sorted(self._traffic._slots))
        in_reach = self._session.in_reach if self._session is not None else None
        dispatch = _dispatch_key(self._dispatch, self._clock.now)
        return len(self._coming), in_reach, slots, running, crashes, exchanges, dispatch

    def view(self) -> Hashable:
        """Return whether no request and no lease is left, and which epochs of which workers may be leased."""
        idle = frozenset((worker, slot.epoch) for worker, slot in self._dispatch._slots._idle.items())
        return not self._open and not self._traffic._running, idle

    # --- The owner of sessions

    def session_opened(self, session: Session) -> str:
        """Take in the agent; nothing speaks against it."""
        return ""

    def worker_reported(self, session: Session, status: WorkerStatus, before: WorkerStatus | None) -> None:
        """Take in a status; the traffic reads it from the session."""

    def offered(self, session: Session, offer: Offer) -> None:
        """Take in an offer."""
        self._traffic.offered(session, offer)

    def withdrawn(self, session: Session, withdraw: Withdraw) -> None:
        """Take in that an offer does not hold any more."""
        self._traffic.withdrawn(session, withdraw)

    def frame_received(self, session: Session, frame: Frame) -> None:
        """Take in a message of one lease."""
        self._traffic.frame_received(session, frame)

    def session_suspended(self, session: Session) -> None:
        """Take in that the agent is out of reach."""
        self._traffic.agent_suspended(session)

    def session_resumed(self, session: Session) -> None:
        """Take in that the agent is in reach again."""
        self._traffic.agent_resumed(session)

    def session_lost(self, session: Session) -> None:
        """Take in that an agent is away."""
        self._traffic.agent_lost(session)

    # --- Inside

    @property
    def _pool(self) -> Any:
        return self._traffic._pools[POOL.metadata.name]

    @property
    def _dispatch(self) -> Dispatch:
        return self._pool.dispatch

    def _start(self) -> None:
        self._clock, self._wire = Clock(), Wire()
        self._session: Session | None = None
        self._traffic = asyncio.run(_traffic())
        self._traffic._loop = self._traffic._alarm._loop = self._clock
        self._traffic.apply([POOL])

    def _take(self, event: Event) -> None:
        match event:
            case ("submit",):
                ask = self._asks[self._coming.pop(0)]
                self._open[ask.request_id] = self._traffic.submit(ask, _no_connection)
            case ("leave", str(request)):
                self._left.add(request)
                self._traffic.client_gone(self._open[request])
            case ("overdue", str(request)):
                handle = self._traffic._deadlines[request]
                handle.callback(*handle.args)
            case ("accept timeout",):
                self._clock.now += ACCEPT_SECONDS
                self._traffic._tick()
            case ("message", str(item)):
                self._known_session.message_received(opened(item))
            case ("suspended",):
                self._known_session.link_suspended()
            case ("resumed",):
                self._known_session.link_resumed()
            case ("lost",):
                session, self._session = self._known_session, None
                session.link_lost()
            case ("dialled", str(incarnation)):
                self._welcome(incarnation)
            case ("restart",):
                self._open.clear()  # their connections broke: a clear end for each of them
                self._left.clear()
                self._start()
            case _:
                raise ValueError(f"a gateway cannot see {event}")

    @property
    def _known_session(self) -> Session:
        if self._session is None:
            raise ValueError("there is no session")
        return self._session

    def _welcome(self, incarnation: str) -> None:
        """Take a new session, whose workers all serve or will before long: none is ever stopped in this model."""
        session = self._session = Session(self)
        session.bind(self._wire)
        session.message_received(Hello(NODE, incarnation, "1", None))
        for worker in self._workers:
            session.message_received(WorkerStatus(worker, POOL.metadata.name, State.READY.value, 1, "template"))

    def _close_answered(self) -> None:
        """Check what each client has whose request is over; it is forgotten then, so that states repeat."""
        for request in [request for request in self._open if request not in self._pool.exchanges]:
            exchange = self._open.pop(request)
            if request in self._left:
                self._left.discard(request)
            else:
                check_answer(exchange)
        for exchange in self._open.values():
            if exchange.outbox.closed:
                raise Broken(4, f"{exchange.ask.request_id} was answered, and is not over")


async def _traffic() -> Traffic:
    return Traffic(Silent(), Silent())  # type: ignore[arg-type] - neither is looked at


def _no_connection() -> None:
    """Stand for dropping a client's connection."""


def _exchange_key(exchange: Exchange) -> Hashable:
    attempts = exchange.attempts
    return (
        exchange.ask.request_id,
        exchange.worker,
        exchange.epoch,
        exchange.agreed,
        frozenset(exchange.released),
        exchange._status,
        exchange._whole,
        tuple(exchange._opening),
        exchange.outbox.opened,
        tuple(exchange.outbox._pieces),
        tuple(attempts._tried),
        frozenset(attempts._doubted),
        attempts._agreed,
        attempts._crashes,
        attempts._engine_errors,
        frozenset(attempts._released),
    )


def _dispatch_key(dispatch: Dispatch, now: float) -> Hashable:
    """Return a pool's state. With one tenant of one class, accounts and turns decide nothing."""
    slots = dispatch._slots
    places = [*dispatch._waiting._places.values(), *dispatch._deciding.values()]
    leases = tuple(
        (worker, lease.place.request.id, lease.place.number, lease.place.demand, lease.epoch, lease.wanted, is_ahead)
        for leases, is_ahead in ((slots._leases, False), (slots._leased_ahead, True))
        for worker, lease in sorted(leases.items())
    )
    numbers = {place.number for place in places} | {number for _, _, number, *_ in leases}
    order = {number: rank for rank, number in enumerate(sorted(numbers))}
    return (
        tuple(sorted((order[p.number], p.request.id, p.demand.fresh, p.demand.exclude) for p in places)),
        frozenset(dispatch._deciding),
        tuple((worker, request, order[number], *rest) for worker, request, number, *rest in leases),
        tuple(sorted((worker, due - now) for worker, due in slots._accept_by._ranks.items())),
        tuple(sorted((worker, str(epoch)) for worker, epoch in slots._heard.items())),
        tuple((idle.served, idle.worker, idle.epoch) for idle in slots._order),
        tuple((idle.served, idle.worker, idle.epoch) for idle in slots._offered_ahead.values()),
        frozenset(slots._recalled),
        tuple(sorted((idle.worker, idle.served, idle.epoch.counter) for idle in slots._parked.values())),
        tuple(sorted((worker, lease.place.request.id) for worker, lease in dispatch._aftermaths.items())),
        tuple(
            (tuple(account._running), tuple(account._aftermaths))
            for ledger in dispatch._ledgers.values()
            for account in ledger._present.values()
        ),
    )
