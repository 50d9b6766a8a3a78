"""Ports, and what the ops port shows."""

from __future__ import annotations

import asyncio
import io

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from basert_fleet.gateway.fleet import Fleet
from basert_fleet.gateway.ops import OpsApi
from basert_fleet.gateway.server import HttpServer, ListenFailed
from basert_fleet.telemetry.logs import FleetLog
from support.scripted_agent import ScriptedAgent, pool


@pytest.fixture
async def ops():
    """A fleet and a client of its ops port."""
    fleet = Fleet(FleetLog(io.BytesIO()))
    server = await HttpServer.start(OpsApi(fleet), "127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        yield fleet, client
    await server.stop(grace_seconds=1)


async def test_a_port_in_use_is_told(ops):
    """The error names the address and what to do; nothing is left listening."""
    _, client = ops
    with pytest.raises(ListenFailed, match=rf"127.0.0.1:{client.base_url.port}: Address already in use"):
        await HttpServer.start(OpsApi(ops[0]), "127.0.0.1", client.base_url.port)


async def test_a_host_that_is_not_ours_is_told():
    """An address that no interface has is the same kind of error."""
    with pytest.raises(ListenFailed):
        await HttpServer.start(OpsApi(Fleet(FleetLog(io.BytesIO()))), "192.0.2.1", 0)


async def test_stopping_frees_the_port_and_closes_idle_connections():
    """A kept-alive connection does not hold the server up."""
    app = OpsApi(Fleet(FleetLog(io.BytesIO())))
    server = await HttpServer.start(app, "127.0.0.1", 0)
    async with httpx.AsyncClient() as client:
        await client.get(f"http://127.0.0.1:{server.port}/healthz")
        await server.stop(grace_seconds=30)
    again = await HttpServer.start(app, "127.0.0.1", server.port)
    await again.stop(grace_seconds=1)


async def test_ready_means_that_a_desired_state_is_known(ops):
    """Alive from the start; ready once pools were applied, and not any more while draining."""
    fleet, client = ops
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 503
    fleet.apply([pool()])
    assert (await client.get("/readyz")).status_code == 200
    await fleet.drain(limit_seconds=0)
    assert (await client.get("/readyz")).status_code == 503
    assert (await client.get("/healthz")).status_code == 200


async def test_metrics_come_in_both_formats(ops):
    """Prometheus text by default, OpenMetrics when it is asked for; all series of a pool are there at 0."""
    fleet, client = ops
    fleet.apply([pool()])
    ScriptedAgent().join(fleet)
    plain = await client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(plain.text)
        for sample in family.samples
    }
    assert samples["basert_fleet_requests_total", ("outcome", "queue_full"), ("pool", "qwen")] == 0
    assert samples["basert_fleet_lease_violations_total", ("node", "mac-1"), ("pool", "qwen")] == 0
    assert samples["basert_fleet_workers", ("phase", "READY"), ("pool", "qwen")] == 1
    assert samples["basert_fleet_node_connected", ("node", "mac-1"), ("unschedulable", "false")] == 1
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    assert (await client.get("/metrics", headers=accept)).text.endswith("# EOF\n")


async def test_observed_is_json(ops):
    """The ops API tells the fleet as it is."""
    fleet, client = ops
    fleet.apply([pool()])
    assert (await client.get("/fleet/observed")).json() == fleet.observed()


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/models", 404), ("POST", "/metrics", 405)])
async def test_the_ops_port_serves_nothing_else(ops, method, path, status):
    """Clients' endpoints are not here, and nothing can be posted."""
    assert (await ops[1].request(method, path)).status_code == status


async def test_the_server_survives_a_cancelled_stop():
    """A stop that is cut is not lost: the server still ends."""
    server = await HttpServer.start(OpsApi(Fleet(FleetLog(io.BytesIO()))), "127.0.0.1", 0)
    stopping = asyncio.create_task(server.stop(grace_seconds=1))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await server.stop(grace_seconds=1)
