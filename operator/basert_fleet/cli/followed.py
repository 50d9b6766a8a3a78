"""Following a file that a person edits: its newest content that is right, and what is wrong with one that is not.

A file that is wrong, half-written or gone is no instruction: whoever follows it keeps what was last right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from basert_fleet.core.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Parsed = TypeVar("Parsed")


class FileUnreadable(FleetError):
    """A file that was named cannot be read."""

    code = "file_unreadable"

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot read {path}: {error.strerror or error}")
        self.path = path


def read_file(path: Path) -> bytes:
    """Return what a file holds.

    Raises:
        FileUnreadable: it cannot be read; the message names it.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileUnreadable(path, error) from error


@dataclass(frozen=True, slots=True)
class Refused:
    """The file changed and cannot be used, told once per change."""

    message: str


@dataclass(frozen=True, slots=True)
class Changed(Generic[Parsed]):
    """The file changed to something right."""

    value: Parsed


class Followed(Generic[Parsed]):
    """One file, looked at by `poll`. Its content is compared, not its time, with which editors and mounts play."""

    def __init__(self, path: Path, parse: Callable[[bytes], Parsed]) -> None:
        """Read the file for the first time.

        Raises:
            FleetError: it cannot be read, or `parse` refused it.
        """
        self._path, self._parse = path, parse
        content = read_file(path)
        self._settled: bytes | None = content
        self._seen: bytes | None = content
        self.first = parse(content)
        """What the file held at the start."""

    def poll(self) -> Changed[Parsed] | Refused | None:
        """Return what is new, once.

        A change counts when two polls in a row have seen the same: in between a writer may have got half-way, and half
        a fleet file may be a right one that lacks a pool.
        """
        problem = ""
        try:
            content: bytes | None = read_file(self._path)
        except FileUnreadable as error:
            content, problem = None, str(error)
        was_seen, self._seen = content == self._seen, content
        if not was_seen or content == self._settled:
            return None
        self._settled = content
        if content is None:
            return Refused(problem)
        try:
            return Changed(self._parse(content))
        except FleetError as error:
            return Refused(str(error))
