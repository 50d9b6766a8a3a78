"""When basert-serve 0.1.7 goes wrong, and how: the report's reuse run, its overlap tables, its contamination.

Pure bookkeeping of one process. Only chats with tools reuse a prefix here (the report shows no other), so only they
build a run; every other chat or completion breaks the run, and heals nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from basert_fleet.sim.answer import Damage

# Seed, "Concurrent reproduction": what the first, second, … of N overlapping requests got.
OVERLAP_DAMAGE = {
    2: (Damage.PARAMETER_NAME, Damage.RUNAWAY),
    4: (Damage.LOST_ENDS, Damage.LOST_ENDS, Damage.RUNAWAY, Damage.LOST_PREFIX),
}
# The report leaves open what follows, for other N and after a contamination; chosen: every second one runs away.
OTHER_DAMAGE = (Damage.STALE_VALUE, Damage.RUNAWAY)


class BugPolicy(NamedTuple):
    """Whether the process has the bug, and how many reuses of one prefix it survives less one."""

    enabled: bool
    after_reuses: int  # this reuse in a row fails; report: the 5th, which is the sixth request. 1 is at its worst


class PrefixRun(NamedTuple):
    """How often in a row the last prefix has been reused."""

    prefix: str | None = None
    reuses: int = 0

    def extended(self, prefix: str | None) -> PrefixRun:
        """Return the run after one more generation with this prefix, or with None, which is never reused."""
        reused = prefix is not None and prefix == self.prefix
        return PrefixRun(prefix, self.reuses + 1 if reused else 0)


def overlap_damage(place: int, size: int) -> Damage:
    """Return what the `place`-th (from 0) of `size` overlapping generations suffers."""
    return OVERLAP_DAMAGE.get(size, OTHER_DAMAGE)[place % len(OVERLAP_DAMAGE.get(size, OTHER_DAMAGE))]


def later_damage(since: int, *, has_tools: bool) -> Damage:
    """Return what the `since`-th (from 0) generation after a contamination suffers; a plain text never runs away."""
    return OTHER_DAMAGE[since % len(OTHER_DAMAGE)] if has_tools else Damage.STALE_VALUE
