"""Where a gateway's agents dial in, and what a person is told of them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from basert_fleet.cli.followed import Followed, read_file
from basert_fleet.cli.listen import Address, parse_address
from basert_fleet.cli.loop_errors import handshake_failures_to
from basert_fleet.cli.process import UsageRefused
from basert_fleet.cli.repeated import Repeated
from basert_fleet.cli.tokens import read_tokens
from basert_fleet.gateway.fleet import AgentNews
from basert_fleet.gateway.server import ListenFailed
from basert_fleet.telemetry.links import LinkCollector
from basert_fleet.wire.credentials import require_protected_listener, token_check
from basert_fleet.wire.server import AgentServer

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Callable, Mapping

    from basert_fleet.gateway.fleet import Fleet

WORDS: Mapping[AgentNews, str] = MappingProxyType(
    {
        AgentNews.CONNECTED: "is connected",
        AgentNews.OUT_OF_REACH: "is out of reach; what it runs goes on, and gets nothing new",
        AgentNews.BACK: "is back, and nothing was lost",
        AgentNews.GONE: "is gone; what it ran runs elsewhere, and its workers are left as they are",
        AgentNews.REFUSED: "is there twice; the second one was refused",
    }
)


@dataclass(frozen=True, slots=True)
class AgentsPortSettings:
    """Where agents dial in, and what they need to be let in."""

    listen: Address
    token_file: Followed[tuple[str, ...]] | None
    """None lets everybody on this machine in."""
    tls: ssl.SSLContext | None


def add_agents_port_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `agents_port_settings` reads."""
    parser.add_argument(
        "--agents-listen",
        metavar="HOST:PORT",
        type=parse_address,
        default="127.0.0.1:8081",
        help="where agents dial in (default %(default)s); other than loopback only with TLS and --agent-token-file",
    )
    parser.add_argument(
        "--agent-token-file",
        metavar="F",
        type=Path,
        help="tokens that agents may show, one a line; without it everybody on this machine may be an agent",
    )
    parser.add_argument(
        "--tls-cert",
        metavar="F",
        type=Path,
        help="certificate chain (PEM) of the agents' port; clients' TLS is for a proxy in front of --listen",
    )
    parser.add_argument("--tls-key", metavar="F", type=Path, help="its private key (PEM)")


def agents_port_settings(args: argparse.Namespace) -> AgentsPortSettings:
    """Read the files that the command line names.

    Raises:
        FleetError: one cannot be used, or agents of other machines would be let in without TLS or a token.
    """
    listen: Address = args.agents_listen
    tokens: Path | None = args.agent_token_file
    tls = _tls(args.tls_cert, args.tls_key)
    require_protected_listener(listen.host, tls=tls is not None)
    if tokens is None and not listen.is_loopback:
        raise UsageRefused(f"--agents-listen {listen} is open to other machines: give --agent-token-file")
    token_file = None if tokens is None else Followed(tokens, lambda content: read_tokens(content, str(tokens)))
    return AgentsPortSettings(listen, token_file, tls)


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageRefused("--tls-cert and --tls-key belong together: give both")
    for file in (certificate, key):
        read_file(file)  # load_cert_chain would not say which of the two it cannot read
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # what is wrong with the files' content is one, too
        raise UsageRefused(_unusable(certificate, key, error)) from error
    return context


def _unusable(certificate: Path, key: Path, error: OSError) -> str:
    """Say which of the two files is wrong."""
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"cannot use {key}: it is not the key of the certificate in {certificate}"
    try:
        ssl.create_default_context(cafile=certificate)
    except OSError:
        return f"cannot use {certificate}: it should hold a certificate chain (PEM)"
    return f"cannot use {key}: it should hold the certificate's private key (PEM): {error}"


def _wrong_tokens(times: int) -> str:
    often = "" if times == 1 else f" {times} times"
    return (
        f"an agent was refused{often}: it showed no token, or one that is not in --agent-token-file. "
        "Compare that with the agent's --token-file."
    )


def _cut_handshakes(times: int) -> str:
    connections = "a connection" if times == 1 else f"{times} connections"
    return (
        f"{connections} to the agents' port ended within the TLS handshake: an agent that does not trust --tls-cert, "
        "or no agent"
    )


class AgentsPort:
    """Joins dialling agents to a fleet."""

    def __init__(self, settings: AgentsPortSettings, fleet: Fleet, say: Callable[[str], None]) -> None:
        self._settings, self._fleet, self._say = settings, fleet, say
        self._tokens = settings.token_file.first if settings.token_file is not None else ()
        self._accepts = token_check(lambda: self._tokens)
        self._wrong_tokens = Repeated(_wrong_tokens, say)
        self._cut_handshakes = Repeated(_cut_handshakes, say)
        self._last_news: dict[str, AgentNews] = {}
        self._server = AgentServer(
            fleet.new_session,
            check=self._check if settings.token_file is not None else None,
            ssl_context=settings.tls,
        )
        fleet.metrics.registry.register(LinkCollector(lambda: self._server.counts))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Let agents in within the block; afterwards all links are closed, and their agents' workers left as they are.

        Raises:
            ListenFailed: the port cannot be listened on.
        """
        listen = self._settings.listen
        try:
            port = await self._server.start(listen.host, listen.port)
        except OSError as error:
            raise ListenFailed(listen.host, listen.port, error) from error
        try:
            self._fleet.on_agent.append(self._tell)
            self._say(self._where(Address(listen.host, port)))
            with handshake_failures_to(self._cut_handshakes.happened):
                yield
        finally:
            self._fleet.on_agent.remove(self._tell)  # that the links end now is no news
            await self._server.close()

    def _where(self, address: Address) -> str:
        scheme = "ws" if self._settings.tls is None else "wss"
        if address.is_wildcard:
            return f"agents may dial port {address.port} of this machine ({scheme})"
        return f"agents dial {scheme}://{address}"

    def take_tokens(self, tokens: tuple[str, ...]) -> None:
        """Let in who shows one of these from now on; agents that are connected stay."""
        self._tokens = tokens
        self._say("the agents' token file changed and holds from now on")

    def look(self) -> None:
        """Tell of agents that were turned away, at once and then now and again."""
        now = asyncio.get_running_loop().time()
        self._wrong_tokens.look(now)
        self._cut_handshakes.look(now)

    def _check(self, authorization: str | None) -> bool:
        accepted = self._accepts(authorization)
        if not accepted:
            self._wrong_tokens.happened()
        return accepted

    def _tell(self, node: str, news: AgentNews) -> None:
        """Tell what is new; a second agent that dials again and again is told once."""
        if self._last_news.get(node) is not news:
            self._say(f"node {node} {WORDS[news]}")
        self._last_news[node] = news
