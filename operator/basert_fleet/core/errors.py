"""The family of errors that a person or a caller is meant to read.

Every error of ours derives from FleetError and carries a `code` from the OpenAI-style table of the design, so that one
place at the edge turns any of them into a response. A bug (an event a state cannot see) is not one of them: it is a
plain exception, never caught together with a fault.
"""

from __future__ import annotations

from typing import ClassVar


class FleetError(Exception):
    """A fault that has a name, told as: what was tried, what was found, what to do."""

    code: ClassVar[str] = "internal_error"
