"""One pool as the gateway serves it: its spec, its dispatch, and the requests that are not over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from basert_fleet.core.api import DriftAction
from basert_fleet.core.delivery import Attempts, raised
from basert_fleet.core.dispatch import Dispatch, Limits, Refusal, Refuse, Request
from basert_fleet.gateway.errors import Code, Failure
from basert_fleet.gateway.exchange import Exchange
from basert_fleet.wire.messages import Lease

if TYPE_CHECKING:
    from basert_fleet.core.api import BasertPool
    from basert_fleet.core.epoch import Epoch
    from basert_fleet.gateway.ask import Ask
    from basert_fleet.telemetry.metrics import PoolMetrics

_REFUSALS = {
    Refusal.QUEUE_FULL: "the queue of this model is full",
    Refusal.QUEUE_TIMEOUT: "no worker became free within the time that this request may wait",
    Refusal.NO_CAPACITY: "no worker can serve this model now",
    Refusal.REQUEST_TIMEOUT: "the request's total time was over before a worker had answered it",
}


class ServedPool:
    """A pool, from its first spec until it is removed and its last request is over."""

    def __init__(self, pool: BasertPool, metrics: PoolMetrics) -> None:
        self.resource = pool
        self.metrics = metrics
        self.dispatch = Dispatch(_limits(pool))
        self.exchanges: dict[str, Exchange] = {}
        """Those that have no final answer, by request id."""
        self.retired = False
        """Whether it was removed: what runs may finish, nothing else is taken."""

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.resource.metadata.name

    @property
    def models(self) -> tuple[str, ...]:
        """The names by which clients choose this pool."""
        model = self.resource.spec.model
        return model.name, *model.aliases

    def update(self, pool: BasertPool) -> None:
        """Take a newer spec; it holds for the requests that come later."""
        self.resource = pool
        self.dispatch.limits = _limits(pool)
        self.retired = False

    def exchange_for(self, ask: Ask, now: float, buffer_bytes: int) -> Exchange:
        """Take in a request; it is not queued yet."""
        spec = self.resource.spec
        attempts = Attempts(
            max_attempts=spec.delivery.max_attempts,
            replaces_contaminated=spec.isolation.drift.action is DriftAction.RECYCLE,
        )
        exchange = Exchange(ask, self.name, now=now, attempts=attempts, buffer_bytes=buffer_bytes)
        self.exchanges[ask.request_id] = exchange
        return exchange

    def queued(self, exchange: Exchange) -> Request:
        """Return the request as the queue sees it."""
        terms = exchange.ask.terms
        return Request(
            id=exchange.ask.request_id,
            tenant=terms.tenant,
            weight=terms.weight,
            priority=terms.priority,
            size_bytes=len(exchange.ask.body),
            max_wait_seconds=terms.max_wait_seconds,
            deadline=self.deadline(exchange),
        )

    def deadline(self, exchange: Exchange) -> float:
        """Return when the request's total time is over: what it may wait and what it may run, one after the other."""
        spec = self.resource.spec
        wait = exchange.ask.terms.max_wait_seconds
        longest = float(spec.queue.max_wait_seconds)
        return (
            exchange.arrived_at
            + (longest if wait is None else min(wait, longest))
            + spec.server.request_timeout_seconds
        )

    def lease(self, exchange: Exchange, worker: str, epoch: Epoch, now: float) -> Lease:
        """Return the message that puts the request on a slot."""
        spec = self.resource.spec
        ask = exchange.ask
        return Lease(
            worker=worker,
            epoch=epoch,
            request_id=ask.request_id,
            path=ask.path,
            content_type=ask.content_type,
            body=ask.body,
            timeout_seconds=min(spec.server.request_timeout_seconds, self.deadline(exchange) - now),
            verify=raised(spec.delivery.verify, ask.terms.verify),
            agreed=exchange.agreed,
        )


def refusal(refuse: Refuse) -> Failure:
    """Return what the client of a refused request is told."""
    return Failure(Code(refuse.code.value), _REFUSALS[refuse.code], retry_after_seconds=refuse.retry_after_seconds)


def _limits(pool: BasertPool) -> Limits:
    queue = pool.spec.queue
    return Limits(
        max_requests=queue.max_requests, max_bytes=queue.max_bytes, max_wait_seconds=float(queue.max_wait_seconds)
    )
