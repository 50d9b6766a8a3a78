"""What a model's plain text says: reasoning, content and tool calls, read as the text grows.

A pure state machine: the same comes out however the text is cut into pieces, and no text makes it raise. Calls come out
only at the end of the answer and only if the answer was not cut: half of what a model meant to call is not what it
meant, even if a call in it is whole.

An answer comes in as many pieces as it has tokens, on the agent's event loop: a piece costs by its own length, whatever
came before it. So what waits is kept in pieces, and of it only what may be the beginning of a tag is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        self._space: list[str] = []  # not yet told: white space, which belongs to the tag that may follow it
        self._beginning = ""  # and what may be the beginning of that tag, shorter than the tag
        self._call = _OpenCall()
        self._ended = 0  # calls that were closed so far, well-formed or not
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
        self._read(text, said)
        return said

    def finish(self, *, truncated: bool) -> list[Said]:
        """Take note of the end, at which all calls come out; of a `truncated` answer none does.

        A call that was never closed is no call: cut by a limit it is left out, else its text is content.
        """
        said: list[Said] = []
        while self._state is _State.CALL and CALL_CLOSE in self._call.text:
            self._read(self._give_up_call(said), said)
        if self._state is not _State.CALL:
            self._tell(self._beginning, said)
        elif not truncated:
            said.append(Content(CALL_OPEN + self._call.text))
        self._beginning, self._call = "", _OpenCall()
        return said if truncated else [*said, *self._calls]

    def _read(self, text: str, said: list[Said]) -> None:
        rest: str | None = text
        while rest is not None:
            rest = self._step(rest, said)

    # --- one step; each returns what is left to read in the state that follows, or None if nothing is known of more

    def _step(self, text: str, said: list[Said]) -> str | None:
        match self._state:
            case _State.BEGIN:
                return self._begin(text)
            case _State.REASONING:
                return self._go_on(text, THINK_CLOSE, _State.CONTENT, said)
            case _State.CONTENT if self._speech.dialect is not None and self._ended < MAX_CALLS:
                return self._go_on(text, CALL_OPEN, _State.CALL, said)
            case _State.CONTENT:
                self._tell(text, said)
                return None
            case _State.CALL:
                return self._go_on_with_call(text)

    def _begin(self, text: str) -> str | None:
        text = self._take_beginning() + text
        start = text.lstrip(SPACE)
        self._space.append(text[: len(text) - len(start)])
        if start.startswith(THINK_OPEN):
            self._enter(_State.REASONING)
            return start.removeprefix(THINK_OPEN)
        if THINK_OPEN.startswith(start):
            self._beginning = start
            return None
        self._state = _State.CONTENT
        return start

    def _go_on(self, text: str, tag: str, following: _State, said: list[Said]) -> str | None:
        """Tell the text up to the tag that ends it, keeping back what may be the beginning of that tag."""
        before, found, after = (self._take_beginning() + text).partition(tag)
        if not found:
            before, self._beginning = _without_beginning(before, tag)
        words = before.rstrip(SPACE)
        if words:
            self._tell(words, said)
        if found:
            self._enter(following)
            return after
        self._space.append(before[len(words) :])
        return None

    def _go_on_with_call(self, text: str) -> str | None:
        """End the open call at the first closing tag that leaves it well-formed."""
        if not self._call.add(text) or self._speech.dialect is None:
            return None
        for body in self._call.bodies():
            call = read_call(self._speech.dialect, body, self._speech.tools)
            if call is not None:
                self._calls.append(call)
                return self._leave_call(body)
        return None

    def _give_up_call(self, said: list[Said]) -> str:
        """End a malformed call at its first closing tag: it is one with broken arguments, or text if it has no name."""
        body, _, _ = self._call.text.partition(CALL_CLOSE)
        call = broken_call(self._speech.dialect, body) if self._speech.dialect is not None else None
        if call is not None:
            self._calls.append(call)
        else:
            said.append(Content(CALL_OPEN + body + CALL_CLOSE))
        return self._leave_call(body)

    def _leave_call(self, body: str) -> str:
        rest = self._call.text[len(body) + len(CALL_CLOSE) :]
        self._call, self._ended = _OpenCall(), self._ended + 1
        self._enter(_State.CONTENT)
        return rest

    def _enter(self, state: _State) -> None:
        """Go on behind a tag; the white space before it is told to nobody."""
        self._state, self._drops_space = state, True
        self._space.clear()

    def _take_beginning(self) -> str:
        beginning, self._beginning = self._beginning, ""
        return beginning

    def _tell(self, text: str, said: list[Said]) -> None:
        """Tell what was kept back as white space, and this text after it."""
        text = "".join([*self._space, text])
        self._space.clear()
        if self._drops_space:
            text = text.lstrip(SPACE)
        if text:
            self._drops_space = False
            said.append(Reasoning(text) if self._state is _State.REASONING else Content(text))


class _OpenCall:
    """What follows an opening tag, put together only when a closing tag has come."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._edge = ""  # the last characters, in which a closing tag may have begun
        self._closings = self._searched = 0  # closing tags tried, and how far they were searched

    def add(self, text: str) -> bool:
        """Take the next piece; say whether a closing tag has come with it."""
        self._pieces.append(text)
        seen = self._edge + text
        self._edge = seen[-len(CALL_CLOSE) + 1 :]  # too short for a whole tag: none is seen twice
        return CALL_CLOSE in seen

    @property
    def text(self) -> str:
        """All of it; costs by its length after each piece."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def bodies(self) -> Iterator[str]:
        """Give what the call may be: the text before each closing tag that was not tried yet, in order."""
        while self._closings < MAX_CLOSINGS and (at := self.text.find(CALL_CLOSE, self._searched)) >= 0:
            self._closings, self._searched = self._closings + 1, at + len(CALL_CLOSE)
            yield self.text[:at]


def _without_beginning(text: str, tag: str) -> tuple[str, str]:
    """Cut off what may be the beginning of the tag at the text's end."""
    length = next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
    return text[: len(text) - length], text[len(text) - length :]
