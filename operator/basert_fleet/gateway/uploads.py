"""Reading request bodies into memory, within a limit for each and a budget for all.

Bodies that are being read are in no queue yet, so the queues' own bounds cannot see them: a thousand clients that each
send most of a large body would fill the memory. The budget counts what has really arrived, not what was announced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from basert_fleet.gateway.asgi import header
from basert_fleet.gateway.errors import Code, Failure, RequestFault

if TYPE_CHECKING:
    from basert_fleet.gateway.asgi import Receive, Scope

MIB = 1024**2


class ClientLeft(Exception):
    """The client went away before its request was complete: nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """How much is read, and for how long."""

    body_bytes: int = 32 * MIB
    """One body. Chosen: a prompt of 262,144 tokens is about 1 MiB of text, an audio file at OpenAI at most 25 MB."""
    budget_bytes: int = 512 * MIB
    """All bodies that are being read. Chosen: twice the default bound of a queue."""
    seconds: float = 120.0
    """One body. Chosen: 32 MiB over 2.2 Mbit/s; a client that sends slower than that holds memory for nobody."""


class Uploads:
    """The bodies that are being read at this moment."""

    def __init__(self, limits: UploadLimits) -> None:
        self._limits = limits
        self._arrived: dict[int, int] = {}

    @property
    def bytes_in_memory(self) -> int:
        """What the unfinished bodies take."""
        return sum(self._arrived.values())

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Return the request's whole body. However it ends, the body leaves the budget.

        Raises:
            RequestFault: the body is too large, too slow, or the budget is used up.
            ClientLeft: the client went away.
        """
        self._refuse_announced(scope)
        ticket = id(scope)
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._collect(receive, ticket)
        except TimeoutError:
            seconds = self._limits.seconds
            raise RequestFault.because(
                Code.CLIENT_TOO_SLOW, f"the request's body had not arrived after {seconds:g} seconds"
            ) from None
        finally:
            self._arrived.pop(ticket, None)

    async def _collect(self, receive: Receive, ticket: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise ClientLeft
            chunks.append(event.get("body", b""))
            size += len(chunks[-1])
            self._refuse_larger(size)
            if not event.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._arrived[ticket] = size
            self._refuse_over_budget()

    def _refuse_announced(self, scope: Scope) -> None:
        announced = header(scope, b"content-length")
        if announced is not None:
            self._refuse_larger(int(announced))  # httptools has refused anything that is no number

    def _refuse_larger(self, size: int) -> None:
        limit = self._limits.body_bytes
        if size > limit:
            raise RequestFault.because(Code.PAYLOAD_TOO_LARGE, f"the request's body is larger than {limit} bytes")

    def _refuse_over_budget(self) -> None:
        # One sum per 64 kB that arrive, over the bodies that are being read: cheaper than keeping a second count right.
        if self.bytes_in_memory > self._limits.budget_bytes:
            raise RequestFault(
                Failure(Code.QUEUE_FULL, "too many large requests are arriving at once", retry_after_seconds=1.0)
            )
