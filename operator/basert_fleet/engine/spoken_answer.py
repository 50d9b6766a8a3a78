"""What a model's plain text says: reasoning, content and tool calls, read as the text grows.

A pure state machine: the same comes out however the text is cut into pieces, and no text makes it raise. Calls come out
only at the end of the answer and only if the answer was not cut: half of what a model meant to call is not what it
meant, even if a call in it is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from basert_fleet.engine.dialects import CALL_CLOSE, CALL_OPEN, Dialect, broken_call, read_call
from basert_fleet.engine.toolcalls import NO_TOOLS, Call, ToolSet

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
MAX_CLOSINGS = 8
"""Chosen: an argument may hold the closing tag itself, so a call ends at the first one that leaves it well-formed; more
than so many make it a malformed one. It bounds how often a long text is read again."""
MAX_CALLS = 128
"""Chosen, as such a bound too: far more than any model makes in one answer. What follows the last one is content."""
SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Speech:
    """How the answer to one request is to be read."""

    dialect: Dialect | None = None
    """None where no call can come: the request has no tools, or forbids their use."""
    tools: ToolSet = NO_TOOLS
    thinks: bool = False
    """Whether the answer may begin with a reasoning tag."""
    is_thinking: bool = False
    """Whether the prompt has opened that tag already."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A further piece of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A further piece of what the model says."""

    text: str


Said: TypeAlias = Reasoning | Content | Call


class _State(Enum):
    BEGIN = auto()
    """Nothing but white space yet: a reasoning tag may still follow."""
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class SpokenAnswer:
    """Reads one answer."""

    def __init__(self, speech: Speech) -> None:
        self._speech = speech
        self._text = ""  # not yet told: perhaps the beginning of a tag, or white space before one
        self._call = ""  # of the call that is open: all that follows its opening tag
        self._closings = self._searched = 0  # closing tags tried in it, and how far they were searched
        self._opened = 0  # calls so far, well-formed or not
        self._calls: list[Call] = []
        self._drops_space = False  # white space that follows a tag belongs to the tag
        self._state = _State.CONTENT
        if speech.is_thinking:
            self._enter(_State.REASONING)
        elif speech.thinks:
            self._state = _State.BEGIN

    def feed(self, text: str) -> list[Said]:
        """Take the next piece and return what it tells."""
        said: list[Said] = []
        if self._state is _State.CALL:
            self._call += text
        else:
            self._text += text
        while self._step(said):
            pass
        return said

    def finish(self, *, truncated: bool) -> list[Said]:
        """Take note of the end, at which all calls come out; of a `truncated` answer none does.

        A call that was never closed is no call: cut by a limit it is left out, else its text is content.
        """
        said: list[Said] = []
        while self._state is _State.CALL and CALL_CLOSE in self._call:
            self._give_up_call(said)
            while self._step(said):
                pass
        if self._state is not _State.CALL:
            self._tell(self._text, said)
        elif not truncated:
            said.append(Content(CALL_OPEN + self._call))
        self._text = self._call = ""
        return said if truncated else [*said, *self._calls]

    # --- one step; True if there may be another

    def _step(self, said: list[Said]) -> bool:
        match self._state:
            case _State.BEGIN:
                return self._begin()
            case _State.REASONING:
                return self._go_on(THINK_CLOSE, _State.CONTENT, said)
            case _State.CONTENT if self._speech.dialect is not None and self._opened < MAX_CALLS:
                return self._go_on(CALL_OPEN, _State.CALL, said)
            case _State.CONTENT:
                return self._go_on("", _State.CONTENT, said)
            case _State.CALL:
                return self._close_call(self._speech.dialect)

    def _begin(self) -> bool:
        start = self._text.lstrip(SPACE)
        if start.startswith(THINK_OPEN):
            self._text = start.removeprefix(THINK_OPEN)
            self._enter(_State.REASONING)
            return True
        if THINK_OPEN.startswith(start):
            return False
        self._state = _State.CONTENT
        return True

    def _go_on(self, tag: str, following: _State, said: list[Said]) -> bool:
        """Tell the text up to the tag that ends it, keeping back what may be the beginning of that tag."""
        before, found, after = self._text.partition(tag) if tag else (self._text, "", "")
        if found:
            self._tell(before.rstrip(SPACE), said)
            if following is _State.CALL:
                self._text, self._call, self._closings, self._searched = "", after, 0, 0
                self._opened += 1
            else:
                self._text = after
            self._enter(following)
            return True
        kept = _kept_back(self._text, tag)
        self._text, told = self._text[len(self._text) - kept :], self._text[: len(self._text) - kept]
        self._tell(told, said)
        return False

    def _close_call(self, dialect: Dialect | None) -> bool:
        """End the open call at the first closing tag that leaves it well-formed."""
        if dialect is None:
            return False
        while self._closings < MAX_CLOSINGS and (at := self._call.find(CALL_CLOSE, self._searched)) >= 0:
            call = read_call(dialect, self._call[:at], self._speech.tools)
            self._closings, self._searched = self._closings + 1, at + len(CALL_CLOSE)
            if call is not None:
                self._calls.append(call)
                self._leave_call(self._searched)
                return True
        if self._closings < MAX_CLOSINGS:
            self._searched = max(self._searched, len(self._call) - len(CALL_CLOSE) + 1)
        return False

    def _give_up_call(self, said: list[Said]) -> None:
        """End a malformed call at its first closing tag: it is one with broken arguments, or text if it has no name."""
        body, _, _ = self._call.partition(CALL_CLOSE)
        call = broken_call(self._speech.dialect, body) if self._speech.dialect is not None else None
        if call is not None:
            self._calls.append(call)
        else:
            said.append(Content(CALL_OPEN + body + CALL_CLOSE))
        self._leave_call(len(body) + len(CALL_CLOSE))

    def _leave_call(self, end: int) -> None:
        self._text, self._call = self._call[end:], ""
        self._enter(_State.CONTENT)

    def _enter(self, state: _State) -> None:
        self._state, self._drops_space = state, True

    def _tell(self, text: str, said: list[Said]) -> None:
        if self._drops_space:
            text = text.lstrip(SPACE)
        if text:
            self._drops_space = False
            said.append(Reasoning(text) if self._state is _State.REASONING else Content(text))


def _kept_back(text: str, tag: str) -> int:
    """Return how many characters at the end may yet belong to the tag: its beginning, and white space before it."""
    if not tag:
        return 0
    beginning = next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
    before = text[: len(text) - beginning]
    return beginning + len(before) - len(before.rstrip(SPACE))
