"""The log: one line per lease, JSON unless a terminal reads it.

Messages are constant, values are fields. Prompts, answers and keys are logged at no level.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

    from basert_fleet.telemetry.line_sink import LineSink

_INFO = 20  # the number that structlog and logging give this level


class LeaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged of each lease when it ends: the fields, in the words of the design."""

    request: str
    tenant: str
    pool: str
    worker: str
    epoch: str
    attempt: int
    outcome: str
    verdict: str
    reason: str | None
    drift: int | None
    """Tokens."""
    prefix_reused: bool
    """The engine reported a fraction of the prompt: it went on from the prefix of the request before."""
    finish: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    queue_ms: float
    """From the request's arrival to this lease being accepted."""
    execute_ms: float
    event: str = "lease ended"
    level: str = "info"
    timestamp: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))


class FleetLog:
    """A gateway's log: what happens now and then, by structlog, and each lease, by a way that costs a tenth of that."""

    def __init__(self, stream: BinaryIO | LineSink) -> None:
        """Write to this stream, as `make_logger` does."""
        self.events = make_logger(stream)
        """For everything but leases."""
        self._write = stream.write
        self._encode: Callable[[LeaseLine], bytes] = _as_text if stream.isatty() else msgspec.json.Encoder().encode

    def lease_ended(self, line: LeaseLine) -> None:
        """Write the line of one lease."""
        self._write(self._encode(line) + b"\n")


def make_logger(stream: BinaryIO | LineSink) -> FilteringBoundLogger:
    """Return a logger that writes to this stream: JSON lines, or on a terminal `key=value` for a person.

    Whoever logs waits for the stream and gets its errors: on an event loop that is only right of a `LineSink`. Each
    call makes its own logger; nothing global is configured.
    """
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.BytesLogger(cast(BinaryIO, stream)),  # it only calls write and flush
        processors=_processors(for_person=stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(_INFO),
    )
    return logger


def _processors(*, for_person: bool) -> Sequence[Processor]:
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if for_person:
        return [*shared, _to_text]
    return [*shared, structlog.processors.JSONRenderer(serializer=_to_json)]


_render_text = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])


def _to_text(logger: WrappedLogger, method: str, event: EventDict) -> bytes:
    """Render `key=value` as the bytes that the stream takes."""
    return _render_text(logger, method, event).encode()


def _as_text(line: LeaseLine) -> bytes:
    return _to_text(None, "", msgspec.to_builtins(line))


def _to_json(event: object, **_options: object) -> bytes:
    return msgspec.json.encode(event)
