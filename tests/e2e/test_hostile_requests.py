"""Requests and surroundings that once ended workers for good: each is answered, and the workers serve on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx

from support.alive import lives
from support.fleet import MODEL, Fleet, fleet, pool, write_pools
from support.users import Got, Kind, ask


async def raw_post(running: Fleet, content_type: bytes, body: bytes) -> bytes:
    """Send a request whose header no library would write; return the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    headers = [b"Host: x", b"Connection: close", b"Content-Type: " + content_type, b"Content-Length: %d" % len(body)]
    writer.write(b"\r\n".join([b"POST /v1/chat/completions HTTP/1.1", *headers, b"", body]))
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_legal_but_odd_content_type_costs_nothing(tmp_path: Path) -> None:
    """A tab or a byte above 0x7f in a header value is served or refused; no worker is lost for it (promise 7)."""
    body = b'{"model": "%b", "messages": [{"role": "user", "content": "hi"}]}' % MODEL.encode()
    async with fleet(tmp_path, pool(replicas=2)) as running:
        for odd in (b"application/json;\tcharset=utf-8", b"application/json; x=\xa0", b"text/plain"):
            answer = await raw_post(running, odd, body)
            assert answer.split()[1] in {b"200", b"400", b"415"}, answer[:200]
        seen = await running.observed()
        assert [worker["generation"] for worker in seen["workers"]] == [1, 1]
        assert [worker["phase"] for worker in seen["workers"]] == ["READY", "READY"]


async def test_what_a_killed_fleet_left_is_ended_even_if_it_is_not_wanted_any_more(tmp_path: Path) -> None:
    """After SIGKILL the next fleet ends every engine of the last one, those of workers that are gone included."""
    async with fleet(tmp_path, pool(replicas=3)) as running:
        left = running.children()
        assert len(left) == 3
        running.process.send_signal(signal.SIGKILL)
        await running.process.wait()
        running.expect_status(-signal.SIGKILL)
        write_pools(tmp_path, pool(replicas=1))
        async with fleet(tmp_path, pool(replicas=1)) as next_one:
            assert len(next_one.children()) == 1
            assert not any(map(lives, left))
            async with httpx.AsyncClient(base_url=next_one.url) as client:
                assert (await ask(client, Kind.TOOL, "after")).got is Got.RIGHT
