"""How a generation can end: the `finish_reason` of an answer, or a cancel, which no answer shows."""

from __future__ import annotations

from enum import StrEnum


class Finish(StrEnum):
    """The end of one generation; all but CANCELLED are spelled as OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
