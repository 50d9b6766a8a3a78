"""Which request bodies are refused for a while because they crashed two workers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

BLAMED_AFTER_WORKERS = 2
"""One crash may be the worker's own; the same body on another worker is the body's (design, section 5)."""


@dataclass(frozen=True, slots=True)
class _Crashes:
    workers: frozenset[str]
    last_at: float


class CrashLedger:
    """Remembers crashes by tenant and body hash, the newest `max_entries` of them.

    A refusal ends `seconds` after the body's last crash; so does the memory of a single crash. Another tenant's same
    body is another entry: nobody can have somebody else's request refused.
    """

    def __init__(self, *, max_entries: int, seconds: float = 600.0) -> None:
        self._max_entries = max_entries
        self._seconds = seconds
        self._crashes: OrderedDict[tuple[str, str], _Crashes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._crashes)

    def crashed(self, tenant: str, body_hash: str, worker: str, now: float) -> None:
        """Note that a worker crashed while it ran this body."""
        self._forget_old(now)
        known = self._crashes.pop((tenant, body_hash), None)
        workers = known.workers if known is not None else frozenset[str]()
        self._crashes[tenant, body_hash] = _Crashes(workers | {worker}, now)
        if len(self._crashes) > self._max_entries:
            self._crashes.popitem(last=False)

    def refused(self, tenant: str, body_hash: str, now: float) -> bool:
        """Say whether the body crashed two different workers lately and must not reach a third."""
        self._forget_old(now)
        known = self._crashes.get((tenant, body_hash))
        return known is not None and len(known.workers) >= BLAMED_AFTER_WORKERS

    def _forget_old(self, now: float) -> None:
        """Drop what is past its time; entries are kept in the order of their last crash."""
        while self._crashes and now - next(iter(self._crashes.values())).last_at >= self._seconds:
            self._crashes.popitem(last=False)
