"""The bug report's shapes through `up` and servers that it did not start, with the bug on in both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from support.attached import Server, servers
from support.emulator import read_journal
from support.fleet import Fleet, attached_pool, fleet
from support.users import REQUEST_SECONDS, Got, Kind, ask, tally

TEMPLATE = Path(__file__).resolve().parents[1] / "engine" / "templates" / "qwen_xml.jinja"


def entry(server: Server) -> dict[str, Any]:
    """A server as the fleet file names it."""
    return {"pool": "qwen", "url": server.url, "restartCommand": list(server.restart_command)}


def client_of(running: Fleet) -> httpx.AsyncClient:
    """A client of the fleet."""
    return httpx.AsyncClient(base_url=running.url, timeout=REQUEST_SECONDS)


async def test_the_reports_shapes_are_all_right_on_attached_servers(tmp_path: Path) -> None:
    """Eighteen in a row, then 2, 4 and 8 at once: whichever server is found contaminated is restarted."""
    async with servers(tmp_path, 2, "--sim-bug", "on") as both:
        for server in both:
            await server.restart()
        async with fleet(tmp_path / "fleet", attached_pool(2), attach=[entry(server) for server in both]) as running:
            async with client_of(running) as client:
                replies = [await ask(client, Kind.TOOL, f"seq-{number}") for number in range(18)]
                for users in (2, 4, 8):
                    replies += await asyncio.gather(*(ask(client, Kind.TOOL, f"c{users}-{n}") for n in range(users)))
            assert tally(replies) == {Got.RIGHT: 32}, replies
            assert [server.overlaps for server in both] == [0, 0]
            assert sum(server.processes for server in both) > 2
            assert f"qwen-0 is the server at {both[0].url}" in running.log()
            assert "They cannot be killed from here." in running.log()


async def test_rendered_chats_are_right_on_an_attached_server(tmp_path: Path) -> None:
    """As on a process of the fleet's own: eighteen in a row, no prefix reused, and nobody restarts the server."""
    document = attached_pool(1)
    document["spec"]["server"] = {"chat": "rendered", "chatTemplate": {"file": str(TEMPLATE)}}
    async with servers(tmp_path, 1, "--sim-bug", "on") as (server,):
        await server.restart()
        async with fleet(tmp_path / "fleet", document, attach=[entry(server)]) as running, client_of(running) as client:
            replies = [await ask(client, Kind.TOOL, f"seq-{number}") for number in range(18)]
            assert tally(replies) == {Got.RIGHT: 18}, replies
        begun = [record for record in read_journal(server.journal_path) if record["event"] == "begin"]
        assert {(record["kind"], record["reuse"]) for record in begun} == {("completion", 0)}
        assert server.processes == 1


async def test_a_server_that_is_restarted_in_mid_request_costs_nobody_an_answer(tmp_path: Path) -> None:
    """What it worked on runs on the other one; after SIGTERM to the fleet both are left running."""
    async with servers(tmp_path, 2, "--sim-tokens-per-second", "400") as both:
        for server in both:
            await server.restart()
        async with fleet(tmp_path / "fleet", attached_pool(2), attach=[entry(server) for server in both]) as running:
            async with client_of(running) as client:
                asked = [asyncio.create_task(ask(client, Kind.TOOL, f"cut-{number}")) for number in range(8)]
                await running.until(lambda seen: seen["pools"][0]["inFlight"] == 2)
                await both[0].restart()
                assert tally(await asyncio.gather(*asked)) == {Got.RIGHT: 8}
            await running.ready(2)
            assert [server.overlaps for server in both] == [0, 0]
        assert [server.is_running for server in both] == [True, True]
        assert [server.processes for server in both] == [2, 1]
