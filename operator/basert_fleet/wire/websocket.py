"""A WebSocket connection as links see it: whole binary frames, a bounded write buffer, pings of its own."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol, TypedDict

from picows import WSListener, WSMsgType

from basert_fleet.wire.codec import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from picows import WSFrame, WSTransport

    from basert_fleet.wire.resumable import LinkLimits

WRITE_BUFFER_BYTES = 256 * 1024
"""Above it a connection is not writable: what waits in lanes can be overtaken, what waits here cannot."""
UNSENT_BYTES = 128 * 1024
"""The same for the kernel, which otherwise takes megabytes that a small message then waits behind."""

_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class ConnectionOwner(Protocol):
    """Who is told of what happens on a connection. All calls are made from the event loop."""

    def connected(self, connection: WebSocketConnection) -> None:
        """The handshake of WebSocket is done."""

    def frame_received(self, connection: WebSocketConnection, data: bytes) -> None:
        """A frame has arrived."""

    def nonsense_received(self, connection: WebSocketConnection) -> None:
        """What arrived is a frame that no correct peer sends."""

    def writable_again(self, connection: WebSocketConnection) -> None:
        """The write buffer has emptied."""

    def disconnected(self, connection: WebSocketConnection) -> None:
        """The connection is over; told once, and only after `connected`."""


class WebSocketConnection(WSListener):
    """One connection. What is written before it is made, or after its end, is dropped."""

    def __init__(self, owner: ConnectionOwner) -> None:
        super().__init__()
        self._owner = owner
        self._transport: WSTransport | None = None
        self._writable = True
        self._unwanted = False

    # --- What a link does with it

    @property
    def made(self) -> bool:
        """Whether it ever was a connection."""
        return self._transport is not None

    @property
    def writable(self) -> bool:
        """Whether the write buffer has room."""
        return self._writable

    def write(self, data: bytes) -> None:
        """Send one binary frame."""
        if self._transport is not None and not self._transport.is_disconnected:
            self._transport.send(WSMsgType.BINARY, data)

    def close(self) -> None:
        """Send what was written, and end the connection; nothing that still comes is looked at."""
        self._unwanted = True
        if self._transport is not None and not self._transport.is_disconnected:
            self._transport.send_close()
            self._transport.disconnect()

    def abort(self) -> None:
        """End the connection now; one that is still being made ends, untold, as soon as it is."""
        self._unwanted = True
        if self._transport is not None:
            # Not from within a frame's delivery: picows still reads from the buffer that this would end.
            asyncio.get_running_loop().call_soon(self._transport.disconnect, False)  # noqa: FBT003 - not graceful

    async def wait_for_its_end(self) -> None:
        """Return when the connection is over, at once if it was never made.

        Raises:
            WSError: it ended because the other end broke the protocol of WebSocket.
        """
        if self._transport is not None:
            await self._transport.wait_disconnected()

    # --- What picows tells it

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Bound what is written and not yet sent."""
        if self._unwanted:
            transport.disconnect(graceful=False)
            return
        self._transport = transport
        transport.underlying_transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if _NOTSENT_LOWAT is not None:
            transport.underlying_transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT_BYTES
            )
        self._owner.connected(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Pass on whole binary frames; picows answers pings itself."""
        if self._unwanted:
            return
        match frame.msg_type:
            case WSMsgType.BINARY if frame.fin:
                self._owner.frame_received(self, frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                transport.disconnect()
            case WSMsgType.PING | WSMsgType.PONG:
                pass
            case _:
                self._owner.nonsense_received(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:  # noqa: ARG002 - picows' signature
        """Tell, if the owner was told of the connection."""
        if self._transport is not None:
            self._owner.disconnected(self)

    def pause_writing(self) -> None:
        """Take note that the buffer is full."""
        self._writable = False

    def resume_writing(self) -> None:
        """Take note that it has room, and tell."""
        self._writable = True
        self._owner.writable_again(self)


class Options(TypedDict):
    """What both ends ask of picows."""

    enable_auto_ping: bool
    auto_ping_idle_timeout: float
    auto_ping_reply_timeout: float
    websocket_handshake_timeout: float
    max_frame_size: int
    disconnect_on_exception: bool


def options(limits: LinkLimits) -> Options:
    """Return how picows is to treat a connection; a bug in a receiver is logged and does not cost the connection.

    Its default transports (aiofastnet) stay: with uvloop's own, picows writes past what they hold back, and frames of
    a full connection come out scrambled (found by cutting a lease of 32 MiB).
    """
    return Options(
        enable_auto_ping=True,
        auto_ping_idle_timeout=limits.ping_idle_seconds,
        auto_ping_reply_timeout=limits.ping_reply_seconds,
        websocket_handshake_timeout=limits.handshake_seconds,
        max_frame_size=MAX_FRAME_BYTES,
        disconnect_on_exception=False,
    )
