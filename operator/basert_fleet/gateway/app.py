"""The clients' API: OpenAI's endpoints as far as a slot can serve them, models, health, and CORS for browsers.

Raw ASGI. Only what is listed is answered: whatever else basert-serve has (loading models, files, /slots) is never
forwarded. The client's Authorization ends here.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from basert_fleet.engine.endpoints import ENDPOINTS
from basert_fleet.engine.request import InvalidRequest, peek
from basert_fleet.gateway import cors
from basert_fleet.gateway.asgi import header, respond
from basert_fleet.gateway.ask import Ask, Terms, new_request_id, request_id
from basert_fleet.gateway.client_protocol import CONNECTION
from basert_fleet.gateway.errors import Code, Failure, RequestFault
from basert_fleet.gateway.outcomes import CANCELLED, outcome_of
from basert_fleet.gateway.uploads import ClientLeft, UploadLimits, Uploads
from basert_fleet.gateway.writer import ClientStalled, write_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.engine.endpoints import Endpoint
    from basert_fleet.gateway.asgi import ClientConnection, Headers, Receive, Scope, Send
    from basert_fleet.gateway.auth import Key, Keys
    from basert_fleet.gateway.exchange import Exchange
    from basert_fleet.gateway.fleet import Fleet

MODELS = "/v1/models"
HEALTH = "/health"
_JSON: Headers = [(b"content-type", b"application/json")]


class ClientApi:
    """The ASGI application of the clients' port."""

    def __init__(self, fleet: Fleet, keys: Callable[[], Keys], limits: UploadLimits | None = None) -> None:
        """Serve this fleet; `keys` is asked at each request, so that a reloaded file holds at once."""
        self._fleet = fleet
        self._keys = keys
        self._uploads = Uploads(limits or UploadLimits())

    def refused(self, code: Code) -> None:
        """Count what the server has refused before it came here."""
        self._fleet.metrics.refused(outcome_of(code))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] == "OPTIONS":
            await respond(send, 204, cors.preflight(scope), b"")
            return
        asked_id = request_id(scope)
        trace_id = new_request_id() if self._fleet.traffic.is_known(asked_id) else asked_id
        try:
            await self._route(scope, receive, send, trace_id)
        except RequestFault as fault:
            self.refused(fault.failure.code)
            await _fail(send, fault.failure, trace_id)
        except ClientLeft:
            self._fleet.metrics.refused(CANCELLED)
        except Exception:  # a bug: the client is told what can be told, and uvicorn logs the traceback
            await _tell_of_a_bug(send, trace_id)
            raise

    async def _route(self, scope: Scope, receive: Receive, send: Send, trace_id: str) -> None:
        path, method = scope["path"], scope["method"]
        endpoint = ENDPOINTS.get(path)
        if endpoint is not None:
            _require(method, "POST", path)
            await self._run(endpoint, scope, receive, send, trace_id)
        elif path == HEALTH:
            _require(method, "GET", path)
            await respond(send, 200, [*_JSON, *cors.RESPONSE], b'{"status":"ok"}')
        elif path == MODELS or path.startswith(f"{MODELS}/"):
            _require(method, "GET", path)
            self._authenticate(scope)
            body = self._models(path)
            await respond(send, 200, [*_JSON, (b"x-request-id", trace_id.encode()), *cors.RESPONSE], body)
        else:
            raise RequestFault.because(Code.UNSUPPORTED_ENDPOINT, f"This gateway does not serve {path}.")

    async def _run(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send, trace_id: str) -> None:
        """Read a request, queue it, and write its response."""
        terms = Terms.read(scope, self._authenticate(scope))
        body = await self._uploads.read(scope, receive)
        content_type = (header(scope, b"content-type") or b"application/json").decode("latin-1")
        try:
            found = peek(body, content_type)
        except InvalidRequest as error:
            raise RequestFault.because(Code.INVALID_REQUEST, str(error), param=error.param) from error
        ask = Ask(
            request_id=trace_id,
            path=endpoint.path,
            content_type=content_type,
            body=body,
            model=found.model,
            streams=endpoint.streams and found.stream,
            terms=terms,
        )
        connection: ClientConnection = scope["extensions"][CONNECTION]
        await self._deliver(self._fleet.submit(ask, connection.abort), connection, send)

    async def _deliver(self, exchange: Exchange, connection: ClientConnection, send: Send) -> None:
        """Write the response. However it ends, the request is over: answered, or given up and its lease cancelled."""
        traffic = self._fleet.traffic
        client_gone = partial(traffic.client_gone, exchange)
        connection.when_lost(client_gone)
        try:
            await write_response(exchange, send, cors.RESPONSE, traffic.first_byte)
        except ClientStalled:
            traffic.cut(exchange)
        finally:
            connection.forget(client_gone)
            client_gone()

    def _authenticate(self, scope: Scope) -> Key:
        key = self._keys().find(header(scope, b"authorization"))
        if key is None:
            raise RequestFault.because(
                Code.INVALID_API_KEY, "Missing or unknown API key. Send it as `Authorization: Bearer <key>`."
            )
        return key

    def _models(self, path: str) -> bytes:
        """Return the list of models, or the one that the path names."""
        models = self._fleet.models()
        if path == MODELS:
            return msgspec.json.encode({"object": "list", "data": [_model(name, models[name]) for name in models]})
        name = path.removeprefix(f"{MODELS}/")
        if name not in models:
            raise RequestFault.because(Code.MODEL_NOT_FOUND, f"The model {name!r} does not exist.", param="model")
        return msgspec.json.encode(_model(name, models[name]))


def _model(name: str, pool: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": 0, "owned_by": pool}


def _require(method: str, wanted: str, path: str) -> None:
    if method != wanted:
        raise RequestFault.because(Code.METHOD_NOT_ALLOWED, f"{path} only takes {wanted}.")


async def _tell_of_a_bug(send: Send, trace_id: str) -> None:
    with contextlib.suppress(RuntimeError):  # uvicorn's word for: a response has begun; it is cut instead
        await _fail(send, Failure(Code.INTERNAL_ERROR, "The gateway failed; its log has the reason."), trace_id)


async def _fail(send: Send, failure: Failure, trace_id: str) -> None:
    headers = [*failure.headers(), (b"x-request-id", trace_id.encode()), *cors.RESPONSE]
    await respond(send, failure.row.status, headers, failure.body())
