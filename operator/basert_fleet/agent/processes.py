"""Child processes as the supervisor needs them: a group that can be ended whole, and facts about it.

This is the agent's platform layer for processes. Everything here works on Linux and macOS through psutil and POSIX
process groups; nothing else in the agent touches a pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from basert_fleet.agent.family import descendants
from basert_fleet.core.errors import FleetError

GROUP_FIRST_LOOK_SECONDS, GROUP_LATER_LOOK_SECONDS = 0.01, 1.0
"""Between looks at whether a process group is gone (doubling): members that are not our children give no event."""
TERMINATE_SECONDS = 2.0
"""Chosen: basert-serve exits at once on SIGTERM; what does not within this will not."""


class SpawnFailed(FleetError):
    """The engine's program could not be started at all."""

    code = "spawn_failed"

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(
            f"cannot start {program}: {error.strerror or error}. "
            "Check spec.server.command: the program must exist on this node and be executable."
        )
        self.program = program


@dataclass(frozen=True, slots=True)
class Progress:
    """What a starting process has done so far; a change between two looks means that it is getting on."""

    cpu_seconds: float
    resident_bytes: int


class Child:
    """One engine process and every process it forked, as one group in its own session."""

    probe_good_for_seconds = 1.0
    """Chosen: nobody else has its key, which is random; one idle for longer is asked again all the same."""

    def __init__(self, process: asyncio.subprocess.Process, created: float) -> None:
        self._process = process
        self._strays: list[psutil.Process] = []
        self.created = created
        """The operating system's creation time: with the pid it names a process for ever."""
        self.exited: asyncio.Future[int] = asyncio.ensure_future(process.wait())
        """Resolves to the exit status; negative means ended by that signal."""

    @property
    def pid(self) -> int:
        """The pid of the process, which is also its group's id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process itself has not exited."""
        return not self.exited.done()

    def has_exited(self) -> bool:
        """Say whether the process is gone, though its exit may not have been told yet."""
        return self.exited.done() or _has_ended(self.pid)

    def describe_exit(self) -> str:
        """Say how the process ended, for a person: an exit status and a signal are different stories."""
        if not self.exited.done():
            return "still running"
        return describe_status(self.exited.result())

    def suspect_restart(self, sign: str) -> None:
        """Do nothing: whether another process answers is told by this one's exit."""

    def stopped(self) -> bool:
        """Say whether the process was halted by a signal, so that waiting for it is pointless."""
        with contextlib.suppress(psutil.Error, OSError):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def progress(self) -> Progress:
        """Return what the process and its children have used so far; zeros once they are gone."""
        cpu, resident = 0.0, 0
        for process in self.family():
            with contextlib.suppress(psutil.Error, OSError):
                times = process.cpu_times()
                cpu += times.user + times.system
                resident += process.memory_info().rss
        return Progress(cpu, resident)

    def give_up(self) -> None:
        """Kill it at once: SIGKILL to the process, its group, and children that left the group."""
        self.remember_family()
        _signal_group(self.pid, signal.SIGKILL)
        kill_each(self._strays)

    async def _ask(self, number: signal.Signals, seconds: float) -> None:
        """Send a signal that a process may heed, and give it time to: SIGUSR1 drains, SIGTERM exits at once."""
        if self.alive:
            self.remember_family()
            _signal_group(self.pid, number)
            await asyncio.wait({self.exited}, timeout=seconds)

    async def gone(self) -> None:
        """Return once the process, its whole group and its stray children no longer exist."""
        await asyncio.shield(self.exited)
        pause = GROUP_FIRST_LOOK_SECONDS
        while _group_exists(self.pid) or any(_exists(stray) for stray in self._strays):
            await asyncio.sleep(pause)
            pause = min(2 * pause, GROUP_LATER_LOOK_SECONDS)

    async def end(self, *, drain_seconds: float) -> None:
        """End the whole group. On return nothing of it exists.

        It is asked to drain for at most that long, then to terminate, then killed; with 0 it is killed at once. Cut
        short, it kills the group and goes on cancelling.
        """
        try:
            if drain_seconds > 0:
                await self._ask(signal.SIGUSR1, drain_seconds)
                await self._ask(signal.SIGTERM, TERMINATE_SECONDS)
        finally:
            self.give_up()
        await self.gone()

    def family(self) -> list[psutil.Process]:
        """Return the process and what it has forked, as far as their parents live; nothing once it is gone."""
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(self.pid)
            return [process, *descendants(process)]
        return []

    def remember_family(self) -> None:
        """Note which processes it has forked so far.

        One that made a session of its own is outside the group, and can be found only while its parent lives (C14).
        """
        known = set(self._strays)
        self._strays += [process for process in self.family() if process.pid != self.pid and process not in known]


def describe_status(status: int) -> str:
    """Say what an exit status means: a negative one is a signal's."""
    return f"exited with status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"


MARK = "BASERT_FLEET_SLOT"
"""The environment variable by which an engine, and whatever it forks, tells whose it is: its slot's record."""


async def spawn(argv: Sequence[str], *, env: Mapping[str, str], log: Path, slot: Path) -> Child:
    """Start an engine in its own session, marked with its slot's record, with its output appended to a file.

    The child inherits the file itself, never a pipe: it can then neither block on us nor die with us.

    Raises:
        SpawnFailed: the program does not exist, or cannot be executed.
    """
    with _appending(log) as output:
        try:
            return await _spawn(argv, env={**env, MARK: str(slot)}, output=output)
        except OSError as error:
            raise SpawnFailed(argv[0], error) from error


async def run_command(argv: Sequence[str], *, log: Path, seconds: float) -> int:
    """Run a program to its end, in its own session, with its output appended to a file; return its exit status.

    It does not carry a slot's mark: what it leaves running is not ours. Past `seconds`, or cut short, its group is
    killed, and with it whatever of that it started.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it did not end in time.
    """
    with _appending(log) as output:
        child = await _spawn(argv, env={}, output=output)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(child.exited)
    except BaseException:
        child.give_up()
        await child.gone()
        raise
    return child.exited.result()


@contextlib.contextmanager
def _appending(log: Path) -> Iterator[int]:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _spawn(argv: Sequence[str], *, env: Mapping[str, str], output: int) -> Child:
    """Start a program with these variables beside our own; uvloop takes no mapping for them but a dict."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    return Child(process, _created(process.pid))


def kill_leftover(pid: int, created: float) -> bool:
    """Kill the group of a process that an earlier agent left, if that very process still exists; say whether it did."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if abs(process.create_time() - created) < CREATE_TIME_TOLERANCE_SECONDS:
            family = descendants(process)
            _signal_group(pid, signal.SIGKILL)
            kill_each(family)
            return True
    return False


def kill_each(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each of these processes that still exists. Never waits, never fails."""
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.kill()


def marked_processes() -> dict[str, list[psutil.Process]]:
    """Return all processes that carry a slot's mark, by that slot's record; those of other users cannot be read.

    It finds what no record tells of: an engine whose agent was killed before it could write it down, and a forked
    process in a session of its own that outlived its parent (C14).
    """
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK)
            if mark is not None:
                found.setdefault(mark, []).append(process)
    return found


CREATE_TIME_TOLERANCE_SECONDS = 0.05
"""psutil derives the time from clock ticks of 10 ms and the boot time; chosen well below any reuse of a pid."""


def free_port(host: str) -> int:
    """Return a port that nobody listens on now. Another program may still take it: `Listeners` tell."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _has_ended(pid: int) -> bool:
    """Say whether a child of ours has ended, and leave its status for whoever waits for it."""
    if hasattr(os, "waitid"):  # not on macOS before Python 3.13
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True
    with contextlib.suppress(psutil.Error, OSError):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


def _created(pid: int) -> float:
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).create_time()
    return 0.0


def _exists(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # macOS denies it when only zombies are left
        return False
    return any(_in_group(process, group) for process in psutil.process_iter())


def _in_group(process: psutil.Process, group: int) -> bool:
    """Say whether a process is a living member: a zombie awaits its own parent and holds nothing."""
    with contextlib.suppress(psutil.Error, OSError):
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    return False
