"""`basert-fleet validate FILE`: say whether `up` would take a fleet file, and what it would run, without running it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from basert_fleet.cli.exits import Exit
from basert_fleet.cli.fleetfile import FleetFile, read_fleet_file
from basert_fleet.cli.followed import read_file
from basert_fleet.core.api import format_quantity
from basert_fleet.core.errors import FleetError
from basert_fleet.core.server_address import server_address
from basert_fleet.gateway.auth import read_keys

SUMMARY = "check a fleet file, and say what `up` would run"
DESCRIPTION = """\
Reads FILE as `up` does, starts nothing, and prints the pools on standard output. What is wrong is told with its line.
Whether the model's file exists and its memory suffices is seen only by `up`, on the machine that runs the workers; a
chatTemplate.file that does not exist is told and not refused, for it may be on another machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the fleet file (YAML)")
    parser.add_argument("--keys-file", metavar="F", type=Path, help="API keys (YAML), checked too")


def run(args: argparse.Namespace) -> Exit:
    """Run the command; both files are checked, whatever is wrong with the first."""
    status = _told_of(_fleet_file, args.file)
    if args.keys_file is not None:
        status = max(status, _told_of(_keys_file, args.keys_file))
    return status


def _told_of(check: Callable[[Path], str], path: Path) -> Exit:
    try:
        sys.stdout.write(check(path))
    except FleetError as error:
        sys.stderr.write(f"{error}\n")
        return Exit.USAGE
    return Exit.OK


def _fleet_file(path: Path) -> str:
    file = read_fleet_file(read_file(path), str(path))
    return "".join(f"{line}\n" for line in (f"{path} is right:", *_told(file)))


def _keys_file(path: Path) -> str:
    read_keys(read_file(path), str(path))
    return f"{path} is right\n"


def _told(file: FleetFile) -> Iterator[str]:
    for pool in file.pools:
        spec = pool.spec
        workers = "1 worker" if spec.replicas == 1 else f"{spec.replicas} workers"
        memory = "" if spec.resources.memory is None else f", {format_quantity(spec.resources.memory)} each"
        yield f"  {pool.metadata.name}: {workers}{memory}, for {', '.join((spec.model.name, *spec.model.aliases))}"
        attached = [server_address(entry.url) for entry in file.attach if entry.pool == pool.metadata.name]
        yield from (f"    attached: {address}" for address in attached)
        template = spec.server.chat_template
        if template is not None and not Path(template.file).is_file():
            yield f"    chatTemplate.file {Path(template.file).absolute()} does not exist on this machine"
        if not attached:
            yield f"    {shlex.join((*spec.server.command, spec.model.path, *spec.server.args))}"
