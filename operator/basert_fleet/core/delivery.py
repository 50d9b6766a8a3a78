"""What of a response may go out, what waits for the judge, and what follows when the judge says no."""

from __future__ import annotations

from enum import StrEnum


class VerifyMode(StrEnum):
    """How much of a response waits for its slot to be judged. A later member holds more than an earlier one."""

    OFF = "off"
    TOOL_CALLS = "toolCalls"
    FULL = "full"


class Part(StrEnum):
    """What a released piece of a response is; decides whether another attempt may still take its place."""

    OPENING = "opening"
    """Nothing a user could see yet, such as the chunk that only tells the role."""
    TEXT = "text"
    TOOL_CALL = "tool_call"
    ENDING = "ending"
    """finish_reason, usage, `[DONE]`: no content."""
    WHOLE = "whole"
    """A response that is released in one piece."""
