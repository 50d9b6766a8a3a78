"""One ordered, two-way connection between an agent and a gateway, whatever carries it."""

from __future__ import annotations

from typing import Protocol, TypeVar

Sent_contra = TypeVar("Sent_contra", contravariant=True)
Received_contra = TypeVar("Received_contra", contravariant=True)


class Receiver(Protocol[Received_contra]):
    """The end that a link delivers to. Both calls are made from the event loop, never from within `send`."""

    def message_received(self, message: Received_contra) -> None:
        """Take one message; messages arrive in the order in which they were sent."""

    def link_lost(self) -> None:
        """The link is gone for good; called exactly once, after the last message."""


class Link(Protocol[Sent_contra]):
    """The sending side of a connection."""

    def send(self, message: Sent_contra) -> None:
        """Queue one message. On a lost link it is dropped: `link_lost` has told, or is about to tell."""

    def close(self) -> None:
        """End the link; the other end's receiver is told. Closing twice is allowed."""
