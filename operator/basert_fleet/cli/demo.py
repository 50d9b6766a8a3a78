"""`make demo`: the bug and the cure, side by side, on emulated workers.

First each shape of the bug report goes straight to a fresh bare worker, so that each shows its own fault; then all of
them go to a fleet of such workers. Nothing is staged: both sides get the same requests, and `check` compares them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from basert_fleet.cli.asking import Server, connected
from basert_fleet.cli.demo_processes import MODEL, WORKERS, bare_worker, fleet
from basert_fleet.cli.exits import Exit
from basert_fleet.cli.findings import ShapeFound
from basert_fleet.cli.listen import Address, parse_address
from basert_fleet.cli.shapes import DEFAULT_CONCURRENCY, Shape, seed_shapes
from basert_fleet.cli.signals import Interrupts
from basert_fleet.cli.tables import table
from basert_fleet.cli.talk import say
from basert_fleet.cli.verdicts import faults, score
from basert_fleet.core.errors import FleetError
from basert_fleet.engine.canary import CHAT_PATH, lookup_key_request

SEQUENTIAL = 24
"""Chosen: six for each worker of the fleet, so that some of them meet the fault, which takes five reuses in a row."""
SHAPES = seed_shapes(MODEL, sequential=SEQUENTIAL, concurrency=DEFAULT_CONCURRENCY)
HEADS = ("shape", "requests", "bare worker", "fleet", "bare seconds", "fleet seconds")
NUMBERS = frozenset({1, 2, 3, 4, 5})
STDIN = 0
"""The descriptor: it may be closed, and then there is no sys.stdin."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same shapes, asked of both."""

    bare: tuple[ShapeFound, ...]
    fleet: tuple[ShapeFound, ...]
    url: str
    """Of the fleet, which still runs."""

    @property
    def shows_the_cure(self) -> bool:
        """Whether the bare worker was wrong and the fleet was right throughout."""
        return not all(map(_is_right, self.bare)) and all(map(_is_right, self.fleet))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and, on a terminal, go on serving until a signal comes.

    Returns 0 if the bare worker was wrong and the fleet was right, else 1; 130 when a signal came before the table.
    """
    args = _parser().parse_args(argv)
    try:
        return asyncio.run(_demo(args.listen))
    except FleetError as error:
        say(str(error))
        return Exit.FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m basert_fleet.cli.demo", description="Show the bug and the cure.")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=parse_address,
        default="127.0.0.1:8080",
        help="where the fleet serves (default %(default)s); another free port is taken if this one is not",
    )
    return parser


async def _demo(listen: Address) -> Exit:
    """Compare, tell, serve. No process and no folder is left, however it ends."""
    interrupts = Interrupts()
    with interrupts.listening():
        async with contextlib.AsyncExitStack() as running:
            found = await _unless_stopped(interrupts, _compare(running, listen))
            if found is None:
                say("interrupted; stopping what was started")
                return Exit.INTERRUPTED
            sys.stdout.write(told(found))
            sys.stdout.flush()
            if os.isatty(STDIN):
                say(_invitation(found.url))
                await interrupts.stop.wait()
            say("stopping the fleet")
        return Exit.OK if found.shows_the_cure else Exit.FAILURE


async def _compare(running: contextlib.AsyncExitStack, listen: Address) -> Comparison:
    """Ask both; the fleet keeps running until the stack is closed."""
    say("1. Straight to one worker with the bug of basert-serve 0.1.7, a fresh process for each shape")
    bare = [await _ask_bare_worker(shape) for shape in SHAPES]
    say(f"2. The same requests to a fleet of {WORKERS} such workers")
    folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="basert-fleet-demo-")))
    url = await running.enter_async_context(fleet(folder, _free(listen), say))
    async with connected(url) as server:
        guarded = [await _ask(server, shape) for shape in SHAPES]
    return Comparison(tuple(bare), tuple(guarded), url)


async def _ask_bare_worker(shape: Shape) -> ShapeFound:
    async with bare_worker() as url, connected(url) as server:
        return await _ask(server, shape)


async def _ask(server: Server, shape: Shape) -> ShapeFound:
    found = await server.examine(shape)
    say(f"  {shape.title}: {score(found)} right")
    return found


async def _unless_stopped(interrupts: Interrupts, work: Coroutine[None, None, Comparison]) -> Comparison | None:
    """Return what the work gives, or None after cancelling it at a signal."""
    task = asyncio.create_task(work, name="comparison")
    stop = asyncio.create_task(interrupts.stop.wait(), name="signal")
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        task.cancel()  # of no effect on one that is done
        await asyncio.wait({task, stop})
    return None if task.cancelled() else task.result()


def _free(listen: Address) -> Address:
    """Return the address if it can be listened on, else one with any free port."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        with socket.create_server((listen.host, listen.port), family=family):
            return listen
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # error.strerror is create_server's own, and repeats the address
        say(f"  port {listen.port} cannot be used ({reason}); another one is taken")
        return replace(listen, port=0)


def told(found: Comparison) -> str:
    """Return the table and what it means."""
    rows = [
        (
            bare.title, str(len(bare.answers)), f"{score(bare)} right", f"{score(guarded)} right",
            f"{bare.seconds:.2f}", f"{guarded.seconds:.2f}",
        )
        for bare, guarded in zip(found.bare, found.fleet, strict=True)
    ]  # fmt: skip
    return f"\n{table(HEADS, rows, right=NUMBERS)}\n\n{_meaning(found)}\n"


def _meaning(found: Comparison) -> str:
    rerun = sum((answer.attempts or 1) > 1 for shape in found.fleet for answer in shape.answers)
    if found.shows_the_cure:
        return (
            "The bare worker mixed requests up; the fleet gave each its own answer.\n"
            f"Answers that it withheld from a contaminated slot and ran again on another worker: {rerun}."
        )
    if not all(map(_is_right, found.fleet)):
        return "\n".join(["The fleet did not answer all of it. Please report this.", *faults(found.fleet)])
    return "The bare worker made no mistake this time: on a very busy machine its requests may not have overlapped."


def _is_right(shape: ShapeFound) -> bool:
    return 0 < shape.judged == shape.right


def _invitation(url: str) -> str:
    body = lookup_key_request("my-own-key", MODEL).decode()
    return (
        f"The fleet serves on {url} until Ctrl-C. Try it:\n\n"
        f"  curl -s {url}{CHAT_PATH} -H 'Content-Type: application/json' -d '{body}'\n"
    )


if __name__ == "__main__":
    sys.exit(main())
