"""Where a gateway's agents dial in: WebSocket connections joined to links that outlive them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from basert_fleet.wire.resumable import LinkCounts, LinkLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from basert_fleet.wire.link import Endpoint
    from basert_fleet.wire.messages import ToAgent, ToGateway


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
        limits: LinkLimits = LinkLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        raise NotImplementedError

    @property
    def counts(self) -> LinkCounts:
        """What went wrong so far, each number only ever growing."""
        raise NotImplementedError

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is a free one where 0 was asked for.

        Raises:
            UnprotectedAddress: anything but loopback needs TLS.
            OSError: the address cannot be had.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Stop listening and end every link; their receivers are told before this returns."""
        raise NotImplementedError
