"""`basert-fleet up FILE`: a whole fleet on this machine, without Kubernetes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from basert_fleet.cli.endpoint import add_endpoint_arguments, endpoint_settings, name_of_state
from basert_fleet.cli.process import node_name, run_until_signal, state_home
from basert_fleet.cli.standalone import Settings, serve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from basert_fleet.cli.exits import Exit
    from basert_fleet.cli.signals import Interrupts
    from basert_fleet.telemetry.line_sink import LineSink

SUMMARY = "run a fleet on this machine: endpoint, queue and workers in one process"
DESCRIPTION = """\
Runs the pools of FILE (BasertPool documents) and serves them on one OpenAI-compatible endpoint. Changes of FILE take
effect while it runs; a wrong FILE is told and changes nothing. The first SIGTERM or Ctrl-C lets running requests finish
(at most a minute), a second one stops at once.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_endpoint_arguments(parser)
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="locks, process records and worker logs (default ~/.local/state/basert-fleet/NAME-HASH of FILE)",
    )


def run(args: argparse.Namespace) -> Exit:
    """Run the command."""

    def prepare(lines: LineSink) -> Callable[[Interrupts], Awaitable[bool]]:
        settings = Settings(
            endpoint=endpoint_settings(args),
            state_dir=args.state_dir or state_home(name_of_state(args.file)),
            node=node_name(socket.gethostname()),
        )
        return lambda interrupts: serve(settings, interrupts, lines.say, lines)

    return run_until_signal(prepare)
