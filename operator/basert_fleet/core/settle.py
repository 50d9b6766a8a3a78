"""When the request a process was sent last is proven to have started and ended.

Pure: the slot runner tells what it saw, and does what the returned step says. Silence and elapsed time never prove
that a slot is idle; they only lead to a kill (C29, C39). What was found in the slot is judged in `isolation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from basert_fleet.core.calibration import Probe


class Step(StrEnum):
    """What the slot runner does next."""

    WAIT = "wait"
    """Go on reading the response and probing."""
    CLOSE = "close"
    """Close the connection, then say so by `closed`; repeated until that is said."""
    IDLE = "idle"
    """Proven: the request started and ended, nothing runs. Final."""
    KILL = "kill"
    """No proof will come: kill the process group. Final."""


class SlotsPage(StrEnum):
    """Whether the process has /slots at all."""

    PRESENT = "present"
    ABSENT = "absent"
    """It answers 404: only in a pool with `requireSlots: false`."""


@dataclass(frozen=True, slots=True)
class SettlePolicy:
    """How long a proof may take, and by what it is given."""

    settle_seconds: float
    """From the end mark or the closing of the connection to the kill."""
    slots_page: SlotsPage = SlotsPage.PRESENT


class Settling:
    """The proof for one request, from its POST on.

    The start counts as seen with the response's head, with a probe that is processing, or with counters that moved
    since `before`: a request may sit in the engine's accept queue while /slots is idle, so an idle probe before that
    proves nothing. Times are seconds of one monotonic clock.
    """

    def __init__(self, policy: SettlePolicy, before: Probe | None) -> None:
        """Begin when the request is sent; `before` is the slot's last probe before that."""
        self._policy = policy
        self._before = before
        self._head_seen = False
        self._start_seen = False
        self._cancelled = False
        self._expired_at: float | None = None
        self._over_at: float | None = None
        self._kill_at: float | None = None
        self._final: Step | None = None

    @property
    def kill_at(self) -> float | None:
        """When a call of `probe` will return KILL unless a proof comes first; None while no limit runs."""
        return self._kill_at

    def head_seen(self) -> Step:
        """Take note of the response's status line."""
        self._head_seen = self._start_seen = True
        self._spare()
        return self._step()

    def probe(self, probe: Probe | None, *, asked_at: float, now: float) -> Step:
        """Take one answer of /slots, or None for its silence (C16). This is also the clock's tick.

        `asked_at` is when the probe was sent. One that was under way while the request started or ended may tell of
        the time before, so only a probe asked later than the end proves it; asked at the very same time, it does not.
        """
        if probe is not None:
            self._see(probe, asked_at, now)
        if self._kill_at is not None and now >= self._kill_at:
            self._decide(Step.KILL)
        return self._step()

    def end_mark(self, now: float) -> Step:
        """Take note of the response's own end: Content-Length reached, last chunk, or `[DONE]`."""
        self._head_seen = self._start_seen = True
        self._over(now)
        if self._policy.slots_page is SlotsPage.ABSENT:
            self._decide(Step.IDLE)
        return self._step()

    def cancel(self) -> Step:
        """Ask for an early end; the connection is closed only once the start was seen or the watchdog fired."""
        self._cancelled = True
        if self._policy.slots_page is SlotsPage.ABSENT:
            self._decide(Step.KILL)
        return self._step()

    def closed(self, now: float) -> Step:
        """Take note that the connection was closed without an end mark, by us or by the engine."""
        self._over(now)
        if self._policy.slots_page is SlotsPage.ABSENT:
            self._decide(Step.KILL)
        return self._step()

    def first_byte_expired(self, now: float) -> Step:
        """Take note that no byte came for too long. The next probe decides, so ask one.

        Idle and never started: the request was swallowed (C12). Processing or silent: a long prefill (C07, C16).
        """
        self._expired_at = now
        return self._step()

    def process_died(self) -> Step:
        """Take note that the process is gone, at any time; what is left of its group must go too."""
        self._final = Step.KILL
        return Step.KILL

    def _see(self, probe: Probe, asked_at: float, now: float) -> None:
        if probe.is_processing or self._moved(probe):
            self._start_seen = True
        if probe.is_processing:
            self._spare()
        elif self._over_at is not None and self._start_seen:
            if asked_at > self._over_at:
                self._decide(Step.IDLE)
        elif self._expired_at is not None and not self._head_seen and asked_at > self._expired_at:
            self._see_unanswered(now)

    def _see_unanswered(self, now: float) -> None:
        """Deal with an idle slot that owes an answer: one that ran has a little time left to send it."""
        if not self._start_seen:
            self._decide(Step.KILL)
        elif self._kill_at is None:
            self._kill_at = now + self._policy.settle_seconds

    def _moved(self, probe: Probe) -> bool:
        """Say whether the counters tell of a start. Both at zero tell of an idle-timeout reset only."""
        if self._before is None or probe.cache_tokens == probe.cache_position == 0:
            return False
        return (probe.cache_tokens, probe.cache_position) != (self._before.cache_tokens, self._before.cache_position)

    def _over(self, now: float) -> None:
        if self._over_at is None:
            self._over_at = now
            self._kill_at = now + self._policy.settle_seconds

    def _spare(self) -> None:
        """Lift the limit of an unanswered request that shows life; the limit after an end stands."""
        if self._over_at is None:
            self._kill_at = None

    def _decide(self, final: Step) -> None:
        if self._final is None:
            self._final = final

    def _step(self) -> Step:
        if self._final is not None:
            return self._final
        may_close = self._start_seen or self._expired_at is not None
        return Step.CLOSE if self._cancelled and self._over_at is None and may_close else Step.WAIT
