"""The command `basert-fleet`: its subcommands, and nothing of what they do."""

from __future__ import annotations

import argparse
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from basert_fleet.cli import agent, check, gateway, up, validate, version
from basert_fleet.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXIT_CODES = (
    "exit status: 0 all is well; 1 it failed or found something wrong; 2 wrong command line or file; 130 interrupted"
)


class Command(Protocol):
    """What a subcommand's module holds."""

    SUMMARY: str
    """One line for the list of commands."""
    DESCRIPTION: str
    """What its own --help says first."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what the command takes."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; return the exit status."""


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "up": up,
        "gateway": gateway,
        "agent": agent,
        "validate": validate,
        "check": check,
        "version": version,
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(COMMANDS[args.command].run(args))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="basert-fleet",
        description="One safe OpenAI-compatible endpoint over many basert-serve processes.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version.installed(), help=version.SUMMARY)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(
                name,
                help=command.SUMMARY,
                description=command.DESCRIPTION,
                epilog=EXIT_CODES,
                allow_abbrev=False,
            )
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
