"""`basert-fleet up FILE`: a whole fleet on this machine, without Kubernetes."""

from __future__ import annotations

import asyncio
import hashlib
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from basert_fleet.cli.exits import Exit
from basert_fleet.cli.fleetfile import read_pools
from basert_fleet.cli.followed import Followed
from basert_fleet.cli.listen import parse_address
from basert_fleet.cli.signals import Interrupts
from basert_fleet.cli.standalone import Settings, serve
from basert_fleet.core.errors import FleetError
from basert_fleet.gateway.auth import read_keys
from basert_fleet.telemetry.line_sink import LineSink, standard_logging_to, unbuffered

try:
    import uvloop
except ImportError:  # a platform without it is slower, and works
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

SUMMARY = "run a fleet on this machine: endpoint, queue and workers in one process"
DESCRIPTION = """\
Runs the pools of FILE (BasertPool documents) and serves them on one OpenAI-compatible endpoint. Changes of FILE take
effect while it runs; a wrong FILE is told and changes nothing. The first SIGTERM or Ctrl-C lets running requests finish
(at most a minute), a second one stops at once.
"""
OPEN_FILES = 10_240
"""A client costs one descriptor. macOS gives a process 256 unless it asks for more, and takes no more than this."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the fleet file (YAML)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=parse_address,
        default="127.0.0.1:8080",
        help="where clients connect (default %(default)s); other than loopback only with --keys-file",
    )
    parser.add_argument(
        "--ops-listen",
        metavar="HOST:PORT",
        type=parse_address,
        default="127.0.0.1:9090",
        help="where /metrics, /healthz, /readyz and /fleet/observed are served, without keys (default %(default)s)",
    )
    parser.add_argument(
        "--keys-file", metavar="F", type=Path, help="API keys (YAML); without it everybody on this machine may ask"
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="locks, process records and worker logs (default ~/.local/state/basert-fleet/NAME-HASH of FILE)",
    )


def run(args: argparse.Namespace) -> Exit:
    """Run the command. Nothing that happens to stderr changes what it does, or its exit status."""
    with LineSink(unbuffered(sys.stderr)) as lines, standard_logging_to(lines):
        return _run(args, lines)


def _run(args: argparse.Namespace, lines: LineSink) -> Exit:
    if args.keys_file is None and not args.listen.is_loopback:
        lines.say(f"--listen {args.listen} is open to other machines: give --keys-file, or listen on 127.0.0.1")
        return Exit.USAGE
    try:
        settings = _settings(args)
    except FleetError as error:
        lines.say(str(error))
        return Exit.USAGE
    raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(settings, lines))


async def _serve(settings: Settings, lines: LineSink) -> Exit:
    interrupts = Interrupts()
    with interrupts.listening():
        try:
            ended_in_time = await serve(settings, interrupts, lines.say, lines)
        except FleetError as error:
            lines.say(str(error))
            return Exit.FAILURE
    lines.say("stopped" if ended_in_time else "stopped before all requests got their answer")
    return Exit.OK if ended_in_time else Exit.FAILURE


def _settings(args: argparse.Namespace) -> Settings:
    file: Path = args.file
    keys: Path | None = args.keys_file
    return Settings(
        fleet_file=Followed(file, lambda content: read_pools(content, str(file))),
        keys_file=None if keys is None else Followed(keys, lambda content: read_keys(content, str(keys))),
        listen=args.listen,
        ops_listen=args.ops_listen,
        state_dir=args.state_dir or default_state_dir(file),
        node=node_name(socket.gethostname()),
    )


def default_state_dir(file: Path) -> Path:
    """Return where the state of this fleet file's fleet lies: one place per file, whatever the way to it."""
    whole = file.resolve()
    digest = hashlib.sha256(str(whole).encode()).hexdigest()[:8]
    return Path.home() / ".local" / "state" / "basert-fleet" / f"{whole.stem}-{digest}"


def node_name(hostname: str) -> str:
    """Return a label for this machine: the first part of its host name, without what labels cannot hold."""
    first = hostname.partition(".")[0].lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in first).strip("-") or "local"


def raise_open_files() -> None:
    """Allow this process as many open files as the system lets it, up to what a fleet needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
