"""The few words of ASGI that the applications here speak: raw, since a framework costs forty times as much."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class ClientConnection(Protocol):
    """A client's connection, as far as ASGI says nothing of it."""

    def abort(self) -> None:
        """Drop the connection at once, unsent bytes included.

        uvicorn closes gracefully, and so waits forever for a client that never reads.
        """

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call this once the client has gone, soon if it has; `receive` would take a task of its own to tell."""

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call this any more."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of a request header, by its lower-case name; the first if it is repeated."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


async def respond(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
