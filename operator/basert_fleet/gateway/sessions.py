"""One agent's connection: who it is, what it has said of its workers, and where its frames go.

A session starts with Hello; what comes before is not read. A second live session for a node's name is refused, so that
a cloned Mac or a restored state directory waits until the old one is dead (design 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from basert_fleet.wire.messages import (
    Accepted,
    Body,
    End,
    Head,
    Hello,
    Offer,
    Refused,
    ToAgent,
    ToGateway,
    Withdraw,
    WorkerStatus,
)

if TYPE_CHECKING:
    from basert_fleet.wire.link import Link

Frame = Accepted | Refused | Head | Body | End


class SessionOwner(Protocol):
    """Who is told of what a session brings."""

    def session_opened(self, session: Session) -> bool:
        """Take in a session that said who it is; False refuses it."""

    def worker_reported(self, session: Session, status: WorkerStatus, before: WorkerStatus | None) -> None:
        """Take in a worker's status; `before` is the last one on this session."""

    def offered(self, session: Session, offer: Offer) -> None:
        """Take in an offer."""

    def withdrawn(self, session: Session, withdraw: Withdraw) -> None:
        """Take in that an offer does not hold any more."""

    def frame_received(self, session: Session, frame: Frame) -> None:
        """Take in a message of one lease."""

    def session_lost(self, session: Session) -> None:
        """Take in that nothing will come of this session any more. Only told of sessions that were taken in."""


class Session:
    """The receiver of one agent's messages."""

    def __init__(self, owner: SessionOwner) -> None:
        self._owner = owner
        self._link: Link[ToAgent] | None = None
        self._hello: Hello | None = None
        self.reports: dict[str, WorkerStatus] = {}
        """The last status of each worker, by name."""

    def bind(self, link: Link[ToAgent]) -> None:
        """Give the session its sending side, before the first message can arrive."""
        self._link = link

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

    def send(self, message: ToAgent) -> None:
        """Send to the agent; on a lost link the message is dropped."""
        if self._link is None:
            raise RuntimeError("this session has no link")
        self._link.send(message)

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close()

    def message_received(self, message: ToGateway) -> None:
        """Pass one message to whoever it concerns."""
        if self._hello is None:
            self._introduce(message)
            return
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

    def link_lost(self) -> None:
        """Tell the owner, if it knew of this session."""
        if self._hello is not None:
            self._owner.session_lost(self)

    def _introduce(self, message: ToGateway) -> None:
        if not isinstance(message, Hello):
            self.close()
            return
        self._hello = message
        if not self._owner.session_opened(self):
            self._hello = None
            self.close()
