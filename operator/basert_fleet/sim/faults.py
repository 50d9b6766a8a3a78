"""Which generation meets which fault: by its number, by a probability drawn from a seed, or by its own order.

What a fault does is in `runner.py`; faults of the whole process (slow start, deaf to SIGTERM, a forked child, a silent
/slots) are plain options and not drawn here.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    """What can go wrong with one generation."""

    CRASH = "crash"  # the process dies by SIGABRT half-way
    HANG = "hang"  # the generation stops half-way for ever; everything else answers
    SWALLOW = "swallow"  # the request is accepted and never processed: no byte, not processing (C12)
    WEDGE = "wedge"  # from now on everything but /health hangs (C15)
    RUN_ON = "run-on"  # a client that leaves does not stop the generation (C39)
    TRUNCATE = "truncate"  # the connection closes half-way, without the response's end mark
    CONTAMINATE = "contaminate"  # the process is contaminated from this generation on, whatever --sim-bug says


class FaultRule(NamedTuple):
    """One `--sim-fault`: always, on the nth generation only, or with a probability."""

    fault: Fault
    nth: int | None = None
    probability: float = 1.0


def parse_rule(text: str) -> FaultRule:
    """Read `NAME`, `NAME:nth=3` or `NAME:p=0.05`; raise ValueError otherwise."""
    name, _, trigger = text.partition(":")
    fault = Fault(name)
    key, _, value = trigger.partition("=")
    match key:
        case "":
            return FaultRule(fault)
        case "nth":
            return FaultRule(fault, nth=int(value))
        case "p":
            return FaultRule(fault, probability=float(value))
        case _:
            raise ValueError(text)


class FaultPlan(NamedTuple):
    """All `--sim-fault` of one process; the same plan strikes the same generations."""

    rules: tuple[FaultRule, ...] = ()
    seed: int = 0

    def of(self, generation: int) -> frozenset[Fault]:
        """Return the faults that the nth request for a generation (from 1) meets."""
        return frozenset(rule.fault for rule in self.rules if self._strikes(rule, generation))

    def _strikes(self, rule: FaultRule, generation: int) -> bool:
        if rule.nth is not None:
            return generation == rule.nth
        return _fraction(f"{self.seed}/{generation}/{rule.fault}") < rule.probability


def _fraction(text: str) -> float:
    """Return a number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
