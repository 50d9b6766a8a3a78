"""What a message itself orders the emulator to do: `[[len=40]]`, `[[delay=0.5]]`, `[[crash]]`, `[[fault=NAME]]`.

A directive works only in the last message of a request, and only with `--sim-directives on` (the default).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from basert_fleet.sim.errors import BadRequest
from basert_fleet.sim.faults import Fault

_DIRECTIVE = re.compile(r"\[\[([a-z]+)(?:=([a-z0-9.-]+))?\]\]")


class Directives(NamedTuple):
    """The orders found in one message."""

    tokens: int | None = None  # completion tokens of a text answer
    delay_seconds: float = 0.0  # added to the prefill
    faults: frozenset[Fault] = frozenset()


NO_DIRECTIVES = Directives()


def read_directives(text: str) -> Directives:
    """Return the orders in a message; refuse one that is misspelt, so that no test passes by accident."""
    found = NO_DIRECTIVES
    for name, value in _DIRECTIVE.findall(text):
        try:
            found = _apply(found, name, value)
        except ValueError:
            raise BadRequest(f"Unknown directive [[{name}={value}]]. See docs/emulator.md.", "messages") from None
    return found


def without_directives(text: str) -> str:
    """Return the message as its reader would have meant it."""
    return _DIRECTIVE.sub("", text)


def _apply(found: Directives, name: str, value: str) -> Directives:
    match name:
        case "len":
            return found._replace(tokens=int(value))
        case "delay":
            return found._replace(delay_seconds=float(value))
        case "crash":
            return found._replace(faults=found.faults | {Fault.CRASH})
        case "fault":
            return found._replace(faults=found.faults | {Fault(value)})
        case _:
            raise ValueError(name)
