"""Gateway, planner and agent in one process: what `basert-fleet up` runs, and nothing that decides anything.

The order matters: the state directory (C25) and the ports first (the commonest mistakes are found before a model
loads), requests may wait while workers
start (C28), and at the end requests first, then workers, then ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from basert_fleet.agent.agent import Agent
from basert_fleet.agent.state import StateDirectory
from basert_fleet.cli.changes import changes, described
from basert_fleet.cli.followed import Changed, Followed, Refused
from basert_fleet.cli.listen import Address
from basert_fleet.cli.progress import Progress
from basert_fleet.gateway.app import ClientApi
from basert_fleet.gateway.auth import Keys
from basert_fleet.gateway.fleet import Fleet
from basert_fleet.gateway.ops import OpsApi
from basert_fleet.gateway.server import HttpServer
from basert_fleet.telemetry.logs import make_logger
from basert_fleet.wire.memory import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from basert_fleet.cli.signals import Interrupts
    from basert_fleet.core.api import BasertPool
    from basert_fleet.telemetry.line_sink import LineSink

POLL_SECONDS = 1.0
"""Chosen: an edit takes effect within two seconds, and looking costs one read of a small file."""
DRAIN_SECONDS = 60.0
"""How long requests may take to finish after the first signal; basert-serve's own --drain-timeout default."""
STOP_SECONDS = 20.0
"""Chosen: how long idle workers may take to exit before they are killed."""
CUT_SECONDS = 2.0
"""Chosen: for the last bytes of finished responses, before the ports are closed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one standalone fleet runs with."""

    fleet_file: Followed[tuple[BasertPool, ...]]
    keys_file: Followed[Keys] | None
    listen: Address
    ops_listen: Address
    state_dir: Path
    node: str
    """How this machine is called in status, metrics and logs."""


async def serve(settings: Settings, interrupts: Interrupts, say: Callable[[str], None], lines: LineSink) -> bool:
    """Run the fleet until the first signal, then drain; say whether everything ended in its own time.

    `say` tells a person how it goes, `lines` takes the log; neither may wait or fail. However it ends, no worker
    process that it started is left.

    Raises:
        StateDirectoryHeld: another fleet runs on the state directory.
        StateUnusable: the state directory cannot be used.
        ListenFailed: a port cannot be listened on.
    """
    state = StateDirectory(settings.state_dir)
    with state.held():
        return await _serve(settings, state, interrupts, say, lines)


async def _serve(
    settings: Settings, state: StateDirectory, interrupts: Interrupts, say: Callable[[str], None], lines: LineSink
) -> bool:
    log = make_logger(lines)
    agent = Agent(settings.node, state, version=version("basert-fleet"), log=log)
    fleet = Fleet(log)
    lines.on_dropped.append(fleet.metrics.log_lines_dropped.inc)
    standalone = _Standalone(settings, fleet, say)
    async with _listening(settings, fleet, standalone.keys, say) as url:
        standalone.url = url
        try:
            fleet.apply(settings.fleet_file.first)
            _join(fleet, agent)
            await standalone.run_until(interrupts.stop)
            say("stopping: requests in progress may finish; a second signal stops at once")
            return bool(await interrupts.unless_at_once(_wind_down(fleet, agent)))
        finally:
            await agent.close()
            fleet.close()


class _Standalone:
    """What follows the files and tells a person how it goes."""

    def __init__(self, settings: Settings, fleet: Fleet, say: Callable[[str], None]) -> None:
        self._settings, self._fleet, self._say = settings, fleet, say
        self._pools = settings.fleet_file.first
        self._keys = settings.keys_file.first if settings.keys_file is not None else Keys()
        self._progress = Progress(say, self._tell_ready)
        self.url = ""
        fleet.on_phase.append(self._progress.worker)

    def keys(self) -> Keys:
        """Return the keys that hold now."""
        return self._keys

    async def run_until(self, stop: asyncio.Event) -> None:
        """Follow the files until told to stop."""
        while not stop.is_set():
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await stop.wait()

    async def _look(self) -> None:
        """Look once; reading and parsing happen beside the loop, which serves requests meanwhile."""
        match await asyncio.to_thread(self._settings.fleet_file.poll):
            case Changed(pools):
                self._apply(pools)
            case Refused(message):
                self._say(f"{message}\nThe fleet goes on as it was.")
        if self._settings.keys_file is not None:
            match await asyncio.to_thread(self._settings.keys_file.poll):
                case Changed(keys):
                    self._keys = keys
                    self._say("the keys file changed and holds from now on")
                case Refused(message):
                    self._say(f"{message}\nThe keys stay as they were.")
        self._progress.pools(self._fleet.observed()["pools"])

    def _apply(self, pools: tuple[BasertPool, ...]) -> None:
        """Take over what differs and tell it; an edit of comments is no change."""
        told = changes(self._pools, pools)
        if told:
            self._pools = pools
            self._fleet.apply(pools)
            self._say("\n  ".join(("the fleet file changed:", *told)))

    def _tell_ready(self, pool: str) -> None:
        model = next(model for model, owner in self._fleet.models().items() if owner == pool)
        key = "" if self._settings.keys_file is None else " -H 'Authorization: Bearer YOUR-KEY'"
        body = shlex.quote(json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}))
        self._say(
            f"Ready. Base URL for OpenAI clients: {self.url}/v1\n"
            f"  curl {self.url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {body}"
        )


@contextlib.asynccontextmanager
async def _listening(
    settings: Settings, fleet: Fleet, keys: Callable[[], Keys], say: Callable[[str], None]
) -> AsyncIterator[str]:
    """Serve clients and operators within the block; gives the clients' URL."""
    async with contextlib.AsyncExitStack() as stack:
        client = await _start(ClientApi(fleet, keys), settings.listen)
        stack.push_async_callback(client.stop, CUT_SECONDS)
        ops = await _start(OpsApi(fleet), settings.ops_listen)
        stack.push_async_callback(ops.stop, CUT_SECONDS)
        url = Address(settings.listen.host, client.port).url
        say(f"listening on {url} for clients, on {Address(settings.ops_listen.host, ops.port).url} for operators")
        pools = ", ".join(map(described, settings.fleet_file.first))
        say(f"starting {pools}; logs in {settings.state_dir / 'logs'}")
        yield url


async def _start(app: ClientApi | OpsApi, address: Address) -> HttpServer:
    # Our applications take any mapping as a scope; uvicorn's types ask for its own TypedDicts.
    return await HttpServer.start(app, address.host, address.port)  # type: ignore[arg-type] # see above


def _join(fleet: Fleet, agent: Agent) -> None:
    session = fleet.new_session()
    to_gateway, to_agent = connect(agent, session)
    session.bind(to_agent)
    agent.bind(to_gateway)


async def _wind_down(fleet: Fleet, agent: Agent) -> bool:
    finished = await fleet.drain(DRAIN_SECONDS)
    await agent.drain(STOP_SECONDS)
    return finished
