"""The log: JSON for machines, key=value for people, nothing global."""

from __future__ import annotations

import io
import json

from basert_fleet.telemetry.logs import FleetLog, LeaseLine, make_logger

LINE = LeaseLine(
    request="r-1", tenant="build", pool="qwen", worker="qwen-0", epoch="aaaa.1.1", attempt=1, outcome="released",
    verdict="clean", reason=None, drift=0, prefix_reused=True, finish="tool_calls", prompt_tokens=9,
    completion_tokens=142, queue_ms=1.5, execute_ms=20.0,
)  # fmt: skip


class Terminal(io.BytesIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True


def test_a_lease_is_one_json_line():
    """Constant message, values as fields, in the words of the design."""
    stream = io.BytesIO()
    FleetLog(stream).lease_ended(LINE)
    (written,) = stream.getvalue().splitlines()
    line = json.loads(written)
    assert (line["event"], line["level"], line["worker"], line["reason"]) == ("lease ended", "info", "qwen-0", None)
    assert line["timestamp"].endswith("Z")


def test_a_terminal_gets_text():
    """Where a person reads, the same line is key=value."""
    stream = Terminal()
    FleetLog(stream).lease_ended(LINE)
    assert b'event="lease ended"' in stream.getvalue()
    assert b"worker=qwen-0" in stream.getvalue()


def test_an_exception_is_one_line():
    """A traceback stays within its line, as a field."""
    stream = io.BytesIO()
    log = make_logger(stream)
    try:
        raise ValueError("odd")  # noqa: TRY301 - the log of a raised error is what is tested
    except ValueError:
        log.exception("it broke")
    (written,) = stream.getvalue().splitlines()
    assert "ValueError: odd" in json.loads(written)["exception"]


def test_debug_is_not_written():
    """Below info nothing is formatted or written."""
    stream = io.BytesIO()
    make_logger(stream).debug("detail", value=1)
    assert stream.getvalue() == b""
