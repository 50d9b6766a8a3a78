"""When a server that nobody here can kill may be used again.

A process of ours that lacks a proof is killed, and the next one is fresh. An attached server stays as it is: it is out
of service until what /slots shows dispels the doubt, or until `restartCommand` has replaced it. Time dispels nothing,
and neither does silence. (The doubt window of an incident is another thing: which leases a failed canary concerns.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from basert_fleet.core.calibration import Probe


class Cause(StrEnum):
    """What is doubted."""

    UNPROVEN = "unproven"
    """That the last request sent to it has ended."""
    CONTAMINATED = "contaminated"
    """That it keeps requests apart: it was found contaminated, or failed its warm-up."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a server may not be used, and what was last known of it."""

    cause: Cause
    last: Probe | None
    """What its slot showed when it was last proven idle; None if that is not known."""
    seen_busy: bool = False
    """Whether it was seen at work since."""

    def after(self, probe: Probe | None) -> Doubt | None:
        """Return the doubt that is left once /slots has shown this, or None if it is dispelled.

        A fresh process dispels any. Whether a request has ended is also known when its start was seen: the slot was
        at work, or its counters are not those from before it.
        """
        if probe is None:
            return self
        if probe.is_processing:
            return replace(self, seen_busy=True)
        if is_fresh(probe):
            return None
        moved = self.last is not None and probe != self.last
        return None if self.cause is Cause.UNPROVEN and (self.seen_busy or moved) else self

    def denies_restart(self, probe: Probe | None) -> bool:
        """Say whether /slots shows that a command which was to restart the server has not.

        Then it still shows what it did before, or works on something; silence denies nothing and proves nothing.
        """
        return probe is None or probe.is_processing or (probe == self.last and not is_fresh(probe))


def is_fresh(probe: Probe) -> bool:
    """Say whether a slot looks as one does that was never used, or was reset by the engine's idle timeout."""
    return not probe.is_processing and probe.cache_tokens == probe.cache_position == 0
