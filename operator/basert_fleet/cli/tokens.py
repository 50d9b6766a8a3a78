"""Token files: what an agent shows when it dials, and what a gateway lets in."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

from basert_fleet.core.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKEN = re.compile(r"[!-~]+")
"""Printable ASCII without blanks: what a header can carry as it is."""


class BadTokenFile(FleetError):
    """The token file cannot be used. The message repeats nothing of it."""

    code = "bad_token_file"


def read_tokens(content: bytes, name: str) -> tuple[str, ...]:
    """Return the tokens of a gateway's file, one a line: several, while agents change from one to the next.

    Raises:
        BadTokenFile: it holds none, or a line that is none.
    """
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    tokens = tuple(line for line in lines if line)
    if not tokens:
        raise BadTokenFile(f"{name} holds no token. Make one: openssl rand -hex 32 > {name}")
    if not all(TOKEN.fullmatch(token) for token in tokens):
        raise BadTokenFile(f"{name} should hold one token a line, each of printable ASCII characters without blanks.")
    return tokens


def warn_if_exposed(path: Path | None, say: Callable[[str], None]) -> None:
    """Tell if others on this machine may use a token file, which was read just now; None is no file."""
    if path is None:
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        say(f"warning: {path} holds tokens, and others on this machine may use it (mode {mode:03o}): chmod 600 {path}")


def read_token(content: bytes, name: str) -> str:
    """Return the only token of an agent's file.

    Raises:
        BadTokenFile: it does not hold exactly one.
    """
    tokens = read_tokens(content, name)
    if len(tokens) > 1:
        raise BadTokenFile(f"{name} holds {len(tokens)} tokens. An agent shows one; leave the newest.")
    return tokens[0]
