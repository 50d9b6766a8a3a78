"""What sits above a link in tests: it keeps all that it is told, and notices calls that come at a wrong moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.wire.link import Link

LOST, SUSPENDED, RESUMED = "lost", "suspended", "resumed"


class LinkEnd:
    """An endpoint. `heard` holds messages and, as words, what the link told of itself; `links` all it was bound to."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.links: list[Link] = []
        self.sending = False
        self.on_message: Callable[[object], None] = lambda message: None

    @property
    def messages(self) -> list:
        """What was heard, without the words."""
        return [one for one in self.heard if not isinstance(one, str)]

    @property
    def words(self) -> list:
        """What the link told of itself."""
        return [one for one in self.heard if isinstance(one, str)]

    @property
    def link(self) -> Link:
        """The newest link."""
        return self.links[-1]

    def send(self, *messages: object) -> None:
        """Send on the newest link; what is delivered from within is an error."""
        self.sending = True
        for message in messages:
            self.link.send(message)
        self.sending = False

    def bind(self, link: Link) -> None:
        """Take a link."""
        self.links.append(link)

    def message_received(self, message: object) -> None:
        """Keep a message."""
        self._hear(message)
        self.on_message(message)

    def link_lost(self) -> None:
        """Keep that the link is gone."""
        self._hear(LOST)

    def link_suspended(self) -> None:
        """Keep that the connection is gone."""
        self._hear(SUSPENDED)

    def link_resumed(self) -> None:
        """Keep that there is another connection."""
        self._hear(RESUMED)

    def _hear(self, what: object) -> None:
        assert not self.sending, "delivered from within send"
        self.heard.append(what)
