"""What several tests of the command line share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from basert_fleet.cli.main import main


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., Awaitable[tuple[int, str, str]]]:
    """Run `basert-fleet check` in a thread, with a loop of its own; gives its exit status, output and talk."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, ["check", *arguments])
        return status, *capsys.readouterr()

    return run
