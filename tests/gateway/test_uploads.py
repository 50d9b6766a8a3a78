"""Bodies on their way in: limits for each, a budget for all, and nothing left when a client leaves."""

from __future__ import annotations

import asyncio

import pytest

from basert_fleet.gateway.errors import Code, RequestFault
from basert_fleet.gateway.uploads import ClientLeft, UploadLimits, Uploads
from support.turns import until
from support.virtual_loop import run_virtual


def arriving(*chunks: bytes | None):
    """Return a receive that brings these chunks; None is a client that leaves, and after the last nothing comes."""
    left = list(chunks)

    async def receive() -> dict:
        if not left:
            await asyncio.Event().wait()
        chunk = left.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": chunk != b"end"}

    return receive


def scope(**headers: str) -> dict:
    """Return a scope with these headers."""
    return {"headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}


async def test_a_body_is_put_together():
    """Chunks become one body, and the budget is free again."""
    uploads = Uploads(UploadLimits())
    assert await uploads.read(scope(), arriving(b"a", b"b", b"end")) == b"abend"
    assert uploads.bytes_in_memory == 0


async def test_an_announced_size_is_refused_before_it_is_read():
    """A Content-Length over the limit costs nothing."""
    with pytest.raises(RequestFault) as raised:
        await Uploads(UploadLimits(body_bytes=10)).read(scope(content_length="11"), arriving())
    assert raised.value.failure.code is Code.PAYLOAD_TOO_LARGE


async def test_a_client_that_leaves_frees_its_budget():
    """A body that never ends properly leaves nothing behind."""
    uploads = Uploads(UploadLimits())
    with pytest.raises(ClientLeft):
        await uploads.read(scope(), arriving(b"abc", None))
    assert uploads.bytes_in_memory == 0


async def test_the_budget_bounds_all_bodies_together():
    """When many bodies arrive at once, the one that goes over the budget is refused, and may be tried again."""
    uploads = Uploads(UploadLimits(body_bytes=100, budget_bytes=150))
    first = asyncio.create_task(uploads.read(scope(), arriving(b"x" * 100)))
    await until(lambda: uploads.bytes_in_memory == 100)
    with pytest.raises(RequestFault) as raised:
        await uploads.read(scope(), arriving(b"x" * 60))
    assert raised.value.failure.code is Code.QUEUE_FULL
    assert raised.value.failure.retry_after_seconds == 1.0
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert uploads.bytes_in_memory == 0


def test_a_body_that_does_not_arrive_is_given_up():
    """A client that sends a part and then nothing holds its memory for two minutes, not for ever."""

    async def main() -> None:
        uploads = Uploads(UploadLimits())
        with pytest.raises(RequestFault) as raised:
            await uploads.read(scope(), arriving(b"abc"))
        assert raised.value.failure.code is Code.CLIENT_TOO_SLOW
        assert asyncio.get_running_loop().time() == 120.0
        assert uploads.bytes_in_memory == 0

    run_virtual(main())
