"""Restarting the server under examination by a command of its owner: the report's first control needs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Sequence

from basert_fleet.cli.asking import Server
from basert_fleet.core.errors import FleetError

POLL_SECONDS = 0.1
"""Chosen: no event tells that a server listens, and a model loads for far longer."""

STDERR = 2
"""The descriptor: what a command prints must not mix with a report on standard output."""


class RestartFailed(FleetError):
    """The restart command did not give a fresh server: nothing that follows would mean anything."""

    code = "restart_failed"


class Restarter:
    """Restarts one server; call it once for each fresh process."""

    def __init__(self, command: Sequence[str], server: Server) -> None:
        self._command, self._server = tuple(command), server

    async def __call__(self) -> None:
        """Run the command and return once the server answers again.

        The command must not return before the old process is gone. Its output goes to standard error.

        Raises:
            RestartFailed: it failed, took longer than a request may, or left the old process in place.
        """
        before = await self._server.settled()
        try:
            async with asyncio.timeout(self._server.seconds_left):
                await self._run()
                while not await self._server.is_up():  # noqa: ASYNC110  # it is another process
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise self._failed("the server did not answer in time") from error
        after = await self._server.settled()
        if before is not None and before == after and before.cache_tokens > 0:
            raise self._failed("/slots shows the counters of the old process: it was not restarted")

    async def _run(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=STDERR,
                start_new_session=True,
            )
        except OSError as error:
            raise self._failed(str(error)) from error
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # it ended just now
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if status != 0:
            raise self._failed(f"it ended with status {status}")

    def _failed(self, why: str) -> RestartFailed:
        return RestartFailed(f"--restart-command {shlex.join(self._command)}: {why}")
