"""Every error that a client can get: one table from a code to its status, its type, and whether to try again.

The shape is OpenAI's, so that their SDKs raise their own typed errors. Only a refusal that waiting can cure may be
retried by an SDK; everything else carries `x-should-retry: false`, since the fleet has already tried (design 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import msgspec

from basert_fleet.gateway.asgi import Headers


class Code(StrEnum):
    """The `code` of an error; clients may rely on these words."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_CAPACITY = "no_capacity"
    DRAINING = "draining"
    ISOLATION_UNAVAILABLE = "isolation_unavailable"
    RESPONSE_CONTAMINATED = "response_contaminated"
    WORKER_LOST = "worker_lost"
    REQUEST_REFUSED = "request_refused"
    REQUEST_TIMEOUT = "request_timeout"
    MODEL_NOT_FOUND = "model_not_found"
    INVALID_API_KEY = "invalid_api_key"
    INVALID_REQUEST = "invalid_request"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_ENDPOINT = "unsupported_endpoint"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CLIENT_TOO_SLOW = "client_too_slow"
    HEAD_TOO_LARGE = "head_too_large"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    INTERNAL_ERROR = "internal_error"


class Blame(StrEnum):
    """Whose doing an error is; the client's do not count against the objective."""

    CLIENT = "client"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Row:
    """What one code means in HTTP."""

    status: int
    type: str
    blame: Blame
    retry: bool = False
    """Whether the same request may succeed a little later."""


ERRORS: Mapping[Code, Row] = MappingProxyType({
    Code.QUEUE_FULL:            Row(429, "rate_limit_error", Blame.FLEET, retry=True),
    Code.QUEUE_TIMEOUT:         Row(503, "server_error", Blame.FLEET, retry=True),
    Code.NO_CAPACITY:           Row(503, "server_error", Blame.FLEET),
    Code.DRAINING:              Row(503, "server_error", Blame.FLEET, retry=True),
    Code.ISOLATION_UNAVAILABLE: Row(503, "server_error", Blame.FLEET),
    Code.RESPONSE_CONTAMINATED: Row(502, "server_error", Blame.FLEET),
    Code.WORKER_LOST:           Row(502, "server_error", Blame.FLEET),
    Code.REQUEST_REFUSED:       Row(422, "invalid_request_error", Blame.CLIENT),
    Code.REQUEST_TIMEOUT:       Row(504, "server_error", Blame.FLEET),
    Code.MODEL_NOT_FOUND:       Row(404, "invalid_request_error", Blame.CLIENT),
    Code.INVALID_API_KEY:       Row(401, "authentication_error", Blame.CLIENT),
    Code.INVALID_REQUEST:       Row(400, "invalid_request_error", Blame.CLIENT),
    Code.PAYLOAD_TOO_LARGE:     Row(413, "invalid_request_error", Blame.CLIENT),
    Code.UNSUPPORTED_ENDPOINT:  Row(404, "invalid_request_error", Blame.CLIENT),
    Code.METHOD_NOT_ALLOWED:    Row(405, "invalid_request_error", Blame.CLIENT),
    Code.CLIENT_TOO_SLOW:       Row(408, "invalid_request_error", Blame.CLIENT),
    Code.HEAD_TOO_LARGE:        Row(431, "invalid_request_error", Blame.CLIENT),
    Code.TOO_MANY_CONNECTIONS:  Row(503, "server_error", Blame.FLEET, retry=True),
    Code.INTERNAL_ERROR:        Row(500, "server_error", Blame.FLEET),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """One error on its way to a client."""

    code: Code
    message: str
    param: str | None = None
    """The field or header of the request that is to blame, if one is."""
    retry_after_seconds: float | None = None

    @property
    def row(self) -> Row:
        """What the code means in HTTP."""
        return ERRORS[self.code]

    def body(self) -> bytes:
        """Return the JSON that OpenAI's SDKs read."""
        error = {"message": self.message, "type": self.row.type, "param": self.param, "code": self.code.value}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """Return the error as an event in a stream that has begun; no `[DONE]` may follow it.

        A stream that is silently cut looks like a clean end to the SDKs; on this event they raise.
        """
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> Headers:
        """Return the headers that go with the status."""
        headers: Headers = [(b"content-type", b"application/json")]
        if not self.row.retry:
            headers.append((b"x-should-retry", b"false"))
        if self.retry_after_seconds is not None:
            headers.append((b"retry-after", str(math.ceil(self.retry_after_seconds)).encode()))
        return headers


class RequestFault(Exception):
    """A request ends here with this failure; raised at the edge, where nothing has been sent to the client yet."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def because(cls, code: Code, message: str, *, param: str | None = None) -> RequestFault:
        """Build the failure from its parts."""
        return cls(Failure(code, message, param))
