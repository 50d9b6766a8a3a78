"""A client's request body: what the gateway must know of it, and what the agent changes before it goes to the engine.

Bodies are untrusted and may have tens of megabytes. They are decoded as little as possible, and the engine reads the
client's own text with one option spliced in; only where the client sent stream_options is the top level written anew.
Keys that decide how a response is read may not occur twice, for then the engine might act on the one that we did not
read. What else is wrong with a body, the engine says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from basert_fleet.core.errors import FleetError
from basert_fleet.engine import multipart
from basert_fleet.engine.endpoints import ENDPOINTS, Endpoint
from basert_fleet.engine.spoken_answer import Speech
from basert_fleet.engine.toolcalls import NO_TOOLS, ToolSet

JSON_TYPE = "application/json"
COMPLETION_PATH = "/v1/completions"
DECISIVE = (
    "model",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "response_format",
)
"""Top-level keys on which we and the engine must agree."""
BYTES_PER_TOKEN = 4
"""A common rule of thumb. The estimate only serves to notice a prompt that is reported at a fraction of its size."""
MEDIA_MARKS = (b'"image_url"', b'"input_audio"', b'"input_image"')
"""Bodies with these carry base64, whose size says nothing about tokens."""


TEXT = msgspec.json.Decoder(str | None)
SWITCH = msgspec.json.Decoder(bool | None)
OBJECT = msgspec.json.Decoder(dict[str, Any] | None)
LIST = msgspec.json.Decoder(list[msgspec.Raw] | None)


class InvalidRequest(FleetError):
    """A body that cannot be served as it is; the same body will never be."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Peek:
    """What the gateway decides by."""

    model: str | None
    """None when the client named none."""
    stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request as the engine gets it, and what the reader of its response must know."""

    endpoint: Endpoint
    request_id: str
    content_type: str
    """What the engine is told; never the client's own words, which may hold what no header line of ours may."""
    body: bytes
    stream: bool
    strip_usage: bool
    """Whether usage is in the stream only because we asked for it."""
    tools: ToolSet
    structured: bool
    """Whether response_format asks for JSON."""
    expected_prompt_tokens: int | None
    """A rough estimate, tools included; None where the body's size tells nothing."""
    speech: Speech | None = None
    """How to read the engine's plain text as the answer to a chat; None where the engine is asked for a chat itself."""

    @property
    def path(self) -> str:
        """Where the engine gets it: a chat that was rendered here is a completion there."""
        return self.endpoint.path if self.speech is None else COMPLETION_PATH


def peek(body: bytes, content_type: str) -> Peek:
    """Read what is needed to place a request, and see that what decides about its answer has the right shape.

    Raises:
        InvalidRequest: it is no JSON object (or form), or a field that is read has the wrong type or occurs twice.
    """
    if multipart.is_form(content_type):
        form = _read_form(body, content_type)
        return Peek(form.get("model"), stream=False)
    fields = read_object(body)
    for name in ("tools", "functions"):
        typed(fields, name, LIST)
    _wants_json(fields)
    return Peek(model=typed(fields, "model", TEXT), stream=bool(typed(fields, "stream", SWITCH)))


def prepare(path: str, body: bytes, request_id: str, content_type: str = JSON_TYPE) -> Prepared:
    """Make a client's request ready for the engine: a stream will tell its usage, everything else stays as it came.

    Raises:
        InvalidRequest: as for `peek`; or stream_options is no object.
        KeyError: the path is not an allowed endpoint (a bug: the gateway forwards no other).
    """
    endpoint = ENDPOINTS[path]
    if multipart.is_form(content_type):
        _read_form(body, content_type)
        return Prepared(
            endpoint=endpoint,
            request_id=request_id,
            content_type=multipart.canonical(content_type),
            body=body,
            stream=False,
            strip_usage=False,
            tools=NO_TOOLS,
            structured=False,
            expected_prompt_tokens=None,
        )
    fields = read_object(body)
    stream = endpoint.streams and bool(typed(fields, "stream", SWITCH))
    asked = False
    if stream:
        body, asked = _with_usage(body, fields)
    return Prepared(
        endpoint=endpoint,
        request_id=request_id,
        content_type=JSON_TYPE,
        body=body,
        stream=stream,
        strip_usage=stream and not asked,
        tools=ToolSet.read(fields) if endpoint.generates else NO_TOOLS,
        structured=_wants_json(fields),
        expected_prompt_tokens=_expected_tokens(endpoint, body),
    )


def _with_usage(body: bytes, fields: Mapping[str, msgspec.Raw]) -> tuple[bytes, bool]:
    """Return the body with stream_options.include_usage set, and whether it was set already."""
    options = typed(fields, "stream_options", OBJECT)
    if options is None and "stream_options" not in fields:
        # The last brace is the object's own; a comma fits before the option, for "stream" is there.
        end = body.rindex(b"}")
        return body[:end] + b',"stream_options":{"include_usage":true}}', False
    asked = options is not None and options.get("include_usage") is True
    if asked:
        return body, True
    rebuilt = msgspec.Raw(msgspec.json.encode((options or {}) | {"include_usage": True}))
    return msgspec.json.encode({**fields, "stream_options": rebuilt}), False


def _expected_tokens(endpoint: Endpoint, body: bytes) -> int | None:
    if not endpoint.generates or any(mark in body for mark in MEDIA_MARKS):
        return None
    return len(body) // BYTES_PER_TOKEN


def _wants_json(fields: Mapping[str, msgspec.Raw]) -> bool:
    wanted = typed(fields, "response_format", OBJECT)
    return wanted is not None and wanted.get("type") != "text"


class _Key:
    """A key that equals only itself, so that decoding keeps those that occur twice."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _key(_type: type, name: str) -> _Key:
    return _Key(name)


_OBJECT = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=_key)


def read_object(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object, their values undecoded.

    Raises:
        InvalidRequest: it is none, or a key on which we and the engine must agree occurs twice.
    """
    try:
        if not body.isascii():
            body.decode()  # the decoder below looks into strings only where it must
        members = _OBJECT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not a JSON object in UTF-8: {error}.") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    fields = {key.name: value for key, value in members.items()}
    if len(fields) < len(members):
        names = [key.name for key in members]
        repeated = next((name for name in DECISIVE if names.count(name) > 1), None)
        if repeated is not None:
            raise InvalidRequest(f"'{repeated}' occurs more than once. Send it once.", repeated)
    return fields


def typed(fields: Mapping[str, msgspec.Raw], name: str, wanted: msgspec.json.Decoder[Any]) -> Any:
    """Decode one member, None if it is absent.

    Raises:
        InvalidRequest: it has another type; names the member.
    """
    if name not in fields:
        return None
    try:
        return wanted.decode(fields[name])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"'{name}' cannot be read: {error}.", name) from error


def _read_form(body: bytes, content_type: str) -> dict[str, str]:
    try:
        multipart.canonical(content_type)
        return multipart.text_fields(body, content_type, frozenset({"model"}))
    except multipart.MalformedForm as error:
        raise InvalidRequest(f"The form cannot be read: {error}.", error.field) from error
