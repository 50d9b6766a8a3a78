"""Which lease of which process of which agent a message speaks of.

A slot's epochs are ordered while one agent lives: a restarted process has a higher generation, the next lease a higher
counter. Two incarnations of an agent have no order at all: a restored state directory or a cloned Mac must never look
like "newer", so comparing them is an error and not False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Process: TypeAlias = tuple[str, int]
"""An incarnation and a generation: which process of a worker, and never that of another agent's by the same number."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One offer, and the lease that may follow it."""

    incarnation: str
    """Random, made anew each time an agent starts."""
    generation: int
    """Counts the processes of this worker, from 1."""
    counter: int
    """Counts the offers of this worker within the incarnation, from 1; never reset by a new process."""

    @property
    def process(self) -> Process:
        """The process that it is an offer of; the same for all its offers."""
        return self.incarnation, self.generation

    def is_newer_than(self, other: Epoch) -> bool:
        """Say whether this epoch came later.

        Raises:
            ValueError: the two come from different incarnations, which have no order.
        """
        if self.incarnation != other.incarnation:
            raise ValueError(f"epochs of different agents have no order: {self} and {other}")
        return (self.generation, self.counter) > (other.generation, other.counter)

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.generation}.{self.counter}"
