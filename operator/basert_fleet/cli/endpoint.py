"""The endpoint of one fleet, wherever its agents are: its two HTTP ports, and the files that it follows.

What `up` and `gateway` have in common; each adds where its agents come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from basert_fleet.cli.changes import changes
from basert_fleet.cli.fleetfile import read_pools
from basert_fleet.cli.followed import Changed, Followed, Refused
from basert_fleet.cli.listen import Address, parse_address
from basert_fleet.cli.process import UsageRefused
from basert_fleet.cli.progress import Progress
from basert_fleet.cli.repeated import Repeated
from basert_fleet.cli.stray_websockets import stray_websockets_to
from basert_fleet.gateway.app import ClientApi
from basert_fleet.gateway.auth import Keys, read_keys
from basert_fleet.gateway.ops import OpsApi
from basert_fleet.gateway.server import HttpServer

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Callable, Collection

    from basert_fleet.core.api import BasertPool
    from basert_fleet.gateway.fleet import Fleet

Parsed = TypeVar("Parsed")

POLL_SECONDS = 1.0
"""Chosen: an edit takes effect within two seconds, and looking costs one read of a small file."""
DRAIN_SECONDS = 60.0
"""How long requests may take to finish after the first signal; basert-serve's own --drain-timeout default."""
OPS_CONNECTIONS = 32
"""Chosen: some scrapers and people. They come out of the descriptors that the clients' port leaves to the fleet."""
CUT_SECONDS = 2.0
"""Chosen: for the last bytes of finished responses, before the ports are closed."""
STRAY_WEBSOCKET = "a WebSocket client came to a port that speaks HTTP only; agents dial the port of --agents-listen"
STOPPING = "stopping: requests in progress may finish; a second signal stops at once"


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """What the endpoint is served from."""

    fleet_file: Followed[tuple[BasertPool, ...]]
    keys_file: Followed[Keys] | None
    listen: Address
    ops_listen: Address


@dataclass(frozen=True, slots=True)
class Watch(Generic[Parsed]):
    """A file, and what its changes lead to."""

    file: Followed[Parsed]
    apply: Callable[[Parsed], None]
    otherwise: str
    """For a person: what holds while the file is wrong."""


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `endpoint_settings` reads."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the fleet file (YAML)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=parse_address,
        default="127.0.0.1:8080",
        help="where clients connect (default %(default)s); other than loopback only with --keys-file",
    )
    parser.add_argument(
        "--ops-listen",
        metavar="HOST:PORT",
        type=parse_address,
        default="127.0.0.1:9090",
        help="where /metrics, /healthz, /readyz and /fleet/observed are served, without keys (default %(default)s)",
    )
    parser.add_argument(
        "--keys-file", metavar="F", type=Path, help="API keys (YAML); without it everybody on this machine may ask"
    )


def endpoint_settings(
    args: argparse.Namespace, read: Callable[[bytes, str], tuple[BasertPool, ...]] = read_pools
) -> EndpointSettings:
    """Read the files that the command line names; `read` returns the pools of what its name says is a fleet file.

    Raises:
        FleetError: one cannot be used, or other machines would be served without keys.
    """
    file: Path = args.file
    keys: Path | None = args.keys_file
    if keys is None and not args.listen.is_loopback:
        raise UsageRefused(
            f"--listen {args.listen} is open to other machines: give --keys-file, or listen on 127.0.0.1"
        )
    return EndpointSettings(
        fleet_file=Followed(file, lambda content: read(content, str(file))),
        keys_file=None if keys is None else Followed(keys, lambda content: read_keys(content, str(keys))),
        listen=args.listen,
        ops_listen=args.ops_listen,
    )


def name_of_state(file: Path) -> str:
    """Return the name of this fleet file's state: one per file, whatever the way to it."""
    whole = file.resolve()
    return f"{whole.stem}-{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"


class FleetEndpoint:
    """Serves one fleet's clients, follows its files, and tells a person how it goes."""

    def __init__(
        self,
        settings: EndpointSettings,
        fleet: Fleet,
        say: Callable[[str], None],
        *,
        attached: Collection[str] = (),
    ) -> None:
        """`attached` are the workers that are servers which something else runs."""
        self._settings, self._fleet, self._say = settings, fleet, say
        self._pools = settings.fleet_file.first
        self._keys = settings.keys_file.first if settings.keys_file is not None else Keys()
        self._progress = Progress(say, self._tell_ready, attached)
        self._stray_websockets = Repeated(lambda _times: STRAY_WEBSOCKET, say)
        self._url = ""
        self._watches: list[Watch[Any]] = []
        self.on_look: list[Callable[[], None]] = []
        """Called each time the files have been looked at."""
        fleet.on_phase.append(self._progress.worker)
        self.follow(settings.fleet_file, self._apply, "The fleet goes on as it was.")
        if settings.keys_file is not None:
            self.follow(settings.keys_file, self._take_keys, "The keys stay as they were.")

    def follow(self, file: Followed[Parsed], apply: Callable[[Parsed], None], otherwise: str) -> None:
        """Follow one more file; `otherwise` tells what holds while it is wrong."""
        self._watches.append(Watch(file, apply, otherwise))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve clients and operators within the block.

        Raises:
            ListenFailed: a port cannot be listened on.
        """
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(stray_websockets_to(self._stray_websockets.happened))
            api = ClientApi(self._fleet, lambda: self._keys)
            client = await HttpServer.start(api, settings.listen.host, settings.listen.port, refused=api.refused)
            stack.push_async_callback(client.stop, CUT_SECONDS)
            ops = await HttpServer.start(
                OpsApi(self._fleet), settings.ops_listen.host, settings.ops_listen.port, connections=OPS_CONNECTIONS
            )
            stack.push_async_callback(ops.stop, CUT_SECONDS)
            self._url = Address(settings.listen.host, client.port).url
            operators = Address(settings.ops_listen.host, ops.port).url
            self._say(f"listening on {self._url} for clients, on {operators} for operators")
            yield

    async def run_until(self, stop: asyncio.Event) -> None:
        """Follow the files until told to stop."""
        while not stop.is_set():
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await stop.wait()

    async def _look(self) -> None:
        """Look once; reading and parsing happen beside the loop, which serves requests meanwhile."""
        for watch in self._watches:
            match await asyncio.to_thread(watch.file.poll):
                case Changed(value):
                    watch.apply(value)
                case Refused(message):
                    self._say(f"{message}\n{watch.otherwise}")
        self._progress.pools(self._fleet.observed()["pools"])
        self._stray_websockets.look(asyncio.get_running_loop().time())
        for callback in self.on_look:
            callback()

    def _take_keys(self, keys: Keys) -> None:
        self._keys = keys
        self._say("the keys file changed and holds from now on")

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
            f"Ready. Base URL for OpenAI clients: {self._url}/v1\n"
            f"  curl {self._url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {body}"
        )
