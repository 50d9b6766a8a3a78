"""How an agent comes by its link: dialling a gateway again and again, without a rush after a common failure."""

from __future__ import annotations

import asyncio
import random
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from picows import WSError, WSHandshakeError, ws_connect

from basert_fleet.core.errors import FleetError
from basert_fleet.wire.channel import Loss
from basert_fleet.wire.codec import agent_codec
from basert_fleet.wire.credentials import authorization, require_protected_url
from basert_fleet.wire.handshake import PROTOCOL_MAX, PROTOCOL_MIN, Answer, Open, Opened, Refusal
from basert_fleet.wire.messages import ToAgent, ToGateway
from basert_fleet.wire.resumable import DEFAULT_LIMITS, LinkCounts, LinkLimits, ResumableLink
from basert_fleet.wire.websocket import WebSocketConnection, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.wire.link import Endpoint

FIRST_PAUSE_SECONDS = 0.2
"""The longest pause before the first attempt after a failure; it doubles with each further one."""
LONGEST_PAUSE_SECONDS = 5.0
"""What it grows to. A gateway that comes back is to have all slots again within 10 s: the other half is for its own
start, and for what an agent of a thousand workers has to say."""
_UNAUTHORIZED = 401

_GatewayLink: TypeAlias = ResumableLink[ToGateway, ToAgent]


class DialFailed(FleetError):
    """A gateway could not be reached, or did not take this agent; it is dialled again."""

    code = "dial_failed"

    def __init__(self, message: str, *, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class TokenRefused(DialFailed):
    """The gateway knows no such token. Dialled again slowly: somebody must change a file first."""

    code = "token_refused"


class VersionRefused(DialFailed):
    """The two ends speak no common protocol version; the message tells which one to upgrade."""

    code = "version_refused"


@dataclass(slots=True)
class Pauses:
    """How long to wait before the next attempt: a random span under a bound that doubles (full jitter).

    Agents that lost their gateway at one moment so come back spread out, and none of them waits long for nothing.
    """

    draw: Callable[[float, float], float]
    _bound: float = FIRST_PAUSE_SECONDS

    def next(self, at_least: float = 0.0) -> float:
        """Return the next pause; where the gateway asked for one, that long and up to twice as long."""
        bound, self._bound = self._bound, min(2 * self._bound, LONGEST_PAUSE_SECONDS)
        return self.draw(at_least, max(bound, 2 * at_least))

    def reset(self) -> None:
        """Begin anew, after a connection that held."""
        self._bound = FIRST_PAUSE_SECONDS


async def dial(
    url: str,
    endpoint: Endpoint[ToGateway, ToAgent],
    *,
    node: str,
    token: Callable[[], str] | None = None,
    ca_file: str | None = None,
    failed: Callable[[DialFailed], None],
    draw: Callable[[float, float], float] = random.uniform,
    limits: LinkLimits = DEFAULT_LIMITS,
    counts: LinkCounts | None = None,
) -> None:
    """Keep one link to a gateway until cancelled; the link is then closed and `link_lost` told.

    `endpoint` (an Agent) is bound to each new link; it hears `link_lost` before the next one. `token` is called for
    each attempt; an OSError or FleetError of it is a failed attempt. `ca_file` replaces the system's authorities.
    `failed` is told of every attempt that came to nothing. `draw` is the jitter, so that tests can choose it; `counts`
    is added to.

    Raises:
        UnprotectedAddress: the URL is neither `wss://` nor loopback. Told at once, before anything is sent.
    """
    require_protected_url(url)
    dialler = _Dialler(
        url,
        endpoint,
        node=node,
        token=token,
        context=ssl.create_default_context(cafile=ca_file) if url.startswith("wss:") else None,
        limits=limits,
        counts=counts if counts is not None else LinkCounts(),
    )
    pauses = Pauses(draw)
    try:
        while True:
            pause = 0.0
            try:
                if await dialler.connect_once() >= LONGEST_PAUSE_SECONDS:
                    pauses.reset()
            except DialFailed as error:
                failed(error)
                pause = error.retry_after_seconds
            await asyncio.sleep(pauses.next(pause))
    finally:
        await dialler.close()


class _Dialler:
    """One agent's end: at most one link, and at most one connection."""

    def __init__(
        self,
        url: str,
        endpoint: Endpoint[ToGateway, ToAgent],
        *,
        node: str,
        token: Callable[[], str] | None,
        context: ssl.SSLContext | None,
        limits: LinkLimits,
        counts: LinkCounts,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._url, self._endpoint, self._node, self._token = url, endpoint, node, token
        self._context, self._limits, self._counts = context, limits, counts
        self._codec = agent_codec()
        self._encoder = msgspec.msgpack.Encoder()
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._link: _GatewayLink | None = None
        self._given_up = ""
        self._connection: WebSocketConnection | None = None
        self._decided = asyncio.Event()
        self._failure: DialFailed | None = None

    async def connect_once(self) -> float:
        """Make a connection and wait for its end; return how many seconds it carried the link.

        Cancelled while it carries the link, it leaves the connection to `close`; cancelled within the handshake of
        WebSocket, to the time limit of that.

        Raises:
            DialFailed: it never came to carry the link, or the gateway broke the protocol of WebSocket.
        """
        self._decided, self._failure = asyncio.Event(), None
        connection = self._connection = WebSocketConnection(self)
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                await self._connect(connection)
                await self._decided.wait()
        except TimeoutError as error:
            connection.abort()
            raise DialFailed(
                f"{self._url} did not answer within {self._limits.handshake_seconds:g} s. Is it a gateway's "
                "address for agents?"
            ) from error
        except BaseException:
            if not self._decided.is_set():
                connection.abort()
            raise
        since = self._loop.time()
        await self._wait_for_its_end(connection)
        if self._failure is not None:
            raise self._failure
        return self._loop.time() - since

    async def close(self) -> None:
        """Close the link, if there is one; its receiver is told before this returns, and the connection is over."""
        if self._link is not None:
            self._link.close()
            await asyncio.sleep(0)  # it says goodbye in the next turn
        if self._connection is not None:
            try:
                async with asyncio.timeout(self._limits.handshake_seconds):
                    await self._wait_for_its_end(self._connection)
            except (TimeoutError, DialFailed):
                return  # it ends either way; nobody is left to be told how
            finally:
                self._connection.abort()

    async def _connect(self, connection: WebSocketConnection) -> None:
        try:
            await ws_connect(
                lambda: connection,
                self._url,
                ssl_context=self._context,
                extra_headers=self._headers(),
                max_redirects=0,  # it would take the token elsewhere
                **options(self._limits),
            )
        except WSHandshakeError as error:
            raise _refused(self._url, error) from error
        except TimeoutError:
            raise
        except ssl.SSLCertVerificationError as error:
            raise DialFailed(
                f"This agent does not trust the gateway's certificate at {self._url} ({error.verify_message}). Give "
                "--ca, or dial the name that the certificate holds."
            ) from error
        except (OSError, WSError) as error:
            raise DialFailed(f"{self._url} cannot be reached: {error}") from error
        if not connection.made:  # picows tells the end of a connection within its handshake in no other way
            raise DialFailed(f"{self._url} ended the connection within its handshake.")

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            return {"Authorization": authorization(self._token())}
        except (OSError, FleetError) as error:
            raise DialFailed(f"The agent's token cannot be read: {error}") from error

    async def _wait_for_its_end(self, connection: WebSocketConnection) -> None:
        try:
            await connection.wait_for_its_end()
        except WSError as error:
            raise DialFailed(f"{self._url} broke the WebSocket protocol: {error}") from error

    # --- The connection (its owner)

    def connected(self, connection: WebSocketConnection) -> None:
        """Ask for the link to go on, or for a new one."""
        link = self._link
        asked = Open(
            self._node,
            PROTOCOL_MIN,
            PROTOCOL_MAX,
            channel=link.name if link is not None else "",
            received=link.received_up_to if link is not None else 0,
            given_up=self._given_up,
        )
        connection.write(self._encoder.encode(asked))

    def frame_received(self, connection: WebSocketConnection, data: bytes) -> None:
        """Pass a frame to the link, or take the answer."""
        if connection is not self._connection:
            return
        if self._decided.is_set():
            if self._link is not None:
                self._link.frame_received(connection, data)
            return
        try:
            answer = self._answers.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(connection, DialFailed(f"{self._url} does not answer as a gateway: {error}"))
            return
        if isinstance(answer, Refusal):
            self._fail(connection, _refusal(answer))
        else:
            self._opened(connection, answer)

    def nonsense_received(self, connection: WebSocketConnection) -> None:
        """End the connection, and the link."""
        self._counts.malformed += 1
        if self._link is not None:
            self._link.lose(Loss.MALFORMED)
        connection.abort()

    def writable_again(self, connection: WebSocketConnection) -> None:
        """Let the link go on writing."""
        if self._link is not None:
            self._link.connection_writable(connection)

    def disconnected(self, connection: WebSocketConnection) -> None:
        """Suspend the link."""
        if self._link is not None:
            self._link.connection_lost(connection)
        if connection is self._connection and not self._decided.is_set():
            self._fail(connection, DialFailed(f"{self._url} ended the connection before it carried a link."))

    def _fail(self, connection: WebSocketConnection, failure: DialFailed) -> None:
        self._failure = failure
        self._decided.set()
        connection.abort()

    def _opened(self, connection: WebSocketConnection, opened: Opened) -> None:
        link = self._link
        if opened.resumed and (link is None or link.name != opened.channel):
            self._fail(connection, DialFailed("The link was given up while a connection for it was made."))
            return
        self._decided.set()
        if opened.resumed and link is not None:
            link.resume(connection, opened.received)
            return
        if link is not None:
            link.lose(Loss.FORGOTTEN)
        self._link = ResumableLink(
            opened.channel,
            self._endpoint,
            self._codec,
            limits=self._limits,
            counts=self._counts,
            over=self._over,
        )
        self._given_up = ""
        self._link.open(connection)

    def _over(self, link: _GatewayLink) -> None:
        self._link = None
        self._given_up = link.name


def _refused(url: str, error: WSHandshakeError) -> DialFailed:
    response = error.response
    if response is None:
        return DialFailed(f"{url} does not answer as a gateway: {error}")
    if response.status == _UNAUTHORIZED:
        return TokenRefused(
            f"{url} does not know this agent's token. Compare the agent's token file with the gateway's.",
            retry_after_seconds=LONGEST_PAUSE_SECONDS,
        )
    return DialFailed(f"{url} answered with status {int(response.status)}. Is it a gateway's address for agents?")


def _refusal(refusal: Refusal) -> DialFailed:
    kind = VersionRefused if refusal.version else DialFailed
    return kind(refusal.reason, retry_after_seconds=refusal.retry_after_seconds)
