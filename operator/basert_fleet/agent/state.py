"""What an agent keeps on disk: a lock, and per slot a lock, its process, and whether its last request settled.

A record is written with write(2) and no fsync: it must outlive the agent, not the Mac. It never claims too much: a
process recorded as `sent` may be generating for somebody, so the next agent must never offer it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from basert_fleet.core.errors import FleetError

RECORD_BYTES = 512
"""A record always fills one block, so that a shorter one never leaves the tail of a longer one behind."""


class SlotAlreadyHeld(FleetError):
    """Another agent holds this slot's lock: two runners would mean two senders to one process (C25)."""

    code = "slot_already_held"

    def __init__(self, slot: str, lock: Path) -> None:
        super().__init__(
            f"slot {slot} is held by another agent (lock {lock}). "
            "Stop that agent, or start this one with its own --state-dir."
        )
        self.slot, self.lock = slot, lock


class StateDirectoryHeld(FleetError):
    """Another fleet runs on this state directory; sharing it slot by slot would leave both with half a fleet (C25)."""

    code = "state_directory_held"

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"the state directory {directory} is in use by a fleet that runs already. "
            "Stop that one, or start this one with its own --state-dir."
        )
        self.directory = directory


class StateUnusable(FleetError):
    """The state directory cannot be created or written."""

    code = "state_unusable"

    def __init__(self, directory: Path, error: OSError) -> None:
        super().__init__(
            f"cannot use the state directory {directory}: {error.strerror or error}. "
            "Choose one that this user may write to, with --state-dir."
        )
        self.directory = directory


class ProcessRecord(msgspec.Struct, frozen=True):
    """The process that a slot last started."""

    pid: int
    """NOT_OURS for a server that something else runs."""
    created: float
    """The operating system's creation time; a reused pid has another."""
    port: int
    boot: float
    """When the machine booted, in whole seconds: nothing is left of a process of another boot."""
    settled: bool
    """False from just before a generation is sent until it is proven to have ended.

    False too of an attached server that is in doubt, for whatever reason: each is ended by a fresh process alone.
    """

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has run ever since; a step of its clock moves the time of its boot a little."""
        return abs(self.boot - boot_time()) < BOOT_TOLERANCE_SECONDS

    @property
    def is_ours_to_end(self) -> bool:
        """Whether it names a process that an agent of this boot started."""
        return self.pid != NOT_OURS and self.is_of_this_boot


NOT_OURS = 0
"""No child has this pid, and signals to its group would be signals to our own."""

BOOT_TOLERANCE_SECONDS = 30.0
"""Chosen: more than clocks are stepped by, less than a Mac needs to boot and start an agent."""


@dataclass(slots=True)
class SlotRecord:
    """One slot's file: locked while this object is open, and rewritten in place."""

    path: Path
    _descriptor: int
    _current: ProcessRecord | None = None

    def read(self) -> ProcessRecord | None:
        """Return what the last holder wrote, or None if that was nothing or cannot be read."""
        data = os.pread(self._descriptor, RECORD_BYTES, 0).rstrip(b" \x00\n")
        try:
            return msgspec.json.decode(data, type=ProcessRecord) if data else None
        except msgspec.DecodeError:
            return None

    def started(self, pid: int, created: float, port: int) -> None:
        """Record a new process; nothing was sent to it yet."""
        self._write(ProcessRecord(pid, created, port, boot_time(), settled=True))

    def attached(self, port: int) -> None:
        """Record that a server is used which something else runs; nothing was sent to it yet."""
        self._write(ProcessRecord(NOT_OURS, 0.0, port, boot_time(), settled=True))

    def sent(self) -> None:
        """Record, before the first byte of a generation, that the process may be busy from now on."""
        self._mark(settled=False)

    def settled(self) -> None:
        """Record that the last generation is proven to have ended."""
        self._mark(settled=True)

    def doubted(self) -> None:
        """Record that the next agent must not use the server as it is, though its last request may have settled."""
        self._mark(settled=False)

    def ended(self) -> None:
        """Record that no process of this slot exists."""
        os.pwrite(self._descriptor, b" " * RECORD_BYTES, 0)
        self._current = None

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)

    def _mark(self, *, settled: bool) -> None:
        if self._current is not None and self._current.settled != settled:
            self._write(msgspec.structs.replace(self._current, settled=settled))

    def _write(self, record: ProcessRecord) -> None:
        os.pwrite(self._descriptor, msgspec.json.encode(record).ljust(RECORD_BYTES), 0)
        self._current = record  # only now: what could not be written is not taken for recorded


class StateDirectory:
    """Where an agent keeps its slots' records and its workers' logs."""

    def __init__(self, directory: Path) -> None:
        """Create the directory if need be.

        Raises:
            StateUnusable: it cannot be created.
        """
        self.directory = directory
        self.logs = directory / "logs"
        self._slots = directory / "slots"
        try:
            for folder in (self.logs, self._slots):
                folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StateUnusable(directory, error) from error

    def slots(self) -> list[str]:
        """Return the names of all slots that an agent has ever had here."""
        return sorted(path.name for path in self._slots.iterdir() if path.is_file())

    def open_slot(self, slot: str) -> SlotRecord:
        """Lock a slot and open its record.

        Raises:
            SlotAlreadyHeld: another process, or another worker of this one, holds it.
            StateUnusable: the file cannot be opened.
        """
        path = self._slots / slot
        descriptor = _locked(path, self.directory)
        if descriptor is None:
            raise SlotAlreadyHeld(slot, path)
        return SlotRecord(path, descriptor)

    def held(self) -> AbstractContextManager[None]:
        """Keep the whole directory to this fleet within the block, as `held` does."""
        return held(self.directory)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep a state directory to this process within the block; it is created if need be.

    Raises:
        StateDirectoryHeld: another fleet runs on it.
        StateUnusable: it cannot be created, or the lock cannot be opened.
    """
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise StateUnusable(directory, error) from error
    descriptor = _locked(directory / "lock", directory)
    if descriptor is None:
        raise StateDirectoryHeld(directory)
    try:
        yield
    finally:
        os.close(descriptor)


def _locked(path: Path, directory: Path) -> int | None:
    """Return a descriptor that holds the file's lock until it is closed, or None if another one does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StateUnusable(directory, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def boot_time() -> float:
    """Return when this machine booted, in whole seconds since the epoch."""
    return float(round(psutil.boot_time()))
