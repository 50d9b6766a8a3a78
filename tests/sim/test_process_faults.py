"""Every fault, against a real process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest

from support.emulator import Emulator, emulator
from support.seed import finish, lookup, plain

CHAT = "/v1/chat/completions"
SLOW = ("--sim-tokens-per-second", "50")
TEXT = "x [[len=1000]]"  # 20 s at SLOW's rate: nothing below waits for its end


def connect(server: Emulator) -> httpx.AsyncClient:
    """Return a client of the emulator."""
    return httpx.AsyncClient(base_url=server.url, timeout=60)


async def processing(client: httpx.AsyncClient) -> bool:
    """Say what /slots says."""
    return (await client.get("/slots")).json()[0]["is_processing"]


async def until_processing(client: httpx.AsyncClient, expected: bool) -> None:
    """Ask until the slot says so; the test's own limit ends it otherwise."""
    while await processing(client) is not expected:
        pass


@asynccontextmanager
async def asked(client: httpx.AsyncClient, body: dict):
    """Send a request and let go of it at the end, however far it got."""
    task = asyncio.create_task(client.post(CHAT, json=body))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_generation(stream):
    """Within a token the slot is idle again, and the journal says cancelled."""
    async with emulator(*SLOW) as server, connect(server) as client:
        async with asked(client, plain(TEXT, stream=stream)):
            await until_processing(client, True)
        await until_processing(client, False)
        (end,) = server.journal("end")
        assert (end["cancelled"], end["finish"]) == (True, "cancelled")
        assert end["completion_tokens"] < 1000


async def test_a_client_that_leaves_the_queue_is_never_begun():
    """Only the generation before it and the one after it ran."""
    async with emulator(*SLOW) as server, connect(server) as client, connect(server) as other:
        async with asked(client, plain(TEXT)):
            await until_processing(other, True)
            async with asked(other, plain("gone")):
                while "basert_sim_queued 1\n" not in (await client.get("/metrics")).text:
                    pass
            while "basert_sim_queued 0\n" not in (await client.get("/metrics")).text:
                pass
        await client.post(CHAT, json=plain("next", max_tokens=1))
        assert len(server.journal("begin")) == 2


async def test_run_on_goes_on_after_the_client_left():
    """The generation ends as if somebody listened (C39)."""
    async with emulator("--sim-tokens-per-second", "200", "--sim-fault", "run-on") as server, connect(server) as client:
        async with asked(client, plain("x [[len=60]]")):
            await until_processing(client, True)
        assert await processing(client)
        await until_processing(client, False)
        (end,) = server.journal("end")
        assert (end["finish"], end["completion_tokens"]) == ("stop", 60)


@pytest.mark.parametrize("order", ["[[crash]]", "[[fault=crash]]"])
async def test_crash_ends_the_process_by_a_signal(order):
    """The connection breaks, and the exit code tells the signal."""
    async with emulator() as server, connect(server) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json=plain(f"x {order}", stream=True))
        assert await server.exit_code() == -signal.SIGABRT
        assert server.journal()[-1]["reason"] == "crash"


async def test_a_fault_on_the_nth_generation():
    """The first two are served."""
    async with emulator("--sim-fault", "crash:nth=3") as server, connect(server) as client:
        for _ in range(2):
            assert (await client.post(CHAT, json=plain("x"))).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json=plain("x"))
        assert await server.exit_code() == -signal.SIGABRT


async def test_hang_stops_half_way_for_ever():
    """/health is 200, the slot stays busy even after the client left (C15)."""
    async with emulator() as server, connect(server) as client:
        async with client.stream("POST", CHAT, json=plain("x [[fault=hang]]", stream=True)) as response:
            chunk = await anext(response.aiter_bytes())
            assert b"[DONE]" not in chunk
            assert (await client.get("/health")).status_code == 200
        assert await processing(client)
        assert server.journal("end") == []


async def test_swallow_takes_a_request_and_does_nothing():
    """Not processing, no byte; the next request is served (C12)."""
    async with emulator() as server, connect(server) as client:
        async with asked(client, plain("x [[fault=swallow]]")) as task:
            assert (await client.post(CHAT, json=plain("y"))).status_code == 200
            assert not await processing(client)
            assert not task.done()
        assert len(server.journal("begin")) == 1


async def test_wedge_answers_nothing_but_health():
    """Neither the request nor /slots; health is 200 all the time (C15)."""
    async with emulator() as server, connect(server) as client, connect(server) as prober:
        async with asked(client, plain("x [[fault=wedge]]")) as task:
            slots = asyncio.create_task(prober.get("/slots"))
            for _ in range(20):
                assert (await client.get("/health")).status_code == 200
            assert not task.done()
            slots.cancel()
            await asyncio.gather(slots, return_exceptions=True)
        assert server.journal("begin") == []


@pytest.mark.parametrize("body", [lookup("k", stream=True), plain("x", stream=True), lookup("k"), plain("x")])
async def test_truncate_closes_without_the_end_mark(body):
    """A stream breaks in the middle of its deltas, a whole answer in the middle of its length."""
    async with emulator("--sim-fault", "truncate:nth=1") as server, connect(server) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json=body)
        assert server.journal("end")[0]["cancelled"]
        assert (await client.post(CHAT, json=plain("y"))).status_code == 200


async def test_contaminate_needs_no_bug():
    """A test can have a contaminated process at once."""
    async with emulator() as server, connect(server) as client:
        await client.post(CHAT, json=lookup("a", messages=plain("[[fault=contaminate]]")["messages"]))
        answer = (await client.post(CHAT, json=lookup("b"))).json()
        assert finish(answer) == "length"
        assert server.journal("end")[-1]["contaminated"]


async def test_directives_can_be_off():
    """Then a message orders nothing."""
    async with emulator("--sim-directives", "off") as server, connect(server) as client:
        assert (await client.post(CHAT, json=plain("[[crash]]"))).status_code == 200


async def test_slots_can_be_silent_during_a_prefill():
    """No answer until the first token (C16); /health answers meanwhile."""
    async with (
        emulator("--sim-slots", "silent") as server,
        connect(server) as client,
        connect(server) as prober,
        asked(client, plain("x [[delay=1]]")) as task,
    ):
        while not server.journal("begin"):
            await client.get("/health")
        probe = asyncio.create_task(prober.get("/slots"))
        for _ in range(20):
            assert (await client.get("/health")).status_code == 200
        assert not probe.done()
        assert (await probe).status_code == 200
        assert (await task).status_code == 200


async def test_slots_can_be_absent():
    """404, as a build without it."""
    async with emulator("--sim-slots", "off") as server, connect(server) as client:
        assert (await client.get("/slots")).status_code == 404


async def test_a_request_in_accept_shows_an_idle_slot_and_begins_even_if_its_client_left():
    """Why an idle /slots at once after a cancel proves nothing."""
    async with emulator("--sim-accept-delay", "0.3") as server, connect(server) as client, connect(server) as other:
        async with asked(client, plain("x")):
            for _ in range(10):
                assert not await processing(other)
        while not server.journal("end"):
            await processing(other)
        (end,) = server.journal("end")
        assert end["cancelled"]


async def test_startup_listens_late():
    """The port refuses connections until the model is loaded, and signals work meanwhile."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with emulator("--sim-startup", "0.5") as server, connect(server) as client:
        assert loop.time() - begun >= 0.5
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_and_sigint_end_at_once(number):
    """In the middle of a generation, by that very signal."""
    async with emulator(*SLOW) as server, connect(server) as client:
        async with asked(client, plain(TEXT)):
            await until_processing(client, True)
            server.process.send_signal(number)
            assert await server.exit_code() == -number
        assert server.journal()[-1]["reason"] == number.name


async def test_it_can_be_deaf_to_sigterm():
    """Only SIGKILL ends it then."""
    async with emulator("--sim-ignore-sigterm") as server, connect(server) as client:
        server.process.send_signal(signal.SIGTERM)
        for _ in range(20):
            assert (await client.get("/health")).status_code == 200
        server.process.kill()
        assert await server.exit_code() == -signal.SIGKILL


async def test_sigusr1_drains():
    """No new connection, 503 on an old one, the running stream ends whole, exit 0."""
    async with emulator(*SLOW) as server, connect(server) as client, connect(server) as kept:
        async with asked(client, plain("x [[len=40]]", stream=True)) as task:
            await until_processing(kept, True)
            server.process.send_signal(signal.SIGUSR1)
            with pytest.raises(ConnectionRefusedError):
                await connect_for_ever(server)
            assert (await kept.post(CHAT, json=plain("too late"))).status_code == 503
            assert (await task).text.endswith("data: [DONE]\n\n")
        assert await server.exit_code() == 0
        assert server.journal()[-1]["reason"] == "drained"


async def connect_for_ever(server: Emulator) -> None:
    """Open and close connections until one is refused; one that meets the closing of the listener is reset."""
    while True:
        with contextlib.suppress(ConnectionResetError):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.close()
            await writer.wait_closed()


async def test_a_drain_has_a_limit():
    """Past --drain-timeout it exits although a generation still runs."""
    async with emulator("--drain-timeout", "0.1", *SLOW) as server, connect(server) as client:
        async with asked(client, plain(TEXT)):
            await until_processing(client, True)
            server.process.send_signal(signal.SIGUSR1)
            assert await server.exit_code() == 0
        assert server.journal()[-1]["reason"] == "drain_timeout"


@pytest.mark.parametrize("mode", ["group", "session"])
async def test_an_orphan_keeps_the_port(mode):
    """Its parent is dead, and the port still accepts connections without ever answering (C14)."""
    async with emulator("--sim-orphan", mode) as server:
        orphan = psutil.Process(server.journal("start")[0]["orphan_pid"])
        assert (os.getpgid(orphan.pid) == server.pid) is (mode == "group")
        server.process.terminate()
        await server.exit_code()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()
        await writer.wait_closed()
        assert orphan.is_running()


async def test_memory_is_really_held():
    """A worker can be as large as a test needs it."""
    async with emulator("--sim-memory", str(64 * 2**20)) as server:
        assert psutil.Process(server.pid).memory_info().rss > 64 * 2**20
