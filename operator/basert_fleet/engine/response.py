"""Reading an engine's response: pieces for the client, each marked with what it is, and facts for the judge.

A reader decides neither when a piece goes out nor what the facts mean. It never raises because of what an engine sent:
a response that cannot be read has `malformed` or `engine_error` among its facts, and gives no more pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Protocol

import msgspec

from basert_fleet.core.calibration import Ending
from basert_fleet.core.delivery import Part
from basert_fleet.core.verdict import Reason
from basert_fleet.engine.chat_from_completion import ChatFromCompletion
from basert_fleet.engine.chunks import Choice, ChunkSplitter, Fields, decode_choices, decode_fields, is_filled
from basert_fleet.engine.connection import ResponseHead
from basert_fleet.engine.endpoints import Kind
from basert_fleet.engine.request import JSON_TYPE, Prepared
from basert_fleet.engine.sse import EventTooLong, SseEvent, SseParser, valid_utf8
from basert_fleet.engine.toolcalls import CallDeltas

STREAM_TYPE = "text/event-stream"
FIRST_ERROR_STATUS, FIRST_SERVER_ERROR_STATUS = 400, 500
MAX_WHOLE_BYTES = 67_108_864
"""Chosen: the embeddings of some thousand texts fit; an endless body does not eat the memory."""
MAX_QUOTED_CHARACTERS = 1_000
DONE = b"[DONE]"

_PART_OF = itemgetter(0)

ENDINGS: Mapping[str | None, Ending] = MappingProxyType(
    {
        "stop": Ending.STOP,
        "tool_calls": Ending.TOOL_CALLS,
        "function_call": Ending.TOOL_CALLS,
        "length": Ending.LENGTH,
    }
)


class Piece(msgspec.Struct, frozen=True):
    """A part of the response as the client may get it; whole events in a stream."""

    part: Part
    data: bytes


class ResponseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a response told, as far as it was read. Only a whole one tells about tool calls: ask after `saw_done`."""

    finish_reason: str | None
    """Of the first choice; None where there is none."""
    ending: Ending
    prompt_tokens: int | None
    completion_tokens: int | None
    tool_problem: Reason | None
    saw_done: bool
    """Whether the body says itself that it is whole: `[DONE]` in a stream, well-formed JSON otherwise. The end of the
    HTTP response must be proven besides."""
    malformed: str | None
    """Why it could not be read, for a person."""
    engine_error: str | None
    """What the engine said went wrong, in a response that it had begun with a success status."""


class Reader(Protocol):
    """What both kinds of readers offer."""

    @property
    def content_type(self) -> str:
        """The Content-Type for the client; known from the start."""

    def feed(self, data: bytes) -> list[Piece]:
        """Take the next bytes of the body and return the pieces that they complete."""

    def finish(self) -> list[Piece]:
        """Take note of the proven end of the body and return what was left."""

    def facts(self) -> ResponseFacts:
        """Return what is known so far."""


def reader_for(prepared: Prepared, head: ResponseHead) -> Reader:
    """Return the reader for this response: whether it is a stream is the engine's to say, not only the client's."""
    streams = prepared.stream and head.status < FIRST_ERROR_STATUS and head.content_type == STREAM_TYPE
    return StreamReader(prepared) if streams else WholeReader(prepared, head)


class StreamReader:
    """Reads the server-sent events of one chat or completion stream.

    Pieces of one kind that arrive together are one piece. Comments of the engine are left out.
    """

    content_type = STREAM_TYPE

    def __init__(self, prepared: Prepared) -> None:
        self._events = SseParser()
        self._chat = _chat_from(prepared)
        self._splitter = ChunkSplitter(prepared)
        self._notes = _Notes(prepared)

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces that these bytes complete; none any more after an error."""
        if self._notes.failed:
            return []
        try:
            events = self._events.feed(data)
        except EventTooLong as error:
            self._notes.malformed = str(error)
            return []
        return _joined(chunk for event in events for chunk in self._read(event))

    def finish(self) -> list[Piece]:
        """Take note of the end; an event without its empty line is one that was cut, not a piece."""
        if self._events.unfinished and not self._notes.failed:
            self._notes.malformed = "the stream ended inside an event"
        return []

    def facts(self) -> ResponseFacts:
        """Return what is known so far."""
        return self._notes.facts()

    def _read(self, event: SseEvent) -> list[tuple[Part, bytes]]:
        notes = self._notes
        if notes.failed:
            return []
        if notes.saw_done:
            notes.malformed = "an event after [DONE]"
            return []
        if event.data == DONE:
            notes.saw_done = True
            return [(Part.ENDING, DONE)]
        try:
            fields = decode_fields(event.data)
            if event.kind == b"error" or is_filled(fields.get("error")):
                notes.engine_error = _message_of(event.data)
                return []
            choices = decode_choices(fields)
            if self._chat is not None:
                chat = self._chat.chunk(fields, choices)
                if chat is None:
                    return []
                fields, choices = chat, decode_choices(chat)
            chunks = self._splitter.split(dict(fields), choices)
            notes.take(fields, choices)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            notes.malformed = f"an event that is no chunk: {error}"
            return []
        return chunks


class WholeReader:
    """Reads a response that is one document: JSON, an error, or the plain text of a transcription."""

    def __init__(self, prepared: Prepared, head: ResponseHead) -> None:
        self._prepared, self._status = prepared, head.status
        self._is_error = head.status >= FIRST_ERROR_STATUS
        self._content_type = JSON_TYPE if self._is_error else head.header("content-type") or JSON_TYPE
        self._body: list[bytes] = []
        self._size = 0
        self._notes = _Notes(prepared)

    @property
    def content_type(self) -> str:
        """The Content-Type for the client; errors are always OpenAI-shaped JSON."""
        return self._content_type

    def feed(self, data: bytes) -> list[Piece]:
        """Keep the bytes; there are no pieces before the end."""
        self._size += len(data)
        if self._size > MAX_WHOLE_BYTES:
            self._body.clear()
            self._notes.malformed = f"a response of more than {MAX_WHOLE_BYTES} bytes"
        else:
            self._body.append(data)
        return []

    def finish(self) -> list[Piece]:
        """Return the response in one piece, or nothing if it cannot be read."""
        if self._notes.failed:
            return []
        body = b"".join(self._body)
        whole = error_body(self._status, body) if self._is_error else self._read(body)
        if whole is None:
            return []
        self._notes.saw_done = True
        return [Piece(Part.WHOLE, whole)]

    def facts(self) -> ResponseFacts:
        """Return what is known so far."""
        return self._notes.facts()

    def _read(self, body: bytes) -> bytes | None:
        """Note what the body tells and return it with the request's id; None if it cannot be read."""
        if self._prepared.endpoint.kind is Kind.TRANSCRIPTION:
            return body  # text, subtitles or JSON, as the form asked
        try:
            return self._read_json(valid_utf8(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._notes.malformed = f"a response that is not as expected: {error}"
            return None

    def _read_json(self, body: bytes) -> bytes | None:
        generates = self._prepared.endpoint.generates
        if not generates and isinstance(msgspec.json.decode(body), list):
            return body  # as some engines answer to rerank or tokenize
        fields = decode_fields(body)
        if is_filled(fields.get("error")):
            self._notes.engine_error = _message_of(body)
            return None
        chat = _chat_from(self._prepared)
        if chat is not None:
            fields = chat.whole(fields, decode_choices(fields))
            body = msgspec.json.encode(fields)
        self._notes.take(fields, decode_choices(fields))
        if not generates or "id" not in fields:
            return body
        return msgspec.json.encode(fields | {"id": self._prepared.request_id})


def _chat_from(prepared: Prepared) -> ChatFromCompletion | None:
    """Return what makes a chat of the engine's text; None where it answers as it was asked."""
    return None if prepared.speech is None else ChatFromCompletion(prepared.speech, prepared.request_id)


def error_body(status: int, body: bytes) -> bytes:
    """Return an engine's error as OpenAI shapes it: as it is if it has that shape, else its text wrapped."""
    try:
        msgspec.json.decode(body, type=_ErrorDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body.decode("utf-8", "replace").strip()[:MAX_QUOTED_CHARACTERS]
        error = {
            "message": text or f"The engine answered with status {status} and no explanation.",
            "type": "server_error" if status >= FIRST_SERVER_ERROR_STATUS else "invalid_request_error",
            "param": None,
            "code": "engine_error",
        }
        return msgspec.json.encode({"error": error})
    return body


class _Error(msgspec.Struct):
    message: str


class _ErrorDocument(msgspec.Struct):
    error: _Error


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


_USAGE = msgspec.json.Decoder(_Usage)


class _Notes:
    """What one response told so far."""

    def __init__(self, prepared: Prepared) -> None:
        self._judges_calls = prepared.endpoint.kind is Kind.CHAT
        self._tools = prepared.tools
        self._usage = _Usage()
        self._finish_reasons: dict[int, str] = {}
        self._calls: dict[int, CallDeltas] = {}
        self.saw_done = False
        self.malformed: str | None = None
        self.engine_error: str | None = None

    @property
    def failed(self) -> bool:
        return self.malformed is not None or self.engine_error is not None

    def take(self, fields: Fields, choices: list[Choice]) -> None:
        """Take note of a chunk of a stream, or of a whole response: it is one chunk that says everything."""
        if is_filled(fields.get("usage")):
            self._usage = _USAGE.decode(fields["usage"])
        for choice in choices:
            self._take_choice(choice)

    def facts(self) -> ResponseFacts:
        finish_reason = self._finish_reasons.get(0)
        return ResponseFacts(
            finish_reason=finish_reason,
            ending=ENDINGS.get(finish_reason, Ending.OTHER),
            prompt_tokens=self._usage.prompt_tokens,
            completion_tokens=self._usage.completion_tokens,
            tool_problem=self._tool_problem(),
            saw_done=self.saw_done,
            malformed=self.malformed,
            engine_error=self.engine_error,
        )

    def _take_choice(self, choice: Choice) -> None:
        if choice.finish_reason is not None:
            self._finish_reasons[choice.index] = choice.finish_reason
        if choice.is_plain_text or not self._judges_calls:
            return
        calls = self._calls.setdefault(choice.index, CallDeltas())
        tool_calls, function_call = choice.message.get("tool_calls"), choice.message.get("function_call")
        if is_filled(tool_calls):
            add = calls.add if "delta" in choice.fields else calls.add_whole
            add(msgspec.json.decode(tool_calls))
        if is_filled(function_call):
            calls.add_function_call(msgspec.json.decode(function_call))

    def _tool_problem(self) -> Reason | None:
        if not self._judges_calls:
            return None
        calls = self._calls or {0: CallDeltas()}
        problems = (deltas.problem(self._tools, self._finish_reasons.get(index)) for index, deltas in calls.items())
        return next((problem for problem in problems if problem is not None), None)


def _message_of(data: bytes) -> str:
    """Return what an engine's error says, or the error itself if it says nothing readable."""
    try:
        return msgspec.json.decode(data, type=_ErrorDocument).error.message[:MAX_QUOTED_CHARACTERS]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode("utf-8", "replace")[:MAX_QUOTED_CHARACTERS]


def _joined(chunks: Iterable[tuple[Part, bytes]]) -> list[Piece]:
    """Frame chunks as events and join neighbours of one kind."""
    return [
        Piece(part, b"".join([b"data: %b\n\n" % chunk for _, chunk in run])) for part, run in groupby(chunks, _PART_OF)
    ]
