"""Messages as the items of a channel: short texts, one for each message, which cost nothing to hash and compare."""

from __future__ import annotations

from basert_fleet.wire.messages import ToAgent, ToGateway

_messages: list[ToAgent | ToGateway] = []
_items: dict[ToAgent | ToGateway, str] = {}


def posted(message: ToAgent | ToGateway) -> str:
    """Return the item that stands for this message."""
    item = _items.get(message)
    if item is None:
        item = _items[message] = str(len(_messages))
        _messages.append(message)
    return item


def opened(item: str) -> ToAgent | ToGateway:
    """Return the message that an item stands for."""
    return _messages[int(item)]
