"""The HTTP API of basert-serve: which path does what, who may, and in which shape it is answered."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from basert_fleet.sim.answer import NO_TOKENS
from basert_fleet.sim.ask import Ask, Body, Kind, read_chat, read_completion, read_texts, string_list
from basert_fleet.sim.errors import BadRequest, Draining, InvalidApiKey, NotFound, RateLimited, Refusal
from basert_fleet.sim.multipart import uploaded_file
from basert_fleet.sim.options import Options, SlotsMode, model_name
from basert_fleet.sim.replies import (
    ChatStream,
    CompletionStream,
    Json,
    WholeReply,
    Wish,
    chat_completion,
    encode,
    text_completion,
    usage,
)
from basert_fleet.sim.tokens import CHARACTERS_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.sim.connection import Exchange
    from basert_fleet.sim.engine import Engine, Generation
    from basert_fleet.sim.runner import Runner, Sink

RATE_WINDOW_SECONDS = 60.0  # chosen: the unit of --rate-limit is undocumented
VECTOR_LENGTH = 8  # chosen


class Service:
    """Answers the exchanges of one process."""

    def __init__(self, options: Options, engine: Engine, runner: Runner, now: Callable[[], float]) -> None:
        self._options, self._engine, self._runner, self._now = options, engine, runner, now
        self._recent: deque[float] = deque()  # arrivals that count towards --rate-limit
        self._ids = count(1)
        self._draining = False
        self._routes: dict[tuple[str, str], Callable[[Exchange], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/slots"): self._slots,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/v1/rerank"): self._rerank,
            ("POST", "/v1/audio/transcriptions"): self._transcription,
            ("POST", "/v1/tokenize"): self._tokenize,
            ("POST", "/v1/models/load"): self._accepted,
            ("POST", "/v1/models/unload"): self._accepted,
            ("POST", "/v1/lora/load"): self._accepted,
            ("POST", "/v1/lora/unload"): self._accepted,
            ("POST", "/v1/files"): self._file,
            ("POST", "/v1/batches"): self._batch,
        }

    def drain(self) -> None:
        """Refuse all further requests for a generation."""
        self._draining = True

    def answer(self, exchange: Exchange) -> None:
        """Answer one request, now or when its generation ends; a wedged process answers only /health."""
        path = exchange.request.path
        if self._runner.is_wedged and path != "/health":
            return
        try:
            self._authorize(exchange)
            self._route(exchange)(exchange)
        except Refusal as refusal:
            exchange.respond(refusal.status, encode(refusal.body()))

    def _route(self, exchange: Exchange) -> Callable[[Exchange], None]:
        method, path = exchange.request.method, exchange.request.path
        if path == "/slots" and self._options.slots is SlotsMode.OFF:
            raise NotFound(method, path)
        try:
            return self._routes[method, path]
        except KeyError:
            raise NotFound(method, path) from None

    def _authorize(self, exchange: Exchange) -> None:
        if self._options.api_key is None or exchange.request.path == "/health":
            return
        given = exchange.request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._options.api_key.encode()):
            raise InvalidApiKey

    def _generate(self, exchange: Exchange, ask: Ask, sink: Sink) -> None:
        if self._draining:
            raise Draining
        self._forget_idle_cache()
        job = self._runner.submit(ask, sink)
        exchange.on_gone = lambda: self._runner.client_gone(job)

    def _chat(self, exchange: Exchange) -> None:
        self._limit_rate()
        body = _json(exchange)
        ask, wish = read_chat(body, self._options.limits), self._wish(body)
        if wish.stream:
            self._generate(exchange, ask, ChatStream(exchange, wish, self._options.chunking))
        else:
            self._generate(exchange, ask, WholeReply(exchange, chat_completion(wish)))

    def _completion(self, exchange: Exchange) -> None:
        self._limit_rate()
        body = _json(exchange)
        ask, wish = read_completion(body, self._options.limits), self._wish(body)
        if wish.stream:
            self._generate(exchange, ask, CompletionStream(exchange, wish, self._options.chunking))
        else:
            self._generate(exchange, ask, WholeReply(exchange, text_completion(wish)))

    def _embeddings(self, exchange: Exchange) -> None:
        self._limit_rate()
        body = _json(exchange)
        texts, model = string_list(body, "input"), self._wish(body).model

        def shape(generation: Generation, produced: int) -> Json:
            data = [
                {"object": "embedding", "index": index, "embedding": _vector(text, generation)}
                for index, text in enumerate(texts)
            ]
            return {"object": "list", "model": model, "data": data, "usage": usage(generation, produced)}

        self._generate(exchange, read_texts(Kind.EMBEDDING, texts, self._options.limits), WholeReply(exchange, shape))

    def _rerank(self, exchange: Exchange) -> None:
        self._limit_rate()
        body = _json(exchange)
        query, documents = string_list(body, "query")[0], string_list(body, "documents")

        def shape(generation: Generation, produced: int) -> Json:
            scores = [_score(query, document, generation) for document in documents]
            ranked = sorted(range(len(documents)), key=lambda index: -scores[index])
            results = [{"index": index, "relevance_score": scores[index]} for index in ranked]
            return {"object": "list", "results": results, "usage": usage(generation, produced)}

        ask = read_texts(Kind.RERANK, [query, *documents], self._options.limits)
        self._generate(exchange, ask, WholeReply(exchange, shape))

    def _transcription(self, exchange: Exchange) -> None:
        self._limit_rate()
        request = exchange.request
        audio = uploaded_file(request.headers.get("content-type", ""), request.body)
        ask = read_texts(Kind.TRANSCRIPTION, [hashlib.sha256(audio).hexdigest()], self._options.limits)

        def shape(generation: Generation, _produced: int) -> Json:
            return {"text": "".join(generation.answer.text)}

        self._generate(exchange, ask, WholeReply(exchange, shape))

    def _tokenize(self, exchange: Exchange) -> None:
        text = _json(exchange).get("content", "")
        if not isinstance(text, str):
            raise BadRequest("'content' must be a string.", "content")
        pieces = [text[at : at + CHARACTERS_PER_TOKEN] for at in range(0, len(text), CHARACTERS_PER_TOKEN)]
        tokens = [int.from_bytes(hashlib.sha256(piece.encode()).digest()[:2], "big") for piece in pieces]
        exchange.respond(200, encode({"tokens": tokens, "count": len(tokens)}))

    def _health(self, exchange: Exchange) -> None:
        exchange.respond(200, encode({"status": "ok"}))

    def _slots(self, exchange: Exchange) -> None:
        if self._options.slots is SlotsMode.SILENT and self._runner.is_prefilling:
            self._runner.when_prefilled(lambda: self._slots(exchange))
            return
        self._forget_idle_cache()
        tokens, position = self._engine.counters
        busy = bool(self._engine.running)
        slot = {"id": 0, "is_processing": busy, "cache_tokens": tokens, "cache_position": position}
        exchange.respond(200, encode([slot]))

    def _metrics(self, exchange: Exchange) -> None:
        values = {f"{name}_total": value for name, value in self._engine.totals._asdict().items()} | {
            "running": len(self._engine.running),
            "queued": self._runner.queued,
            "contaminated": int(self._engine.contaminated),
        }
        lines = [
            f"# TYPE basert_sim_{name} {'counter' if name.endswith('_total') else 'gauge'}\nbasert_sim_{name} {value}\n"
            for name, value in values.items()
        ]
        exchange.respond(200, "".join(lines).encode(), "text/plain; version=0.0.4")

    def _models(self, exchange: Exchange) -> None:
        models = [
            {"id": model_name(path), "object": "model", "created": 0, "owned_by": "basert-sim"}
            for path in self._options.models
        ]
        exchange.respond(200, encode({"object": "list", "data": models}))

    def _accepted(self, exchange: Exchange) -> None:
        _json(exchange)
        exchange.respond(200, encode({"status": "ok"}))

    def _file(self, exchange: Exchange) -> None:
        request = exchange.request
        size = len(uploaded_file(request.headers.get("content-type", ""), request.body))
        exchange.respond(200, encode({"id": f"file-{next(self._ids)}", "object": "file", "bytes": size}))

    def _batch(self, exchange: Exchange) -> None:
        source = _json(exchange).get("input_file_id")
        batch = {"id": f"batch-{next(self._ids)}", "object": "batch", "status": "validating", "input_file_id": source}
        exchange.respond(200, encode(batch))

    def _wish(self, body: Body) -> Wish:
        model = body.get("model", model_name(self._options.models[0]))
        options = body.get("stream_options")
        include_usage = isinstance(options, dict) and options.get("include_usage") is True
        if not isinstance(model, str):
            raise BadRequest("'model' must be a string.", "model")
        return Wish(model, stream=body.get("stream") is True, include_usage=include_usage)

    def _forget_idle_cache(self) -> None:
        """Reset the counters if the engine was idle for `--idle-timeout`; seen only when somebody looks."""
        if 0 < self._options.idle_seconds <= self._runner.idle_seconds():
            self._engine.forget_cache()

    def _limit_rate(self) -> None:
        if not self._options.rate_limit:
            return
        now = self._now()
        while self._recent and self._recent[0] <= now - RATE_WINDOW_SECONDS:
            self._recent.popleft()
        if len(self._recent) >= self._options.rate_limit:
            raise RateLimited(self._options.rate_limit)
        self._recent.append(now)


class AccessLog:
    """One line per answered request, as basert-serve's `--log-file`."""

    def __init__(self, path: str | None) -> None:
        self._file = open(path, "a", buffering=1, encoding="utf-8") if path else None  # noqa: SIM115, PTH123  # lives as long as the process

    def record(self, exchange: Exchange) -> None:
        """Append the request line and the status."""
        if self._file is not None:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
            self._file.write(f"{stamp} {exchange.request.method} {exchange.request.path} {exchange.status}\n")


def _json(exchange: Exchange) -> Body:
    try:
        body = json.loads(exchange.request.body)
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


def _damage_mark(generation: Generation) -> str:
    assert generation.ask.kind in NO_TOKENS  # noqa: S101  # their answers are made of their texts here
    return "" if generation.damage is None else "damaged "


def _vector(text: str, generation: Generation) -> list[float]:
    """Return a unit-range vector of the text alone, unless the engine is contaminated."""
    digest = hashlib.sha256((_damage_mark(generation) + text).encode()).digest()
    return [byte / 127.5 - 1 for byte in digest[:VECTOR_LENGTH]]


def _score(query: str, document: str, generation: Generation) -> float:
    """Return the share of the query's words in the document, turned round by a contaminated engine."""
    words = set(query.split())
    share = len(words & set(document.split())) / max(1, len(words))
    return 1 - share if _damage_mark(generation) else share
