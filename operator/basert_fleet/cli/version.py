"""`basert-fleet version`, or `--version`: which version this is."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING

from basert_fleet.cli.exits import Exit

if TYPE_CHECKING:
    import argparse


SUMMARY = "print the version"
DESCRIPTION = "Prints the version, and nothing else, on standard output."


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes: nothing."""


def run(_args: argparse.Namespace) -> Exit:
    """Run the command."""
    sys.stdout.write(f"{installed()}\n")
    return Exit.OK


def installed() -> str:
    """Return the version of this installation."""
    return metadata.version("basert-fleet")
