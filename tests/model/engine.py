"""What an engine process truly does, which its agent can only guess from /slots and from responses."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from basert_fleet.core.calibration import Probe
from model.machine import Broken

DRIFT_TOKENS = 128
"""The seed's: position 403, tokens 275."""


class Phase(StrEnum):
    """What the process does with the request that it was sent last."""

    IDLE = "idle"
    QUEUED = "queued"
    """The request is in accept: /slots still says idle."""
    RUNNING = "running"
    FINISHING = "finishing"
    """The response's last byte was sent, and the engine is not done (C02)."""


@dataclass(slots=True)
class Engine:
    """One process, from its start to its end."""

    phase: Phase = Phase.IDLE
    tokens: int = 100
    """Its counter; takes another value with each request that starts, which is all that anybody looks at."""
    drifted: bool = False
    dead: bool = False

    def post(self, what: str) -> None:
        """Take a request.

        Raises:
            Broken: it has one already (promise 1).
        """
        if self.phase is not Phase.IDLE:
            raise Broken(1, f"{what} was sent to a process that is {self.phase}")
        self.phase = Phase.QUEUED

    def start(self) -> None:
        """Begin to generate."""
        self.phase = Phase.RUNNING
        self.tokens = 300 - self.tokens

    def probe(self) -> Probe:
        """Answer /slots."""
        is_processing = self.phase in {Phase.RUNNING, Phase.FINISHING}
        return Probe(is_processing, self.tokens, self.tokens + (DRIFT_TOKENS if self.drifted else 0))

    def key(self) -> Hashable:
        """Return its state."""
        return self.phase, self.tokens, self.drifted, self.dead
