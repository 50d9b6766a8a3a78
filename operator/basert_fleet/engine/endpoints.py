"""Which of basert-serve's endpoints a client may reach, and what each of them does.

A list of what is allowed, never of what is forbidden: models/load takes a path on the Mac's disk, /slots and /metrics
tell about other users, and what a later engine adds must be looked at first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Kind(StrEnum):
    """What an endpoint gives back."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One allowed POST endpoint."""

    path: str
    kind: Kind
    streams: bool
    """Whether `"stream": true` makes it answer in OpenAI's server-sent events."""
    generates: bool
    """Whether it generates tokens: only then the response has an id, a finish_reason and completion tokens."""


ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        endpoint.path: endpoint
        for endpoint in (
            Endpoint("/v1/chat/completions", Kind.CHAT, streams=True, generates=True),
            Endpoint("/v1/completions", Kind.COMPLETION, streams=True, generates=True),
            Endpoint("/v1/embeddings", Kind.EMBEDDING, streams=False, generates=False),
            Endpoint("/v1/rerank", Kind.RERANK, streams=False, generates=False),
            Endpoint("/v1/audio/transcriptions", Kind.TRANSCRIPTION, streams=False, generates=False),
            Endpoint("/v1/tokenize", Kind.TOKENS, streams=False, generates=False),
        )
    }
)
"""The POST endpoints that are forwarded, by path; each of them takes the slot."""
