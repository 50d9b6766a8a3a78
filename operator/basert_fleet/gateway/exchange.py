"""One client's request through its attempts, up to the last byte that the client gets.

Events come in by calls from the fleet, which owns queues and leases; what may go out is put into the outbox, which the
writer empties. What to do after each attempt is decided by `core.delivery.Attempts`; nothing here decides on a verdict.

A status is decided as late as possible (C04): the head and the opening of a response wait for the first piece that a
user could see, so that a failed attempt before it leaves no trace. A stream cannot wait for ever, though: some seconds
after its lease was accepted the head goes out alone, and comments keep the connection alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from basert_fleet.core.delivery import Attempts, Deliver, Fail, FailStream, Next, Outcome, Part, RunElsewhere
from basert_fleet.core.verdict import Reason, Verdict
from basert_fleet.engine.response import STREAM_TYPE
from basert_fleet.gateway.errors import Code, Failure
from basert_fleet.gateway.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.core.epoch import Epoch
    from basert_fleet.gateway.asgi import Headers
    from basert_fleet.gateway.ask import Ask
    from basert_fleet.wire.messages import End

_STREAM_HEADERS: Headers = [
    (b"content-type", STREAM_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]
_OK = 200
_FIRST_ERROR = 400


class Exchange:
    """A request, its attempts, and what of its response has been let go."""

    def __init__(self, ask: Ask, pool: str, *, now: float, attempts: Attempts, buffer_bytes: int) -> None:
        self.ask = ask
        self.pool = pool
        self.arrived_at = now
        self.attempts = attempts
        self.outbox = Outbox(buffer_bytes)
        self.failure: Failure | None = None
        """Why it failed, once it has."""
        self.waited_seconds = 0.0
        """Spent in the queue, between attempts included."""
        self.agreed: frozenset[Reason] = frozenset()
        """What the next lease has to say was seen before."""
        self.worker = ""
        self.epoch: Epoch | None = None
        """The lease it has, or had last."""
        self.released: set[Part] = set()
        """Kinds of pieces of the current attempt that went to the client."""
        self.abort: Callable[[], None] = _nothing_to_abort
        """Drops the client's connection."""
        self.status = _OK
        """What is sent with the head; decided once the outbox is opened, as is the next."""
        self.is_stream = False
        """Whether the body is a stream of events."""
        self._sent_type = ""
        self._waiting_since = now
        self._verdict: Verdict | None = None
        self._status: int | None = None
        self._content_type = ""
        self._opening: list[bytes] = []
        self._whole: bytes | None = None

    # --- One attempt --------------------------------------------------------------------------------------------------

    def leased(self, worker: str, epoch: Epoch) -> None:
        """A lease is on its way to the agent."""
        self.worker, self.epoch = worker, epoch

    def accepted(self, now: float) -> None:
        """The process has the request: this is an attempt."""
        assert self.epoch is not None  # noqa: S101 - leased() came first, or the fleet has a bug
        self.attempts.started(self.worker, self.epoch.process)
        self.waited_seconds += now - self._waiting_since

    def head(self, status: int, content_type: str) -> None:
        """The engine has answered; its status is passed on with the first piece of the body."""
        self._status, self._content_type = status, content_type

    def body(self, data: bytes, part: Part) -> bool:
        """Pass on a piece that the agent released; False if the client is too slow to take it."""
        if self.outbox.closed:
            return True  # failed or dropped meanwhile: it reaches nobody
        if part is Part.OPENING and not self.released:
            self._opening.append(data)
            return True
        if part is Part.WHOLE:
            self._whole = data  # until End: an engine's 500 may still run elsewhere
            return True
        self._let_go(part)
        return self._open_with(data)

    def open_early(self) -> None:
        """Send the head of a stream without any of its body: the client has waited long enough for a sign of life."""
        if not (self.outbox.opened or self.outbox.closed):
            self._open(_OK, STREAM_TYPE)

    def ended(self, end: End, now: float) -> Next:
        """Take in the attempt's end; pass on what it leaves, and say what follows."""
        self._verdict = end.verdict
        follows = self.attempts.ended(Outcome(end.outcome), end.verdict, status=self._status, error=end.error)
        return self._follow(follows, now)

    def lost(self, now: float, *, started: bool) -> Next:
        """The agent cannot tell any more what became of the attempt; `started` says whether it had accepted it."""
        if not started:
            self._waiting_since = now
            return RunElsewhere(frozenset(), frozenset(), self.agreed)
        follows = self.attempts.ended(Outcome.AGENT_LOST, Verdict.because(Reason.NO_PROOF_OF_IDLE), status=None)
        return self._follow(follows, now)

    def refuse(self, failure: Failure) -> Next:
        """End with this error instead of another attempt."""
        self.fail(failure)
        return Fail(failure.code.value, failure.message)

    def fail(self, failure: Failure) -> None:
        """End with this error: as a status if that is still possible, else as an event in the stream."""
        if self.outbox.closed:
            return
        self.failure = failure
        self.outbox.close(failure.event() if self.outbox.opened else b"")

    def drop(self) -> None:
        """Nobody reads any more."""
        self.outbox.discard()

    def _follow(self, follows: Next, now: float) -> Next:
        match follows:
            case Deliver():
                self._deliver()
            case RunElsewhere():
                self.agreed = follows.agreed
                self._forget_attempt(now)
            case Fail() | FailStream():
                self.fail(Failure(Code(follows.code), follows.message))
        return follows

    def _deliver(self) -> None:
        if self._whole is not None:
            self._let_go(Part.WHOLE)
            self._deliver_whole(self._whole)
        elif self._opening or not self.outbox.opened:
            self._open_with(b"")
        self.outbox.close()

    def _deliver_whole(self, whole: bytes) -> None:
        """Pass on a response in one piece; within a stream that was opened early it has to become an event."""
        if self.outbox.opened:
            self.outbox.put(_as_event(whole))
            return
        self.outbox.put(whole)
        self._open(self._engine_status(), self._content_type)

    def _open_with(self, data: bytes) -> bool:
        if self._opening:
            data = b"".join(self._opening) + data
            self._opening.clear()
            self._let_go(Part.OPENING)
        fits = self.outbox.put(data)
        if not self.outbox.opened:
            self._open(self._engine_status(), STREAM_TYPE if self.ask.streams else self._content_type)
        return fits

    def _open(self, status: int, content_type: str) -> None:
        self.status = status
        self.is_stream = content_type == STREAM_TYPE
        self._sent_type = content_type
        self.outbox.open()

    def _engine_status(self) -> int:
        return _OK if self._status is None else self._status

    def _let_go(self, part: Part) -> None:
        if part not in self.released:
            self.released.add(part)
            self.attempts.released(part)

    def _forget_attempt(self, now: float) -> None:
        self._waiting_since = now
        self._status = None
        self._whole = None
        self._opening.clear()
        self.released = set()

    # --- The response's head ------------------------------------------------------------------------------------------

    @property
    def is_success(self) -> bool:
        """Whether what was delivered is an answer, and not the engine's refusal of the request."""
        return self._engine_status() < _FIRST_ERROR

    def headers(self) -> Headers:
        """Return the headers to send with the head, as much as is known now."""
        if self.is_stream:
            return [*_STREAM_HEADERS, *self.trace_headers()]
        content_type = (b"content-type", self._sent_type.encode("latin-1", "replace"))
        return [content_type, *self.trace_headers()]

    def trace_headers(self) -> Headers:
        """Return the headers by which a response is found again in logs and metrics."""
        headers: Headers = [
            (b"x-request-id", self.ask.request_id.encode()),
            (b"x-basert-attempts", b"%d" % self.attempts.count),
            (b"x-basert-queue-ms", b"%d" % (self.waited_seconds * 1000)),
        ]
        if self.worker:
            headers.append((b"x-basert-worker", self.worker.encode()))
            headers.append((b"x-basert-lease", str(self.epoch).encode()))
        if self._verdict is not None:
            headers.append((b"x-basert-verdict", self._verdict.kind.value.encode()))
        return headers


def _as_event(whole: bytes) -> bytes:
    """Return a JSON response as one event; its line breaks would end the event early."""
    try:
        return b"data: " + msgspec.json.format(whole, indent=-1) + b"\n\n"
    except msgspec.DecodeError:
        return Failure(Code.WORKER_LOST, "the worker's answer was no JSON").event()


def _nothing_to_abort() -> None:
    """Stand in until the client's connection is known."""
