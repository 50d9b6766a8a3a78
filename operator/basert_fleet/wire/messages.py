"""What an agent and a gateway say to each other, and nothing else.

Every message is a frozen msgspec struct, tagged by its name; a link carries them in order. Messages that concern a slot
name the worker and the epoch, so that a late one is recognised and dropped.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from basert_fleet.core.delivery import Outcome, Part, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.verdict import Reason, Verdict


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The base of all messages: immutable, and encoded with its class name."""


class Hello(Message, frozen=True):
    """Agent: who dials in. The first message on a link."""

    node: str
    incarnation: str
    version: str
    memory_bytes: int | None
    """What workers may use on this node; None when the node cannot tell."""
    workers: tuple[bytes, ...] = ()
    """BasertWorker documents, as JSON: what the agent was told by whichever gateway, and has not ended yet."""


class Desired(Message, frozen=True):
    """Gateway: what the node's workers should be. A worker that is not listed is left as it is."""

    revision: int
    """Grows with each change on this link; an older one is ignored."""
    workers: tuple[bytes, ...]
    """BasertWorker documents, as JSON."""


class Rejected(Message, frozen=True):
    """Gateway: this agent is not taken, and the link ends. It may dial again."""

    reason: str
    """For a person: what was found, and what to do."""


class WorkerStatus(Message, frozen=True):
    """Agent: one worker as it is now; sent at each change and for all workers after Hello."""

    worker: str
    pool: str
    phase: str
    """A State of core.lifecycle."""
    generation: int
    template: str
    """The hash of the spec that the process runs with; empty while there is none."""
    message: str = ""
    """Why it is in this phase, for a person."""
    calibrated: bool | None = None
    pid: int | None = None
    engine: str = ""
    canaries_passed: int = 0
    canaries_failed: int = 0
    recycles: dict[str, int] = msgspec.field(default_factory=dict)
    """Why processes were replaced, and how often, since the agent started. Counts only ever grow."""


class Offer(Message, frozen=True):
    """Agent: this slot takes one lease, because it is proven idle; or ahead, once it is."""

    worker: str
    pool: str
    epoch: Epoch
    served: int = 0
    """Leases that this process has ended; 0 for one that has been proven and not used yet."""
    ahead: bool = False
    """Whether the slot's last lease is still being verified. A lease of this offer is Accepted after that one's End if
    the slot was found clean, and Refused otherwise."""


class Withdraw(Message, frozen=True):
    """Agent: this offer does not hold any more. A lease already on its way to it will be refused."""

    worker: str
    epoch: Epoch


class Lease(Message, frozen=True):
    """Gateway: run this request on the offered slot."""

    worker: str
    epoch: Epoch
    request_id: str
    path: str
    content_type: str
    body: bytes
    timeout_seconds: float
    """What is left of the request's total time."""
    verify: VerifyMode
    agreed: frozenset[Reason] = frozenset()
    """Reasons that another worker already gave for this request: the same again is delivered, not run once more."""


class Accepted(Message, frozen=True):
    """Agent: the lease is taken, and the request goes to the process now."""

    worker: str
    epoch: Epoch


class Refused(Message, frozen=True):
    """Agent: the lease came too late for its offer. The request was not sent to any process."""

    worker: str
    epoch: Epoch


class Head(Message, frozen=True):
    """Agent: status and type of the response; the body may still be held back."""

    worker: str
    epoch: Epoch
    status: int
    content_type: str


class Body(Message, frozen=True):
    """Agent: a part of the response that may go to the client now."""

    worker: str
    epoch: Epoch
    data: bytes
    part: Part


class End(Message, frozen=True):
    """Agent: the attempt is over and the slot is settled or its process dead. The last message of an epoch."""

    worker: str
    epoch: Epoch
    outcome: Outcome
    verdict: Verdict
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str = ""
    execute_seconds: float = 0.0
    """From the request's first byte to the engine until its end was proven, by the agent's monotonic clock."""
    handoff_seconds: float | None = None
    """From the end of the slot's generation before to this one's first byte; None for the first of a process."""


class Cancel(Message, frozen=True):
    """Gateway: nobody wants this lease's response any more. The slot is settled all the same."""

    worker: str
    epoch: Epoch


class Recall(Message, frozen=True):
    """Gateway: another slot is idle. The lease is Refused if it still waits for the one before it, else it goes on."""

    worker: str
    epoch: Epoch


ToAgent: TypeAlias = Desired | Lease | Cancel | Recall | Rejected
ToGateway: TypeAlias = Hello | WorkerStatus | Offer | Withdraw | Accepted | Refused | Head | Body | End
