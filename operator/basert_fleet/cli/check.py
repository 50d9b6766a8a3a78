"""`basert-fleet check URL`: send the bug report's requests to a server, and say whether its answers can be trusted."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import httpx
import msgspec

from basert_fleet.cli.asking import ServerUnusable, connected
from basert_fleet.cli.exits import Exit
from basert_fleet.cli.findings import Report, report
from basert_fleet.cli.shapes import DEFAULT_CONCURRENCY, DEFAULT_SEQUENTIAL, Shape, seed_shapes
from basert_fleet.cli.talk import say
from basert_fleet.cli.verdicts import told
from basert_fleet.core.errors import FleetError

SUMMARY = "send the bug report's requests to a server, and say whether its answers can be trusted"
DESCRIPTION = """\
Asks any OpenAI-compatible server, a bare basert-serve or a fleet, for tool calls whose right answer is known: one after
another, at once, and in the ways that were right on the broken build (controls). Each answer is compared with what was
asked for. It costs some thirty short generations; a contaminated server stays contaminated.
"""
MOST_REQUESTS = 1000
"""Chosen: more tells nothing new, and a slip of the finger should not occupy a Mac for a day."""


class UnknownShape(FleetError):
    """`--only` names a shape that is not among those to be sent."""

    code = "unknown_shape"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"--only {name}: no such shape; there are {', '.join(known)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add = parser.add_argument
    add("url", metavar="URL", type=base_url, help="the server, such as http://127.0.0.1:8080; a final /v1 is left off")
    add("--model", metavar="NAME", help="the model to ask for (default: the first that the server lists)")
    add("--api-key", metavar="KEY", help="sent as `Authorization: Bearer KEY`")
    add("--json", action="store_true", help="print the findings as one JSON document (docs/check.md)")
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
    add("--timeout", metavar="S", type=_seconds, default=600.0, help="seconds for each request (default %(default)g)")


def run(args: argparse.Namespace) -> Exit:
    """Run the command."""
    try:
        found = asyncio.run(_check(args))
    except FleetError as error:
        say(str(error))
        return Exit.USAGE
    sys.stdout.write(f"{msgspec.json.encode(found).decode()}\n" if args.json else told(found))
    return Exit.OK if found.all_right else Exit.FAILURE


async def _check(args: argparse.Namespace) -> Report:
    async with connected(args.url, api_key=args.api_key, timeout_seconds=args.timeout) as server:
        models = await server.models()
        if not models and args.model is None:
            raise ServerUnusable(f"{args.url} lists no model. Load one, or name it with --model.")
        model = args.model or models[0]
        found = []
        for shape in _chosen(seed_shapes(model, sequential=args.requests, concurrency=args.concurrency), args.only):
            say(f"asking {model}: {shape.title} ({len(shape.questions)} requests)")
            found.append(await server.examine(shape))
        return report(args.url, model, found)


def _chosen(shapes: Sequence[Shape], only: Sequence[str] | None) -> Sequence[Shape]:
    if only is None:
        return shapes
    names = [shape.name for shape in shapes]
    for name in only:
        if name not in names:
            raise UnknownShape(name, names)
    return [shape for shape in shapes if shape.name in only]


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
