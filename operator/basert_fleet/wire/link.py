"""One ordered, two-way connection between an agent and a gateway, whatever carries it.

Resume is a property of the link, not of the lease: a link over a network survives broken connections (`channel`), so
nothing above it resends, counts or buffers anything. Above, there is a link, a suspended link, or none.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Sent_contra = TypeVar("Sent_contra", contravariant=True)
Received_contra = TypeVar("Received_contra", contravariant=True)
Sent_co = TypeVar("Sent_co", covariant=True)


class Receiver(Protocol[Received_contra]):
    """The end that a link delivers to. All calls are made from the event loop, never from within `send`."""

    def message_received(self, message: Received_contra) -> None:
        """Take one message.

        Messages that concern one worker arrive in the order in which they were sent, and so do those that concern
        none. A small message may overtake a large one of another worker: a long prompt must not stall other slots.
        """

    def link_lost(self) -> None:
        """The link is gone for good; called exactly once, after the last message."""


class Link(Protocol[Sent_contra]):
    """The sending side of a connection."""

    def send(self, message: Sent_contra) -> None:
        """Queue one message. On a lost link it is dropped: `link_lost` has told, or is about to tell."""

    def close(self) -> None:
        """End the link; the other end's receiver is told. Closing twice is allowed."""


class SuspendableReceiver(Receiver[Received_contra], Protocol[Received_contra]):
    """A receiver whose link may lose its connection and get it back; a link in memory never does."""

    def link_suspended(self) -> None:
        """The connection broke. What is sent waits; nothing arrives until `link_resumed`, or `link_lost` ends it."""

    def link_resumed(self) -> None:
        """The link goes on where it had stopped: no message was lost, doubled or put in another order."""


class Endpoint(SuspendableReceiver[Received_contra], Protocol[Sent_co, Received_contra]):
    """What a transport joins to a new link: told its sending side first, then what arrives."""

    def bind(self, link: Link[Sent_co]) -> None:
        """Take the sending side of a new link. An agent is bound again after each lost link, a session once."""
