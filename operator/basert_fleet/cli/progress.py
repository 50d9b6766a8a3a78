"""What `up` tells a person of its workers: plain lines, one per change that matters."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from basert_fleet.core.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from basert_fleet.wire.messages import WorkerStatus

WORDS: Mapping[str, str] = MappingProxyType(
    {
        State.STARTING: "starts",
        State.WARMING: "listens, and is tried out",
        State.READY: "is ready",
        State.DRAINING: "takes no more requests",
        State.STOPPING: "is being stopped",
        State.STOPPED: "has stopped",
        State.BACKOFF: "failed, and is tried again soon",
        State.FATAL: "is given up until the fleet file changes",
    }
)
"""TESTING is not told: a canary between two requests is everyday life."""
WORDS_ATTACHED: Mapping[str, str] = MappingProxyType(
    {
        **WORDS,
        State.STARTING: "is looked at",
        State.WARMING: "answers, and is tried out",
        State.STOPPING: "is let go",
        State.STOPPED: "has been let go",
        State.FATAL: "is out of service",
    }
)
"""For a server that something else runs: it is neither started nor stopped from here, and may be mended by hand."""


WITHOUT_REASON = (State.STARTING, State.STOPPED)
"""A message that comes with these is about what was before."""


PORT = re.compile(r"\bport \d+")
"""Each attempt has another one, which makes no reason a new one."""


class Progress:
    """Turns what agents report into lines."""

    def __init__(
        self, say: Callable[[str], None], ready: Callable[[str], None], attached: Collection[str] = ()
    ) -> None:
        """Tell lines to `say`; call `ready` once, with the pool of the first worker that is.

        `attached` are the workers that are servers which something else runs.
        """
        self._say, self._ready, self._attached = say, ready, attached
        self._last: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._problems: set[tuple[str, str]] = set()
        self._is_ready = False

    def worker(self, status: WorkerStatus) -> None:
        """Take in a worker's new phase; a reason is told when it is news, not again at each attempt."""
        before = self._last.get(status.worker, State.STOPPED.value)
        if status.phase not in WORDS or status.phase == before:
            return
        self._last[status.worker] = status.phase
        words = WORDS_ATTACHED if status.worker in self._attached else WORDS
        self._say(f"{status.worker} {words[status.phase]}{self._news(status)}")
        if status.phase == State.READY and not self._is_ready:
            self._is_ready = True
            self._ready(status.pool)

    def _news(self, status: WorkerStatus) -> str:
        """Return a reason that differs from the last one told; whoever becomes ready starts over."""
        before = self._reasons.get(status.worker, "")
        reason = PORT.sub("port", status.message)
        if status.phase == State.READY:
            self._reasons[status.worker] = reason
        if status.phase in WITHOUT_REASON or reason in ("", before):
            return ""
        self._reasons[status.worker] = reason
        return f": {status.message}"

    def pools(self, observed: Iterable[Mapping[str, Any]]) -> None:
        """Take in the pools of the observed page; tell each problem when it comes up, and when it is over."""
        now = {(pool["name"], problem["message"]) for pool in observed for problem in pool["conditions"]}
        for name, message in sorted(now - self._problems):
            self._say(f"pool {name}: {message}")
        for name in sorted({name for name, _ in self._problems} - {name for name, _ in now}):
            self._say(f"pool {name}: nothing is in its way any more")
        self._problems = now
