"""A link that outlives its connections: one channel, one queue of what waits, and the connection of the moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """What a link bears before it gives up a connection, or itself. All spans are seconds."""

    resume_seconds: float = 30.0
    """How long a link lives without a connection (design 3, `resumeSeconds`)."""
    backlog_bytes: int = 256 * 1024**2
    """Of messages that the other end has not acknowledged: four of the largest ones. Past it the link is lost."""
    ping_idle_seconds: float = 5.0
    """Silence after which an end asks whether the other still lives (C40)."""
    ping_reply_seconds: float = 5.0
    """What an answer to that may take: a peer that died without a word is noticed within 10 s."""
    handshake_seconds: float = 5.0
    """What the other end has for its first frame."""


@dataclass(slots=True)
class LinkCounts:
    """What a transport noticed since it started; each number only ever grows."""

    opened: int = 0
    resumed: int = 0
    lost: int = 0
    """Links lost for any reason but `close`."""
    refused: int = 0
    """Connections turned away: wrong token, no common version, no Open."""
    malformed: int = 0
    """Frames that no correct peer sends. Each one ended its link."""
    duplicates: int = 0
    """Messages that came again after a resume and were dropped."""
