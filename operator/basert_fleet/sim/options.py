"""The command line: basert-serve's own flags, and the emulator's, which all begin with `--sim-`.

argparse refuses unknown flags with exit status 2, as basert-serve does. Flags that only tune the real engine
(`--kv-bits`, `--paged-kv` and the like) are accepted and change nothing.
"""

from __future__ import annotations

import argparse
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from basert_fleet.sim.ask import Limits
from basert_fleet.sim.bug import BugPolicy
from basert_fleet.sim.counters import CounterMode
from basert_fleet.sim.faults import FaultPlan, FaultRule, parse_rule
from basert_fleet.sim.pieces import Chunking
from basert_fleet.sim.runner import Pace

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_SECONDS = 0.01  # chosen: two requests that a client sends together arrive within it; only with the bug
E_ = TypeVar("E_", bound=StrEnum)


class SlotsMode(StrEnum):
    """How /slots behaves."""

    ON = "on"
    OFF = "off"  # 404, as a build without it
    SILENT = "silent"  # no answer during a prefill (C16)


class OrphanMode(StrEnum):
    """Whether a forked child keeps the port open and survives its parent (C14)."""

    OFF = "off"
    GROUP = "group"  # in the parent's process group: a kill of the group reaches it
    SESSION = "session"  # in a session of its own


class Options(NamedTuple):
    """Everything the command line decides."""

    models: tuple[str, ...]
    host: str
    port: int
    api_key: str | None
    limits: Limits
    rate_limit: int  # requests a minute; 0 is no limit
    idle_seconds: float  # 0 is never
    drain_seconds: float
    log_file: str | None
    bug: BugPolicy
    counters: CounterMode
    pace: Pace
    chunking: Chunking
    faults: FaultPlan
    startup_seconds: float
    memory_bytes: int
    slots: SlotsMode
    orphan: OrphanMode
    ignore_sigterm: bool
    journal: str | None


def parse(argv: Sequence[str]) -> Options:
    """Read the command line; exit with status 2 and a message on stderr if it is wrong."""
    parser = _parser()
    found = parser.parse_args(argv)
    models = tuple(([found.model_path] if found.model_path else []) + found.model)
    if not models:
        parser.error("no model: give a path, or --model PATH")
    bug_on = found.sim_bug == "on"
    batch = found.sim_batch_window if found.sim_batch_window is not None else BATCH_SECONDS * bug_on
    return Options(
        models=models,
        host=found.host,
        port=found.port,
        api_key=found.api_key,
        limits=Limits(found.max_context, found.max_tokens, directives=found.sim_directives == "on"),
        rate_limit=found.rate_limit,
        idle_seconds=found.idle_timeout,
        drain_seconds=found.drain_timeout,
        log_file=found.log_file,
        bug=BugPolicy(bug_on, found.sim_bug_after),
        counters=found.sim_counters,
        pace=Pace(
            tokens_per_second=found.sim_tokens_per_second,
            prefill_tokens_per_second=found.sim_prefill_tokens_per_second,
            accept_seconds=found.sim_accept_delay,
            batch_seconds=batch,
            timeout_seconds=found.request_timeout / 1000,
        ),
        chunking=found.sim_chunks,
        faults=FaultPlan(tuple(found.sim_fault), found.sim_seed),
        startup_seconds=found.sim_startup,
        memory_bytes=found.sim_memory,
        slots=found.sim_slots,
        orphan=found.sim_orphan,
        ignore_sigterm=found.sim_ignore_sigterm,
        journal=found.sim_journal,
    )


def model_name(path: str) -> str:
    """Return the name /v1/models shows for a model path."""
    return path.rpartition("/")[2].removesuffix(".base")


class _Parser(argparse.ArgumentParser):
    """Shows no usage text on an error: it would bury the message under sixty lines."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="basert-sim", allow_abbrev=False, description="An emulator of basert-serve, its bug included."
    )
    _add_engine_flags(parser)
    _add_sim_flags(parser)
    return parser


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add basert-serve's flags with its documented defaults."""
    add = parser.add_argument
    add("model_path", nargs="?", metavar="MODEL", help="path of a model; it need not exist")
    add("--model", action="append", default=[], metavar="PATH", help="one more model (repeatable)")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080, help="0: a free one, named on stdout and in the journal")
    add("--api-key", help="refuse requests without it (401), /health excepted")
    add("--max-context", type=_whole, default=4096, help="refuse longer prompts (400)")
    add("--max-tokens", type=_whole, default=2048, help="limit of an answer that names none")
    add("--rate-limit", type=_count, default=0, help="requests a minute (0: no limit)")
    add("--idle-timeout", type=_seconds, default=0.0, help="seconds without a generation that reset the cache counters")
    add("--request-timeout", type=_seconds, default=0.0, help="milliseconds until a request fails (0: never)")
    add("--drain-timeout", type=_seconds, default=60.0, help="seconds after SIGUSR1 until the process exits anyway")
    add("--log-file", help="access log")
    for flag in ("--kv-bits", "--prefix-cache-file", "--files-dir"):
        add(flag, help="accepted, no effect here")
    add("--max-batch-size", type=_whole, default=1, help="accepted, no effect here")
    add("--continuous-batching", nargs="?", type=_whole, const=8, help="accepted, no effect here")
    for flag in ("--paged-kv", "--prefix-cache"):
        add(flag, action="store_true", help="accepted, no effect here")


def _add_sim_flags(parser: argparse.ArgumentParser) -> None:
    """Add what only the emulator has."""
    add = parser.add_argument
    add("--sim-bug", choices=("on", "off"), default="off", help="emulate the isolation bug of 0.1.7")
    add("--sim-bug-after", type=_whole, default=5, help="the reuse in a row that fails (1: at its worst)")
    add("--sim-batch-window", type=_seconds, help="least seconds of a prefill (default 0.01 with the bug, else 0)")
    _add_choice(parser, "--sim-counters", CounterMode.EQUAL, "what /slots shows on a healthy slot")
    _add_choice(parser, "--sim-slots", SlotsMode.ON, "how /slots behaves")
    _add_choice(parser, "--sim-chunks", Chunking.SPLIT, "how streamed tool calls are cut")
    add("--sim-tokens-per-second", type=_seconds, default=0.0, help="0: at once")
    add("--sim-prefill-tokens-per-second", type=_seconds, default=0.0, help="0: at once")
    add("--sim-startup", type=_seconds, default=0.0, help="seconds until it listens")
    add("--sim-accept-delay", type=_seconds, default=0.0, help="seconds from a request's arrival to is_processing")
    add("--sim-memory", type=_count, default=0, help="bytes to hold")
    add("--sim-fault", action="append", default=[], type=_fault, metavar="NAME[:nth=N|:p=P]", help=_FAULT_HELP)
    add("--sim-seed", type=int, default=0, help="seed of the faults' probabilities")
    add("--sim-directives", choices=("on", "off"), default="on", help="obey [[...]] in messages")
    add("--sim-ignore-sigterm", action="store_true", help="only SIGKILL ends it")
    _add_choice(parser, "--sim-orphan", OrphanMode.OFF, "fork a child that keeps the port and survives")
    add("--sim-journal", metavar="FILE", help="append what really ran, as JSON lines")


_FAULT_HELP = "crash, hang, swallow, wedge, run-on, truncate or contaminate (repeatable)"


def _add_choice(parser: argparse.ArgumentParser, flag: str, default: E_, text: str) -> None:
    names = [str(member) for member in type(default)]
    parser.add_argument(flag, type=type(default), default=default, metavar="|".join(names), help=text)


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return number


def _fault(text: str) -> FaultRule:
    try:
        return parse_rule(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME, NAME:nth=N or NAME:p=P; {_FAULT_HELP}") from None
