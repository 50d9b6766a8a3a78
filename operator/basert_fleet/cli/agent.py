"""`basert-fleet agent URL`: the workers of this machine, for a gateway that it dials."""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import ssl
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from basert_fleet.agent.agent import Agent
from basert_fleet.agent.state import StateDirectory
from basert_fleet.cli.followed import read_file
from basert_fleet.cli.kept import KeptWorkers
from basert_fleet.cli.process import UsageRefused, node_name, run_until_signal, state_home
from basert_fleet.cli.progress import Progress
from basert_fleet.cli.tokens import read_token, warn_if_exposed
from basert_fleet.core.api import DNS_LABEL
from basert_fleet.telemetry.logs import make_logger
from basert_fleet.wire.credentials import require_protected_url
from basert_fleet.wire.dialling import dial
from basert_fleet.wire.messages import Rejected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from basert_fleet.cli.exits import Exit
    from basert_fleet.cli.signals import Interrupts
    from basert_fleet.telemetry.line_sink import LineSink
    from basert_fleet.wire.dialling import DialFailed
    from basert_fleet.wire.link import Link
    from basert_fleet.wire.messages import ToAgent, ToGateway

SUMMARY = "run this machine's workers for a gateway"
DESCRIPTION = """\
Dials the gateway at URL (wss://HOST:PORT, or ws:// to this machine) and runs the workers that it asks for. They run on
while the gateway is away, and are started again after a restart of the agent. The first SIGTERM or Ctrl-C lets running
requests finish (at most a minute) and stops the workers, a second one stops at once.
"""
DRAIN_SECONDS = 60.0
"""How long running requests may take to finish after the first signal; basert-serve's own --drain-timeout default."""
LONGEST_NODE = 63
BROKEN = "the connection broke; workers and running requests go on"


@dataclass(frozen=True, slots=True)
class Settings:
    """What one agent runs with."""

    url: str
    node: str
    token_file: Path | None
    ca_file: Path | None
    state_dir: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("url", metavar="URL", help="the gateway's address for agents, such as wss://fleet.example:8081")
    parser.add_argument(
        "--node",
        metavar="NAME",
        type=label,
        default=node_name(socket.gethostname()),
        help="how this machine is called in the fleet, where no other has this name (default %(default)s)",
    )
    parser.add_argument(
        "--token-file", metavar="F", type=Path, help="the token that the gateway asks for; read anew for each dial"
    )
    parser.add_argument(
        "--ca", metavar="F", type=Path, help="certificates (PEM) to trust for wss:// instead of the system's"
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="locks, process records, worker logs and the last desired state "
        "(default ~/.local/state/basert-fleet/agent-NAME)",
    )


def run(args: argparse.Namespace) -> Exit:
    """Run the command."""

    def prepare(lines: LineSink) -> Callable[[Interrupts], Awaitable[bool]]:
        settings = _settings(args)
        warn_if_exposed(settings.token_file, lines.say)
        return lambda interrupts: serve(settings, interrupts, lines)

    return run_until_signal(prepare)


def _settings(args: argparse.Namespace) -> Settings:
    """Read the files that the command line names, to find a wrong one now and not at the first dial."""
    require_protected_url(args.url)
    if args.token_file is not None:
        _token(args.token_file)
    if args.ca is not None:
        try:
            ssl.create_default_context(cafile=args.ca)
        except OSError as error:  # what is wrong with its content is one, too
            raise UsageRefused(f"cannot use {args.ca}: {error}") from error
    return Settings(
        url=args.url,
        node=args.node,
        token_file=args.token_file,
        ca_file=args.ca,
        state_dir=args.state_dir or state_home(f"agent-{args.node}"),
    )


def _token(path: Path) -> str:
    return read_token(read_file(path), str(path))


def label(text: str) -> str:
    """Read a node's name; an argparse type.

    Raises:
        argparse.ArgumentTypeError: metrics and Kubernetes would not take it.
    """
    if len(text) > LONGEST_NODE or re.fullmatch(DNS_LABEL, text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} should be lower-case letters, digits and -, at most {LONGEST_NODE}")
    return text


async def serve(settings: Settings, interrupts: Interrupts, lines: LineSink) -> bool:
    """Run the workers until the first signal, then drain; say whether all requests ended in time.

    However it ends, no worker process that it started is left.

    Raises:
        StateDirectoryHeld: another agent runs on the state directory.
        StateUnusable: the state directory cannot be used.
    """
    state = StateDirectory(settings.state_dir)
    with state.held():
        kept = KeptWorkers(state.directory / "desired.json", lines.say)
        agent = Agent(settings.node, state, version=version("basert-fleet"), log=make_logger(lines), keep=kept.save)
        agent.on_status.append(Progress(lines.say, lambda _pool: None).worker)
        lines.say(f"node {settings.node}; worker logs in {state.logs}")
        agent.restore(worker.model_dump_json(by_alias=True).encode() for worker in kept.load())
        return await _serve(settings, agent, interrupts, lines.say)


async def _serve(settings: Settings, agent: Agent, interrupts: Interrupts, say: Callable[[str], None]) -> bool:
    told = ToldLink(agent, settings.url, say)
    token_file = settings.token_file
    dialling = asyncio.create_task(
        dial(
            settings.url,
            told,
            node=settings.node,
            token=None if token_file is None else lambda: _token(token_file),
            ca_file=None if settings.ca_file is None else str(settings.ca_file),
            failed=told.failed,
        ),
        name="dial",
    )
    stop = asyncio.create_task(interrupts.stop.wait(), name="first signal")
    try:
        await asyncio.wait({dialling, stop}, return_when=asyncio.FIRST_COMPLETED)
        if dialling.done():
            dialling.result()  # it ends by a bug only, which it raises here
        told.stop_telling()
        say("stopping: requests in progress may finish; a second signal stops at once")
        return bool(await interrupts.unless_at_once(agent.drain(DRAIN_SECONDS)))
    finally:
        await agent.close()
        for task in (dialling, stop):
            task.cancel()
        await asyncio.wait({dialling, stop})


class ToldLink:
    """The agent's end of its links; tells a person what becomes of them. What is told once is not told again."""

    def __init__(self, agent: Agent, url: str, say: Callable[[str], None]) -> None:
        self._agent, self._url, self._say = agent, url, say
        self._trouble = ""
        """Why there is no link, as it was told last; empty while there is one."""
        self._is_stopping = False

    def stop_telling(self) -> None:
        """Tell nothing more: the agent stops, and ends the link itself."""
        self._is_stopping = True

    def failed(self, failure: DialFailed) -> None:
        """Take in an attempt that came to nothing."""
        self._tell_trouble(str(failure))

    def bind(self, link: Link[ToGateway]) -> None:
        """Pass a new link on; whether the gateway takes the agent is seen by its first message."""
        self._trouble = self._trouble or "not connected"
        self._agent.bind(link)

    def message_received(self, message: ToAgent) -> None:
        """Pass a message on."""
        if isinstance(message, Rejected):
            self._tell_trouble(f"{self._url} does not take this agent: {message.reason}")
        elif self._trouble:
            self._trouble = ""
            self._say(f"connected to {self._url}")
        self._agent.message_received(message)

    def link_suspended(self) -> None:
        """Tell that there is no connection."""
        self._tell_trouble(BROKEN)
        self._agent.link_suspended()

    def link_resumed(self) -> None:
        """Tell that there is one again."""
        self._trouble = ""
        self._say("the connection is back, and nothing was lost")
        self._agent.link_resumed()

    def link_lost(self) -> None:
        """Tell that running requests are given up."""
        if self._trouble in {"", BROKEN}:
            self._tell_trouble("the gateway is gone; workers go on, running requests are given up")
        self._agent.link_lost()

    def _tell_trouble(self, trouble: str) -> None:
        if trouble != self._trouble and not self._is_stopping:
            self._trouble = trouble
            self._say(trouble)
