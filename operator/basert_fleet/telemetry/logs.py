"""The log: one line per lease, JSON unless a terminal reads it.

Messages are constant, values are fields. Prompts, answers and keys are logged at no level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec
import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def log_lease(logger: FilteringBoundLogger, line: LeaseLine) -> None:
    """Write the line of one lease."""
    logger.info("lease ended", **msgspec.structs.asdict(line))


def _processors(*, for_person: bool) -> Sequence[Processor]:
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if for_person:
        return [*shared, _ToLogfmt()]
    return [*shared, structlog.processors.JSONRenderer(serializer=_to_json)]


class _ToLogfmt:
    """structlog's renderer of `key=value`, as the bytes that the stream takes."""

    _render = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        return self._render(logger, method, event).encode()


def _to_json(event: object, **_options: object) -> bytes:
    return msgspec.json.encode(event)
