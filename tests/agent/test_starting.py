"""How a process comes up, whose port it is, and which failures count against its worker."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import cast

import psutil
import pytest

from basert_fleet.agent import starting
from basert_fleet.agent.engines import StartFailed
from basert_fleet.agent.generation import EngineLine
from basert_fleet.agent.listeners import Listeners
from basert_fleet.agent.processes import Child, Progress
from basert_fleet.agent.starting import launch_process, listening
from basert_fleet.agent.state import SlotRecord, StateDirectory
from basert_fleet.core.calibration import Probe
from basert_fleet.core.plan import NodeView, plan
from basert_fleet.wire.messages import Offer
from support.desk import NODE, desk, pool_document, replanned
from support.emulator import emulator
from support.turns import until
from support.virtual_loop import run_virtual


class LoadingEngine:
    """A process that uses CPU as a script says, and answers from a second on. It is its own line and listener."""

    def __init__(self, cpu_at: Callable[[float], float], *, ready_at: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._cpu_at, self._ready_at = cpu_at, ready_at
        self.probes = self
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.alive, self.port = True, 1

    def progress(self) -> Progress:
        return Progress(self._cpu_at(self._loop.time()), 1)

    async def include(self, _child: object, _port: int) -> bool:
        return True

    async def healthy(self, _timeout: float) -> bool:
        return self._loop.time() >= self._ready_at

    async def ask(self) -> Probe | None:
        return None

    def remember(self, _probe: Probe | None) -> None:
        """Nothing was sent to it yet."""


def seconds_to_start(monkeypatch: pytest.MonkeyPatch, cpu_at: Callable[[float], float], *, ready_at: float) -> float:
    """Return after how many virtual seconds a process was taken for started."""

    async def accepts(_line: object) -> bool:
        return True

    async def start() -> float:
        engine = LoadingEngine(cpu_at, ready_at=ready_at)
        await listening(cast(Child, engine), cast(EngineLine, engine), cast(Listeners, engine))
        return asyncio.get_running_loop().time()

    monkeypatch.setattr(starting, "_accepts", accepts)
    return run_virtual(start())


def test_c18_a_start_that_gets_on_may_take_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: a process that uses CPU now and then, nine minutes apart, is waited for."""
    assert 3600 <= seconds_to_start(monkeypatch, lambda now: now // 540, ready_at=3600) < 3601


def test_c18_a_start_that_does_not_get_on_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: ten minutes without CPU and without memory are the end, and the reason is told."""
    seen: list[float] = []

    def stuck(now: float) -> float:
        seen.append(now)
        return min(now, 60.0)

    with pytest.raises(StartFailed, match="neither CPU nor more memory for 600 seconds"):
        seconds_to_start(monkeypatch, stuck, ready_at=3600)
    assert 660 <= seen[-1] < 675


async def test_c13_a_stranger_on_the_port_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: another engine answers where ours should: it is never warmed up nor offered, and the reason is told."""
    monkeypatch.setattr("basert_fleet.core.lifecycle.FAILURES_UNTIL_FATAL", 1)
    async with emulator() as stranger, desk(tmp_path) as front:
        monkeypatch.setattr(starting, "free_port", lambda _host: stranger.port)
        front.want_pool(pool_document("--sim-startup", "60"))
        await front.until(lambda: front.phases()[-1:] in (["FATAL"], ["READY"]))
        assert "another program listens on port" in front.statuses["qwen-0"].message
        assert "WARMING" not in front.phases()
        assert not any(isinstance(message, Offer) for message in front.received)
        assert stranger.journal("begin") == []


async def test_a_process_that_cannot_be_recorded_does_not_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could find it later: it is killed at once, and the start has failed."""
    pids: list[int] = []

    def full(_record: SlotRecord, pid: int, _created: float, _port: int) -> None:
        pids.append(pid)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(SlotRecord, "started", full)
    (worker,) = plan([pool_document()], [NodeView(NODE, None, connected=True)], []).workers
    record = StateDirectory(tmp_path).open_slot("qwen-0")
    with pytest.raises(OSError, match="no space left"):
        await launch_process(worker, record, tmp_path / "log")
    record.close()
    async with asyncio.timeout(10):
        await until(lambda: not psutil.pid_exists(pids[0]))


async def test_a_process_gets_its_environment(tmp_path: Path) -> None:
    """`server.env` is added to what the agent itself has."""
    env = [{"name": "BASERT_METAL_CAPTURE", "value": "off"}]
    pool = pool_document()
    server = pool.spec.server.model_dump(by_alias=True) | {"env": env}
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(server=server))
        pid = (await front.phase("WARMING")).pid
        environ = psutil.Process(pid).environ()
        assert environ["BASERT_METAL_CAPTURE"] == "off"
        assert "PATH" in environ


async def test_an_idle_process_that_dies_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is to blame for it: such a process may not be started for ever."""
    monkeypatch.setattr("basert_fleet.core.lifecycle.FAILURES_UNTIL_FATAL", 1)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        await front.offer()
        psutil.Process(front.statuses["qwen-0"].pid).kill()
        await front.until(lambda: front.phases()[-1] in ("FATAL", "STARTING"))
        assert front.statuses["qwen-0"].phase == "FATAL"
        assert front.statuses["qwen-0"].message == "the idle process ended by SIGKILL"


async def test_a_new_template_starts_without_the_failures_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure of each of two command lines are not two in a row."""
    monkeypatch.setattr("basert_fleet.core.lifecycle.FAILURES_UNTIL_FATAL", 2)
    async with desk(tmp_path) as front:
        workers = front.want_pool(pool_document("--no-such-flag"))
        await front.phase("BACKOFF")
        front.want(*replanned(pool_document("--neither-this"), workers))
        await front.until(
            lambda: "--neither-this" in front.statuses["qwen-0"].message and front.phases()[-1] in ("BACKOFF", "FATAL")
        )
        assert front.phases()[-1] == "BACKOFF"
