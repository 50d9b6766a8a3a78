"""What /slots counts after a generation: a healthy gap that depends on the build, and the drift of a contaminated slot.

The report shows 275/403 after its failure and nothing of a healthy slot, so what healthy builds show is open: each mode
here is one possible build, and a judge of drift has to cope with all of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from basert_fleet.sim.finish import Finish

CONSTANT_GAP = 7  # chosen
ENDING_GAPS = {Finish.STOP: 0, Finish.TOOL_CALLS: 1, Finish.LENGTH: -1, Finish.CANCELLED: 1}  # chosen
DRIFT_STEP = 128  # report: 403 - 275; each later generation of a contaminated slot adds as much (chosen)


class CounterMode(StrEnum):
    """What cache_position - cache_tokens is on a healthy slot."""

    EQUAL = "equal"
    CONSTANT = "constant"
    COMPLETION = "completion"  # the tokens that the last generation produced
    ENDING = "ending"  # a number of each ending's own


class Counters(NamedTuple):
    """The two numbers of /slots."""

    cache_tokens: int
    cache_position: int


FRESH = Counters(0, 0)


def counters_while_running(prompt_tokens: int, drift: int) -> Counters:
    """Return what is seen between the begin and the end of a generation."""
    return Counters(prompt_tokens + 1, prompt_tokens + 1 + drift)


def counters_after(mode: CounterMode, prompt_tokens: int, finish: Finish, produced: int, drift: int) -> Counters:
    """Return what is seen after a generation; the report's prompt of 274 tokens leaves 275 (report)."""
    tokens = prompt_tokens + 1
    return Counters(tokens, tokens + _healthy_gap(mode, finish, produced) + drift)


def _healthy_gap(mode: CounterMode, finish: Finish, produced: int) -> int:
    match mode:
        case CounterMode.EQUAL:
            return 0
        case CounterMode.CONSTANT:
            return CONSTANT_GAP
        case CounterMode.COMPLETION:
            return produced
        case CounterMode.ENDING:
            return ENDING_GAPS[finish]
