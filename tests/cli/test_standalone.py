"""A whole standalone fleet on this machine: real ports, real emulated workers, real files that change."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from basert_fleet.agent.state import StateDirectoryHeld
from basert_fleet.cli import endpoint
from basert_fleet.cli.endpoint import EndpointSettings
from basert_fleet.cli.fleetfile import read_pools
from basert_fleet.cli.followed import Followed
from basert_fleet.cli.listen import Address
from basert_fleet.cli.signals import Interrupts
from basert_fleet.cli.standalone import Settings, serve
from basert_fleet.gateway.auth import read_keys
from basert_fleet.gateway.server import ListenFailed
from basert_fleet.telemetry.line_sink import LineSink

LOOPBACK = Address("127.0.0.1", 0)
HELLO = {"model": "emulated", "messages": [{"role": "user", "content": "Hello"}]}
FLEET = """\
apiVersion: fleet.basert.dev/v1alpha1
kind: BasertPool
metadata: {{name: emulated}}
spec:
  model: {{name: emulated, path: emulated.base}}
  replicas: {replicas}
  server:
    command: {command}
"""
EMULATOR = [sys.executable, "-m", "basert_fleet.sim"]


class Running:
    """A fleet that runs beside the test, and what it told."""

    def __init__(self, file: Path, interrupts: Interrupts) -> None:
        self.file, self.interrupts = file, interrupts
        self.settings: Settings
        self.lines: list[str] = []
        self._news = asyncio.Event()
        self.served: asyncio.Task[bool] | None = None

    def say(self, text: str) -> None:
        self.lines.append(text)
        self._news.set()

    async def told(self, text: str) -> str:
        """Wait until a line with this text was told; return it."""
        while True:
            for line in self.lines:
                if text in line:
                    return line
            self._news.clear()
            await self._news.wait()

    async def client(self, **headers: str) -> httpx.AsyncClient:
        found = re.search(r"http://\S+", await self.told("listening on"))
        assert found is not None
        return httpx.AsyncClient(base_url=found[0], headers=headers, timeout=60)

    def scale(self, replicas: int) -> None:
        self.file.write_text(FLEET.format(replicas=replicas, command=EMULATOR))


@contextlib.asynccontextmanager
async def fleet(folder: Path, replicas: int, keys_file: Path | None = None) -> AsyncIterator[Running]:
    """Run a fleet of emulated workers; it is stopped at once at the end, if the test has not stopped it."""
    running = Running(folder / "fleet.yaml", Interrupts())
    running.scale(replicas)
    settings = Settings(
        endpoint=EndpointSettings(
            fleet_file=Followed(running.file, lambda content: read_pools(content, "fleet.yaml")),
            keys_file=None
            if keys_file is None
            else Followed(keys_file, lambda content: read_keys(content, "keys.yaml")),
            listen=LOOPBACK,
            ops_listen=LOOPBACK,
        ),
        state_dir=folder / "state",
        node="desk",
    )
    running.settings = settings
    with LineSink(io.BytesIO()) as log:
        running.served = asyncio.create_task(serve(settings, running.interrupts, running.say, log))
        try:
            yield running
        finally:
            running.interrupts.stop.set()
            running.interrupts.at_once.set()
            await running.served


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at files often, so that no test waits for a second to pass."""
    monkeypatch.setattr(endpoint, "POLL_SECONDS", 0.01)


async def test_a_fleet_starts_serves_and_stops(tmp_path: Path) -> None:
    """From a file to an answer; the curl line that is told names the model, and nothing is left afterwards."""
    async with fleet(tmp_path, replicas=1) as running:
        ready = await running.told("Ready.")
        assert '"model": "emulated"' in ready
        async with await running.client() as client:
            answer = await client.post("/v1/chat/completions", json=HELLO)
        assert answer.status_code == httpx.codes.OK
        assert answer.headers["x-basert-worker"] == "emulated-0"
        running.interrupts.received()
        assert running.served is not None
        assert await running.served is True
    assert running.lines[-1] == "emulated-0 has stopped"


async def test_a_request_may_come_before_the_first_worker(tmp_path: Path) -> None:
    """The port is open while workers start, and what comes early waits for them (C28)."""
    async with fleet(tmp_path, replicas=1) as running, await running.client() as client:
        answer = await client.post("/v1/chat/completions", json=HELLO)
        assert answer.status_code == httpx.codes.OK


async def test_the_running_fleet_follows_its_file(tmp_path: Path) -> None:
    """A right change is applied, a wrong one is told and changes nothing (C21)."""
    async with fleet(tmp_path, replicas=0) as running:
        await running.told("starting emulated × 0")
        running.file.write_text("kind: BasertPool\nspec: {replica: 1}\n")
        told = await running.told("The fleet goes on as it was.")
        assert "fleet.yaml:2: spec.replica: unknown field; did you mean replicas?" in told
        running.scale(1)
        await running.told("emulated-0 is ready")
        running.scale(0)
        await running.told("emulated-0 has stopped")


async def test_an_edit_is_told_by_what_it_changes(tmp_path: Path) -> None:
    """The setting is named with what it was and is; the comment beside it is no news."""
    async with fleet(tmp_path, replicas=0) as running:
        await running.told("starting emulated × 0")
        running.file.write_text(f"# a comment\n{running.file.read_text()}    maxContext: 8192\n")
        assert (
            await running.told("the fleet file changed")
            == "the fleet file changed:\n  emulated: spec.server.maxContext 4096 -> 8192"
        )


async def test_a_second_fleet_on_the_state_directory_is_refused(tmp_path: Path) -> None:
    """It ends before it listens or starts anything, and says what to do; the first one goes on (C25)."""
    async with fleet(tmp_path, replicas=0) as running:
        await running.told("listening on")
        lines: list[str] = []
        with (
            LineSink(io.BytesIO()) as log,
            pytest.raises(StateDirectoryHeld, match="in use by a fleet that runs already"),
        ):
            await serve(running.settings, Interrupts(), lines.append, log)
        assert lines == []


async def test_keys_are_followed_too(tmp_path: Path) -> None:
    """A key holds as soon as its file holds it; a wrong keys file leaves the old keys in force."""
    keys = tmp_path / "keys.yaml"
    hash_of_secret = hashlib.sha256(b"secret").hexdigest()
    keys.write_text(f"keys: [{{name: a, tenant: a, sha256: '{'0' * 64}'}}]\n")
    async with (
        fleet(tmp_path, replicas=0, keys_file=keys) as running,
        await running.client(authorization="Bearer secret") as client,
    ):
        assert (await client.get("/v1/models")).status_code == httpx.codes.UNAUTHORIZED
        keys.write_text("keys: 1\n")
        await running.told("The keys stay as they were.")
        keys.write_text(f"keys: [{{name: a, tenant: a, sha256: '{hash_of_secret}'}}]\n")
        await running.told("the keys file changed")
        assert (await client.get("/v1/models")).status_code == httpx.codes.OK


async def test_the_first_signal_lets_a_request_finish(tmp_path: Path) -> None:
    """A request in progress gets its whole answer after the first signal."""
    async with fleet(tmp_path, replicas=1) as running, await running.client() as client:
        await running.told("Ready.")
        async with client.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True}) as answer:
            running.interrupts.received()
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert running.served is not None
        assert await running.served is True


async def test_the_second_signal_stops_at_once(tmp_path: Path) -> None:
    """A request that hangs does not keep the fleet from stopping, and its worker does not survive."""
    async with fleet(tmp_path, replicas=1) as running, await running.client() as client:
        await running.told("Ready.")
        hanging = {
            "model": "emulated",
            "messages": [{"role": "user", "content": "[[fault=hang]] Hello"}],
            "stream": True,
        }
        request = asyncio.create_task(client.post("/v1/chat/completions", json=hanging))
        while not await in_flight(running, client):
            pass
        running.interrupts.received()
        await running.told("a second signal stops at once")
        running.interrupts.received()
        assert running.served is not None
        assert await running.served is False
        assert '"error"' in (await request).text


async def in_flight(running: Running, client: httpx.AsyncClient) -> bool:
    """Whether a request is being executed, as the ops port tells."""
    found = re.search(r"on (http://\S+) for operators", await running.told("for operators"))
    assert found is not None
    observed = (await client.get(f"{found[1]}/fleet/observed")).json()
    return bool(observed["pools"][0]["inFlight"])


async def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    """A port in use ends the start with its address, and no worker was started."""
    listener = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(replicas=1, command=EMULATOR))
    settings = Settings(
        endpoint=EndpointSettings(
            fleet_file=Followed(file, lambda content: read_pools(content, "fleet.yaml")),
            keys_file=None,
            listen=LOOPBACK,
            ops_listen=Address("127.0.0.1", port),
        ),
        state_dir=tmp_path / "state",
        node="desk",
    )
    lines: list[str] = []
    with LineSink(io.BytesIO()) as log, pytest.raises(ListenFailed, match=str(port)):
        await serve(settings, Interrupts(), lines.append, log)
    assert lines == []
    listener.close()
    await listener.wait_closed()
