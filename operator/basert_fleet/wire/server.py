"""Where a gateway's agents dial in: WebSocket connections joined to links that outlive them."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from picows import WSUpgradeResponse, WSUpgradeResponseWithListener, ws_create_server

from basert_fleet.wire.channel import Loss
from basert_fleet.wire.codec import gateway_codec
from basert_fleet.wire.credentials import require_protected_listener
from basert_fleet.wire.handshake import Open, Opened, Refusal, common_version
from basert_fleet.wire.messages import ToAgent, ToGateway
from basert_fleet.wire.resumable import DEFAULT_LIMITS, LinkCounts, LinkLimits, ResumableLink
from basert_fleet.wire.websocket import WebSocketConnection, options

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from picows import WSListener, WSUpgradeRequest

    from basert_fleet.wire.link import Endpoint

_AgentLink: TypeAlias = ResumableLink[ToAgent, ToGateway]

NOBODY = ""
"""Whom the counts of connections concern that ended before an agent said who it is."""
COUNTED_NODES = 1000
"""How many nodes are counted apart; what further ones do counts as nobody's. A bound: names are what agents say."""
_NODE_NAME_LENGTH = 63
"""The longest name that is counted apart: that of a DNS label, as `--node` takes it."""
_REFUSED = b"This gateway does not know the token. Give the agent the one that the gateway was started with.\n"
_UPGRADE_SECONDS = 60.0
"""After no common version was found: somebody must upgrade first."""


class AgentServer:
    """Accepts agents. `accept` gives the receiver of each new link, such as `Fleet.new_session`.

    `check` is asked with each dialling agent's Authorization header (`credentials.token_check`); None lets everybody
    in, and is meant for loopback only.
    """

    def __init__(
        self,
        accept: Callable[[], Endpoint[ToAgent, ToGateway]],
        *,
        check: Callable[[str | None], bool] | None,
        ssl_context: ssl.SSLContext | None = None,
        limits: LinkLimits = DEFAULT_LIMITS,
    ) -> None:
        self._accept = accept
        self._check = check
        self._ssl_context = ssl_context
        self._limits = limits
        self._codec = gateway_codec()
        self._encoder = msgspec.msgpack.Encoder()
        self._opens = msgspec.msgpack.Decoder(Open)
        self._server: asyncio.Server | None = None
        self._connections: dict[WebSocketConnection, _AgentLink | None] = {}
        self._arriving: dict[WebSocketConnection, asyncio.TimerHandle] = {}
        self._links: dict[str, _AgentLink] = {}
        self._all_gone = asyncio.Event()
        self._counts = {NOBODY: LinkCounts()}

    @property
    def counts(self) -> Mapping[str, LinkCounts]:
        """What happened so far, by the node that an agent said it is."""
        return self._counts

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is a free one where 0 was asked for.

        Raises:
            UnprotectedAddress: anything but loopback needs TLS.
            OSError: the address cannot be had.
        """
        require_protected_listener(host, tls=self._ssl_context is not None)
        self._server = await ws_create_server(self._upgrade, host, port, ssl=self._ssl_context, **options(self._limits))
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and end every link; their receivers are told before this returns.

        A connection that does not take its goodbye in time is cut.
        """
        if self._server is None:
            return
        self._server.close()
        for link in list(self._links.values()):
            link.close()
        try:
            await asyncio.sleep(0)  # each link says goodbye in the next turn
            async with asyncio.timeout(self._limits.handshake_seconds):
                while self._connections:
                    self._all_gone.clear()
                    await self._all_gone.wait()
        except TimeoutError:
            pass
        finally:
            for connection in list(self._connections):
                connection.abort()
        await self._server.wait_closed()

    # --- Before there is a connection

    def _upgrade(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        if self._check is not None and not self._check(request.headers.get("Authorization")):
            self._counts[NOBODY].refused += 1
            response = WSUpgradeResponse.create_error_response(401, _REFUSED, {"WWW-Authenticate": "Bearer"})
            return WSUpgradeResponseWithListener(response, None)
        return WebSocketConnection(self)

    # --- Connections (their owner)

    def connected(self, connection: WebSocketConnection) -> None:
        """Wait for what the agent asks for, but not long."""
        self._connections[connection] = None
        timer = asyncio.get_running_loop().call_later(self._limits.handshake_seconds, self._turn_away, connection)
        self._arriving[connection] = timer

    def frame_received(self, connection: WebSocketConnection, data: bytes) -> None:
        """Pass a frame to its link, or take the first one."""
        link = self._connections.get(connection)
        if link is not None:
            link.frame_received(connection, data)
        elif connection in self._arriving:
            self._arriving.pop(connection).cancel()
            self._arrived(connection, data)

    def nonsense_received(self, connection: WebSocketConnection) -> None:
        """End the connection, and its link."""
        link = self._connections.get(connection)
        if link is not None:
            link.counts.malformed += 1
            link.lose(Loss.MALFORMED)
        else:
            self._counts[NOBODY].malformed += 1
        connection.abort()

    def writable_again(self, connection: WebSocketConnection) -> None:
        """Let the link go on writing."""
        link = self._connections.get(connection)
        if link is not None:
            link.connection_writable(connection)

    def disconnected(self, connection: WebSocketConnection) -> None:
        """Suspend the link that it carried."""
        link = self._connections.pop(connection, None)
        timer = self._arriving.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if link is not None:
            link.connection_lost(connection)
        if not self._connections:
            self._all_gone.set()

    # --- Which link a connection carries

    def _turn_away(self, connection: WebSocketConnection) -> None:
        self._counts[NOBODY].refused += 1
        self._arriving.pop(connection, None)
        connection.abort()

    def _arrived(self, connection: WebSocketConnection, data: bytes) -> None:
        try:
            asked = self._opens.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._counts[NOBODY].malformed += 1
            connection.abort()
            return
        version = common_version(asked)
        if isinstance(version, str):
            self._counts_of(asked.node).refused += 1
            refusal = Refusal(version, retry_after_seconds=_UPGRADE_SECONDS, version=True)
            connection.write(self._encoder.encode(refusal))
            connection.close()
            return
        link = self._links.get(asked.channel)
        if link is not None:
            self._resume(connection, link, asked, version)
        else:
            self._begin(connection, asked, version)

    def _resume(self, connection: WebSocketConnection, link: _AgentLink, asked: Open, version: int) -> None:
        self._connections[connection] = link
        opened = Opened(version, link.name, link.received_up_to, resumed=True)
        connection.write(self._encoder.encode(opened))
        link.resume(connection, asked.received)

    def _begin(self, connection: WebSocketConnection, asked: Open, version: int) -> None:
        before = self._links.get(asked.given_up)
        if before is not None:
            before.lose(Loss.FORGOTTEN)  # else its session would keep the node from coming back
        link: _AgentLink = ResumableLink(
            secrets.token_hex(16),
            self._accept(),
            self._codec,
            limits=self._limits,
            counts=self._counts_of(asked.node),
            over=self._over,
        )
        self._links[link.name] = link
        self._connections[connection] = link
        connection.write(self._encoder.encode(Opened(version, link.name)))
        link.open(connection)
        asyncio.get_running_loop().call_later(self._limits.handshake_seconds, self._expect_word, link)

    def _expect_word(self, link: _AgentLink) -> None:
        """Give up a link whose agent has not said a word: nobody knows whose it is, and nothing else would end it."""
        if link.received_up_to == 0 and self._links.get(link.name) is link:
            link.counts.refused += 1
            link.lose(Loss.CLOSED)

    def _counts_of(self, node: str) -> LinkCounts:
        has_room = len(self._counts) <= COUNTED_NODES and len(node) <= _NODE_NAME_LENGTH
        return self._counts.setdefault(node if has_room or node in self._counts else NOBODY, LinkCounts())

    def _over(self, link: _AgentLink) -> None:
        self._links.pop(link.name, None)
