"""What the two ends of a new connection say before the channel: versions, and which channel goes on.

The agent speaks first. These three messages stay readable for every version, so that two ends that do not understand
each other can still say which one to upgrade.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

PROTOCOL_MIN = 1
"""The oldest protocol version that this release speaks."""
PROTOCOL_MAX = 1
"""The newest one. A new message class, or a changed meaning, is a new version; a new field is not. Nothing has been
released yet: until then version 1 is whatever both ends were built from."""


class Open(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Agent: the first frame of a connection."""

    node: str
    protocol_min: int
    protocol_max: int
    channel: str = ""
    """The channel to go on with; empty for a new one."""
    received: int = 0
    """The number of the last item received on that channel."""
    given_up: str = ""
    """The channel that this agent had before and has lost: the gateway need not wait for it any longer."""


class Opened(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Gateway: the connection carries this channel from now on."""

    protocol: int
    channel: str
    received: int = 0
    resumed: bool = False
    """False: the channel is new, and the one that was asked for is gone."""


class Refusal(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Gateway: no channel. The connection ends after it."""

    reason: str
    """For a person: what was found, and what to do."""
    retry_after_seconds: float = 0.0
    version: bool = False
    """Whether the protocol versions are the reason."""


Answer: TypeAlias = Opened | Refusal


def common_version(peer: Open, *, oldest: int = PROTOCOL_MIN, newest: int = PROTOCOL_MAX) -> int | str:
    """Return the newest version that both ends speak, or why there is none and which end to upgrade."""
    version = min(newest, peer.protocol_max)
    if version >= max(oldest, peer.protocol_min):
        return version
    found = (
        f"this gateway speaks protocol versions {oldest} to {newest}, "
        f"the agent on {peer.node} {peer.protocol_min} to {peer.protocol_max}"
    )
    behind = f"the agent on {peer.node}" if peer.protocol_max < oldest else "the gateway"
    return f"No common protocol version: {found}. Upgrade {behind}."
