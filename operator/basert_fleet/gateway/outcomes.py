"""How a request can end, in the words of requests_total."""

from __future__ import annotations

from basert_fleet.gateway.errors import ERRORS, Blame, Code

OK = "ok"
CANCELLED = "cancelled"
"""The client went away before its answer was complete."""
CLIENT_ERROR = "client_error"
"""The request was at fault, by the gateway's word or the engine's, or its client did not read the answer."""


def outcome_of(code: Code) -> str:
    """Return the outcome of a request that got this error."""
    return CLIENT_ERROR if ERRORS[code].blame is Blame.CLIENT else code.value


OUTCOMES = (OK, CANCELLED, *sorted({outcome_of(code) for code in Code}))
"""All of them: their series exist from the start."""
