"""`basert-fleet check URL`: profile a server by the bug report's requests, and say whether it can be trusted."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import httpx
import msgspec

from basert_fleet.cli.asking import ServerUnusable, connected
from basert_fleet.cli.examining import Wishes, examine
from basert_fleet.cli.exits import Exit
from basert_fleet.cli.report import Report
from basert_fleet.cli.report_junit import junit
from basert_fleet.cli.report_markdown import markdown
from basert_fleet.cli.restarting import Restarter
from basert_fleet.cli.shapes import DEFAULT_CONCURRENCY, DEFAULT_SEQUENTIAL
from basert_fleet.cli.talk import say
from basert_fleet.cli.verdicts import told
from basert_fleet.core.errors import FleetError

SUMMARY = "profile a server by the bug report's requests, and say whether its answers can be trusted"
DESCRIPTION = """\
Asks any OpenAI-compatible server, a bare basert-serve or a fleet, for tool calls whose right answer is known: one after
another, at once, and in the ways that were right on the broken build (controls). Each answer is compared with what was
asked for, /slots is read on the way, and settings for a pool of such servers are recommended. It costs some thirty
short generations; a contaminated server stays contaminated.
"""
MOST_REQUESTS = 1000
"""Chosen: more tells nothing new, and a slip of the finger should not occupy a Mac for a day."""
TOTAL_SECONDS = 3600.0
"""Chosen: the default check of a slow server fits, and a forgotten one ends."""


def _json(report: Report) -> str:
    return f"{msgspec.json.encode(report).decode()}\n"


FORMATS: Mapping[str, Callable[[Report], str]] = MappingProxyType({"md": markdown, "json": _json, "junit": junit})


class OutputRefused(FleetError):
    """The report cannot be written where it was asked for."""

    code = "output_refused"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add = parser.add_argument
    add("url", metavar="URL", type=base_url, help="the server, such as http://127.0.0.1:8080; a final /v1 is left off")
    add("--model", metavar="NAME", help="the model to ask for (default: the first that the server lists)")
    add("--api-key", metavar="KEY", help="sent as `Authorization: Bearer KEY`")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--report", choices=tuple(FORMATS), help="print the findings in this form (docs/check.md)")
    formats.add_argument("--json", dest="report", action="store_const", const="json", help="the same as --report json")
    add("--output", metavar="FILE", type=Path, help="write the report there, and the usual text to standard output")
    add(
        "--requests",
        metavar="N",
        type=_requests,
        default=DEFAULT_SEQUENTIAL,
        help="how many requests one after another (default %(default)s; the report's sixth failed)",
    )
    add(
        "--concurrency",
        metavar="N,N",
        type=_concurrency,
        default=DEFAULT_CONCURRENCY,
        help="how many requests at once, a shape for each number (default 2,4)",
    )
    add("--only", metavar="SHAPE", action="append", help="only this shape, such as sequential; repeatable")
    add(
        "--restart-command",
        metavar="COMMAND",
        type=_words,
        help="restarts the server; adds the fresh-process control, and no shape meets a server already found wrong",
    )
    add("--timeout", metavar="S", type=_seconds, default=600.0, help="seconds for each request (default %(default)g)")
    add(
        "--total-timeout",
        metavar="S",
        type=_seconds,
        default=TOTAL_SECONDS,
        help="seconds for everything; what is left then counts as unanswered (default %(default)g)",
    )


def run(args: argparse.Namespace) -> Exit:
    """Run the command."""
    try:
        _require_output(args)
        found = asyncio.run(_check(args))
        sys.stdout.write(_output(found, args))
    except FleetError as error:
        say(str(error))
        return Exit.USAGE
    return Exit.OK if found.all_right else Exit.FAILURE


async def _check(args: argparse.Namespace) -> Report:
    async with connected(
        args.url, api_key=args.api_key, timeout_seconds=args.timeout, total_seconds=args.total_timeout
    ) as server:
        models = await server.models()
        if not models and args.model is None:
            raise ServerUnusable(f"{server.name} lists no model. Load one, or name it with --model.")
        wishes = Wishes(
            sequential=args.requests,
            concurrency=args.concurrency,
            only=None if args.only is None else tuple(args.only),
        )
        restart = None if args.restart_command is None else Restarter(args.restart_command, server)
        return await examine(server, args.model or models[0], wishes, restart)


def _require_output(args: argparse.Namespace) -> None:
    """Find the commonest mistakes before the server is kept busy for minutes."""
    if args.output is None:
        return
    if args.report is None:
        raise OutputRefused("--output needs --report: one of " + ", ".join(FORMATS))
    try:
        is_possible = args.output.parent.is_dir() and not args.output.is_dir()
    except OSError as error:
        raise OutputRefused(f"--output {args.output}: {error.strerror}") from error
    if not is_possible:
        raise OutputRefused(f"--output {args.output}: no file can be written there")


def _output(found: Report, args: argparse.Namespace) -> str:
    """Return what standard output gets, after writing the file if one is wanted."""
    if args.report is None:
        return told(found)
    text = FORMATS[args.report](found)
    if args.output is None:
        return text
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stdout.write(text)  # what took minutes to find out is not lost
        raise OutputRefused(f"--output {args.output}: {error.strerror}") from error
    return told(found)


def base_url(text: str) -> str:
    """Read a server's address; an argparse type.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL of a server; write it as http://HOST:PORT")
    return text.rstrip("/").removesuffix("/v1")


def _words(text: str) -> tuple[str, ...]:
    """Split a command as a shell would; no shell runs it."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command: {error}") from error
    if not words:
        raise argparse.ArgumentTypeError("an empty command restarts nothing")
    return words


def _requests(text: str) -> int:
    return _between(text, 1)


def _concurrency(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_between(part, 2) for part in text.split(",")))


def _between(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= MOST_REQUESTS):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {MOST_REQUESTS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds
