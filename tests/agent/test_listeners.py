"""Whose port it is, by one reading of the machine's sockets for all who ask at one time."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from basert_fleet.agent import listeners
from basert_fleet.agent.listeners import Listeners
from basert_fleet.agent.processes import Child
from support.emulator import emulator
from support.turns import settled, until

HOST = "127.0.0.1"
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has one table of all sockets")


class Itself:
    """The process that runs the test, where a child is asked for."""

    def family(self) -> list[psutil.Process]:
        return [psutil.Process()]


ITSELF = cast(Child, Itself())


@pytest.fixture(params=["table", "each"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Look into the table where there is one, and as everywhere else."""
    if request.param == "each":
        monkeypatch.setattr(listeners, "TABLES", (Path("/no/such/table"),))
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_c13_only_a_process_that_listens_there_has_the_port(family: int) -> None:
    """C13: a connection from or to the port is not that, nor is a socket that another process holds."""
    host = HOST if family == socket.AF_INET else "::1"
    async with emulator() as stranger:
        with socket.create_server((host, 0), family=family) as ours:
            port = ours.getsockname()[1]
            assert await Listeners().include(ITSELF, port)
            with socket.create_connection((host, port)) as connection:
                assert not await Listeners().include(ITSELF, connection.getsockname()[1])
        assert not await Listeners().include(ITSELF, port)
        assert not await Listeners().include(ITSELF, stranger.port)


class Readings:
    """Readings of the table that last until they are let go."""

    def __init__(self, read: Callable[[], Mapping[int, frozenset[str]]]) -> None:
        self._read, self._go = read, threading.Semaphore(0)
        self.begun = 0

    def __call__(self) -> Mapping[int, frozenset[str]]:
        self.begun += 1
        self._go.acquire()
        return self._read()

    def go(self, count: int = 1) -> None:
        self._go.release(count)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    """Readings of the table, which the test lets go."""
    held = Readings(listeners._listening_sockets)
    monkeypatch.setattr(listeners, "_listening_sockets", held)
    return held


@LINUX_ONLY
async def test_all_who_ask_during_a_reading_share_the_next_one(readings: Readings) -> None:
    """A reading that had begun might have missed what they ask for; two are enough for any number of them."""
    owner = Listeners()
    first = asyncio.ensure_future(owner.include(ITSELF, 1))
    await until(lambda: readings.begun == 1)
    with socket.create_server((HOST, 0)) as ours:
        others = [asyncio.ensure_future(owner.include(ITSELF, ours.getsockname()[1])) for _ in range(20)]
        await settled()
        readings.go(2)
        assert await asyncio.gather(*others) == [True] * 20
    assert not await first
    assert readings.begun == 2


@LINUX_ONLY
async def test_one_who_asks_and_is_cut_short_costs_the_others_nothing(readings: Readings) -> None:
    """The next in line reads for all of them."""
    owner = Listeners()
    with socket.create_server((HOST, 0)) as ours:
        asked: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(owner.include(ITSELF, ours.getsockname()[1])) for _ in range(3)
        ]
        await until(lambda: readings.begun == 1)
        asked[0].cancel()
        readings.go(2)
        assert await asyncio.gather(*asked[1:]) == [True, True]
        assert asked[0].cancelled()


@LINUX_ONLY
def test_the_table_is_read_as_the_kernel_writes_it() -> None:
    """Ports and inodes of listening sockets, in hexadecimal and decimal; psutil finds the same ones of ours."""
    with socket.create_server((HOST, 0)) as ours:
        inode = os.fstat(ours.fileno()).st_ino
        assert listeners._listening_sockets()[ours.getsockname()[1]] == {str(inode)}
