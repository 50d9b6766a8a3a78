"""News that may come many times a second, told to a person at once and then at most once a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TELL_AGAIN_SECONDS = 60.0
"""Between two lines of the same news. Chosen: who looks sees that it goes on, and finds the other lines."""


class Repeated:
    """Counts something that happens, and tells it now and then with how often it did since the last line."""

    def __init__(self, line: Callable[[int], str], say: Callable[[str], None]) -> None:
        """`line` gives the text for a number of times, at least 1."""
        self._line, self._say = line, say
        self._times = 0
        self._tell_at = 0.0

    def happened(self) -> None:
        """Count it once more; `look` tells it."""
        self._times += 1

    def look(self, now: float) -> None:
        """Tell what has happened, unless that was told less than a minute ago; `now` is the loop's time."""
        if self._times and now >= self._tell_at:
            self._say(self._line(self._times))
            self._times, self._tell_at = 0, now + TELL_AGAIN_SECONDS
