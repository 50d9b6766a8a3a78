"""How an agent comes by its link: dialling a gateway again and again, without a rush after a common failure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from basert_fleet.core.errors import FleetError
from basert_fleet.wire.resumable import LinkLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.wire.link import Endpoint
    from basert_fleet.wire.messages import ToAgent, ToGateway


class DialFailed(FleetError):
    """A gateway could not be reached, or did not take this agent; it is dialled again."""

    code = "dial_failed"


class TokenRefused(DialFailed):
    """The gateway knows no such token. Dialled again slowly: somebody must change a file first."""


class VersionRefused(DialFailed):
    """The two ends speak no common protocol version; the message tells which one to upgrade."""


async def dial(
    url: str,
    endpoint: Endpoint[ToGateway, ToAgent],
    *,
    node: str,
    token: Callable[[], str] | None = None,
    ca_file: str | None = None,
    failed: Callable[[DialFailed], None],
    draw: Callable[[float, float], float] = random.uniform,
    limits: LinkLimits = LinkLimits(),  # noqa: B008 - a frozen value
) -> None:
    """Keep one link to a gateway until cancelled; the link is then closed and `link_lost` told.

    `endpoint` (an Agent) is bound to each new link; it hears `link_lost` before the next one. `token` is called for
    each attempt. `ca_file` replaces the system's authorities. `failed` is told of every attempt that made no
    connection. `draw` is the jitter, so that tests can choose it.

    Raises:
        UnprotectedAddress: the URL is neither `wss://` nor loopback. Told at once, before anything is sent.
    """
    raise NotImplementedError
