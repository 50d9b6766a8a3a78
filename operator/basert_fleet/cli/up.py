"""`basert-fleet up FILE`: a whole fleet on this machine, without Kubernetes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from basert_fleet.cli.attach import attached_servers, refuse_own_ports
from basert_fleet.cli.endpoint import add_endpoint_arguments, endpoint_settings, name_of_state
from basert_fleet.cli.fleetfile import read_fleet_file
from basert_fleet.cli.process import node_name, run_until_signal, state_home
from basert_fleet.cli.standalone import Settings, serve
from basert_fleet.core.errors import FleetError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from basert_fleet.cli.exits import Exit
    from basert_fleet.cli.signals import Interrupts
    from basert_fleet.core.api import AttachSpec, BasertPool
    from basert_fleet.telemetry.line_sink import LineSink

SUMMARY = "run a fleet on this machine: endpoint, queue and workers in one process"
DESCRIPTION = """\
Runs the pools of FILE (BasertPool documents) and serves them on one OpenAI-compatible endpoint. A Standalone document
in it attaches servers that something else runs. Changes of the pools take effect while it runs; a wrong FILE is told
and changes nothing. The first SIGTERM or Ctrl-C lets running requests finish
(at most a minute), a second one stops at once.
"""


class AttachChanged(FleetError):
    """An edit of the fleet file concerns the attached servers, which are those of the start."""

    code = "attach_changed"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is refused: spec.attach changed, which is read at the start only. Stop `up` and start it again; "
            "attached servers go on meanwhile."
        )


class FileOfOneMachine:
    """Reads a fleet file again and again: its pools may change, its attached servers may not."""

    def __init__(self) -> None:
        self._attach: tuple[AttachSpec, ...] | None = None

    @property
    def attach(self) -> tuple[AttachSpec, ...]:
        """The entries that the file had when it was first right."""
        return self._attach or ()

    def read(self, content: bytes, name: str) -> tuple[BasertPool, ...]:
        """Return the file's pools.

        Raises:
            FleetFileRefused: something is wrong with it.
            AttachChanged: it has other attached servers than before.
        """
        found = read_fleet_file(content, name)
        if self._attach is None:
            self._attach = found.attach
        if found.attach != self._attach:
            raise AttachChanged(name)
        return found.pools


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
        file = FileOfOneMachine()
        endpoint = endpoint_settings(args, file.read)
        attached = attached_servers(file.attach)
        refuse_own_ports(attached, {"--listen": endpoint.listen, "--ops-listen": endpoint.ops_listen})
        settings = Settings(
            endpoint=endpoint,
            attached=attached,
            state_dir=args.state_dir or state_home(name_of_state(args.file)),
            node=node_name(socket.gethostname()),
        )
        return lambda interrupts: serve(settings, interrupts, lines.say, lines)

    return run_until_signal(prepare)
