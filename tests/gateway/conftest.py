"""A gateway on an ephemeral port, with a client; agents join by script."""

from __future__ import annotations

import io
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from basert_fleet.gateway.app import ClientApi
from basert_fleet.gateway.auth import Keys
from basert_fleet.gateway.fleet import Fleet
from basert_fleet.gateway.server import HttpServer
from basert_fleet.telemetry.logs import FleetLog
from support.scripted_agent import pool


@dataclass
class Gateway:
    """A running gateway and what tests look at."""

    fleet: Fleet
    client: httpx.AsyncClient
    url: str
    log: io.BytesIO

    def metric(self, name: str, **labels: str) -> float | None:
        """Return one sample, None if there is none."""
        return self.fleet.metrics.registry.get_sample_value(f"basert_fleet_{name}", labels)


@pytest.fixture(autouse=True)
def no_callback_failed(caplog):
    """Fail a test in which a callback of the loop raised: asyncio only logs that."""
    yield
    failed = [record.getMessage() for record in caplog.get_records("call") if record.name == "asyncio"]
    assert not failed, failed


@pytest.fixture
def start():
    """Return how to start a gateway for a block of code, with these pools and options."""

    @asynccontextmanager
    async def _start(*pools, keys: Keys | None = None, limits=None, **options):
        log = io.BytesIO()
        fleet = Fleet(FleetLog(log), **options)
        fleet.apply(pools or (pool(),))
        held = keys or Keys()
        server = await HttpServer.start(ClientApi(fleet, lambda: held, limits), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            try:
                yield Gateway(fleet, client, url, log)
            finally:
                fleet.close()
                await client.aclose()
                await server.stop(grace_seconds=1)

    return _start


@pytest.fixture
async def gateway(start):
    """A gateway with the pool `qwen` of one replica and no agent yet."""
    async with start() as running:
        yield running
