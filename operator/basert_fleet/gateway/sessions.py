"""One agent's connection: who it is, what it has said of its workers, and where its frames go.

A session starts with Hello; what comes before is not read. A second live session for a node's name is refused, so that
a cloned Mac or a restored state directory waits until the old one is dead (design 3). What its link goes through while
it lives (connections that break and come back) is the link's own business: here an agent is in reach or out of it.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from basert_fleet.core.api import DNS_LABEL
from basert_fleet.wire.messages import (
    Accepted,
    Body,
    End,
    Head,
    Hello,
    Offer,
    Refused,
    Rejected,
    ToAgent,
    ToGateway,
    Withdraw,
    WorkerStatus,
)

if TYPE_CHECKING:
    from basert_fleet.wire.link import Link

NODE_NAME_LENGTH = 63
"""Of a DNS label, which a node's name is."""
MOST_MEMORY_BYTES = 2**50
"""A petabyte: more is a mistake."""

Frame = Accepted | Refused | Head | Body | End


class SessionOwner(Protocol):
    """Who is told of what a session brings."""

    def session_opened(self, session: Session) -> str:
        """Take in a session that said who it is; a text refuses it, and says why."""

    def worker_reported(self, session: Session, status: WorkerStatus, before: WorkerStatus | None) -> None:
        """Take in a worker's status; `before` is the last one on this session."""

    def offered(self, session: Session, offer: Offer) -> None:
        """Take in an offer."""

    def withdrawn(self, session: Session, withdraw: Withdraw) -> None:
        """Take in that an offer does not hold any more."""

    def frame_received(self, session: Session, frame: Frame) -> None:
        """Take in a message of one lease."""

    def session_suspended(self, session: Session) -> None:
        """Take in that the agent is out of reach; what it has goes on."""

    def session_resumed(self, session: Session) -> None:
        """Take in that the agent is in reach again, and that nothing was lost meanwhile."""

    def session_lost(self, session: Session) -> None:
        """Take in that nothing will come of this session any more. Only told of sessions that were taken in, once."""


class _Phase(Enum):
    NEW = auto()
    """It has not said Hello."""
    IN_REACH = auto()
    OUT_OF_REACH = auto()
    OVER = auto()


class Session:
    """The receiver of one agent's messages: the endpoint of its link."""

    def __init__(self, owner: SessionOwner) -> None:
        self._owner = owner
        self._link: Link[ToAgent] | None = None
        self._hello: Hello | None = None
        self._phase = _Phase.NEW
        self.reports: dict[str, WorkerStatus] = {}
        """The last status of each worker, by name."""

    @property
    def node(self) -> str:
        """The node's name."""
        return self.hello.node

    @property
    def hello(self) -> Hello:
        """How the agent introduced itself.

        Raises:
            RuntimeError: it has not yet; sessions are handed out only after they have.
        """
        if self._hello is None:
            raise RuntimeError("this session has not said Hello")
        return self._hello

    @property
    def in_reach(self) -> bool:
        """Whether what is sent now goes out now."""
        return self._phase is _Phase.IN_REACH

    def gives_way_to(self, other: Session) -> bool:
        """Say whether another session of the same node may take this one's place.

        It may if it is the same agent, which gave this link up; or if this one is out of reach, as after a crash. An
        agent that is in reach is alive: the other one is a clone, or has a name that is not its own.
        """
        return not self.in_reach or self.hello.incarnation == other.hello.incarnation

    def send(self, message: ToAgent) -> None:
        """Send to the agent; on a lost link the message is dropped."""
        if self._link is None:
            raise RuntimeError("this session has no link")
        self._link.send(message)

    def give_up(self) -> None:
        """End the session; its owner is told before this returns."""
        self.link_lost()
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close()

    # --- The link (its endpoint)

    def bind(self, link: Link[ToAgent]) -> None:
        """Give the session its sending side, before the first message can arrive."""
        self._link = link

    def message_received(self, message: ToGateway) -> None:
        """Pass one message to whoever it concerns; after the end, to nobody."""
        if self._phase is _Phase.NEW:
            self._introduce(message)
        elif self._phase is not _Phase.OVER:
            self._pass_on(message)

    def link_suspended(self) -> None:
        """Tell the owner that the agent is out of reach."""
        if self._phase is _Phase.IN_REACH:
            self._phase = _Phase.OUT_OF_REACH
            self._owner.session_suspended(self)

    def link_resumed(self) -> None:
        """Tell the owner that the agent is in reach again."""
        if self._phase is _Phase.OUT_OF_REACH:
            self._phase = _Phase.IN_REACH
            self._owner.session_resumed(self)

    def link_lost(self) -> None:
        """Tell the owner, once, if it knew of this session."""
        was, self._phase = self._phase, _Phase.OVER
        if was in {_Phase.IN_REACH, _Phase.OUT_OF_REACH}:
            self._owner.session_lost(self)

    def _pass_on(self, message: ToGateway) -> None:
        match message:
            case Accepted() | Refused() | Head() | Body() | End():
                self._owner.frame_received(self, message)
            case Offer():
                self._owner.offered(self, message)
            case Withdraw():
                self._owner.withdrawn(self, message)
            case WorkerStatus():
                before = self.reports.get(message.worker)
                self.reports[message.worker] = message
                self._owner.worker_reported(self, message, before)
            case Hello():
                self.close()  # a second introduction: whatever it is, it is not this agent

    def _introduce(self, message: ToGateway) -> None:
        if not isinstance(message, Hello):
            self._phase = _Phase.OVER
            self.close()
            return
        self._hello, self._phase = message, _Phase.IN_REACH
        refusal = _unusable(message) or self._owner.session_opened(self)
        if refusal:
            self._phase = _Phase.OVER
            self.send(Rejected(refusal))
            self.close()


def _unusable(hello: Hello) -> str:
    """Say what is wrong with an introduction that can be read; it is shown to people and used as a label."""
    if len(hello.node) > NODE_NAME_LENGTH or not re.fullmatch(DNS_LABEL, hello.node):
        return f"{hello.node!r:.80} is no node name: give --node lower-case letters, digits and dashes, at most 63."
    if hello.memory_bytes is not None and not 0 <= hello.memory_bytes <= MOST_MEMORY_BYTES:
        return f"{hello.memory_bytes} bytes is no size of a machine's memory."
    return ""
