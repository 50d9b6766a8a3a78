"""An event loop of what the emulator needs: readable and writable sockets, timers, signals.

Why not asyncio: importing it costs 60-90 ms of CPU, this module 17 ms (measured on 2 cores, Python 3.11), and every
recycle of every worker pays that.
"""

from __future__ import annotations

import heapq
import selectors
import signal
import socket
import time
from collections.abc import Callable
from itertools import count
from typing import NoReturn

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Callback = Callable[[], None]


class Timer:
    """A callback that is due at a time of the loop's clock, until it is cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Never run the callback; harmless when it has run or was cancelled."""
        self.callback = None


class Loop:
    """Runs callbacks one at a time. A callback that raises ends the process: it is a bug, not a fault to emulate."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = count()  # timers of one time run in the order they were set
        self._signals: dict[int, Callback] = {}
        self._wakeup: socket.socket | None = None

    @staticmethod
    def now() -> float:
        """Return the loop's clock in seconds: CLOCK_MONOTONIC, comparable between processes of one machine."""
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Run the callback once, no earlier than so many seconds from now."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.now() + seconds, next(self._order), timer))
        return timer

    def watch(self, sock: socket.socket, events: int, callback: Callable[[int], None]) -> None:
        """Call back whenever the socket is ready for one of the events; again replaces what was watched."""
        if sock.fileno() in self._selector.get_map():
            self._selector.modify(sock, events, callback)
        else:
            self._selector.register(sock, events, callback)

    def unwatch(self, sock: socket.socket) -> None:
        """Forget a watched socket; to be called before it is closed."""
        self._selector.unregister(sock)

    def on_signal(self, number: signal.Signals, callback: Callback) -> None:
        """Run the callback in the loop when the signal comes."""
        if self._wakeup is None:
            self._wakeup, writer = socket.socketpair()
            self._wakeup.settimeout(0.0)
            writer.settimeout(0.0)
            self._writer = writer  # set_wakeup_fd keeps only its number
            signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            self.watch(self._wakeup, READ, self._read_signals)
        self._signals[number] = callback
        signal.signal(number, lambda _number, _frame: None)

    def run(self) -> NoReturn:
        """Run until a callback leaves the process."""
        while True:
            for key, events in self._selector.select(self._seconds_to_next_timer()):
                # A callback may have closed another ready socket of this round: that one is no longer watched.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)
            self._run_due_timers()

    def _seconds_to_next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.now()) if self._timers else None

    def _run_due_timers(self) -> None:
        """Run what is due now; what its callbacks set for at once waits a turn, so that sockets are not starved."""
        now = self.now()
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def _read_signals(self, _events: int) -> None:
        assert self._wakeup is not None  # noqa: S101  # only watched once it exists
        for number in self._wakeup.recv(4096):
            if number in self._signals:
                self._signals[number]()
