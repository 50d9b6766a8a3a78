"""One request at one engine process: sent, read, and proven to have ended.

This is the only code that sends an engine anything that generates: leases, canaries, scrubs and calibration all pass
through here. It performs what `core.settle` decides; what the response means is left to the sink.
"""

from __future__ import annotations

import asyncio
import math
from enum import StrEnum
from typing import Protocol

import msgspec

from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SettlePolicy, Settling, SlotsPage, Step
from basert_fleet.engine.connection import (
    Data,
    EndOfResponse,
    EngineConnection,
    EngineGone,
    Event,
    RequestEncoder,
    ResponseHead,
)
from basert_fleet.engine.probes import ProbeClient, Question
from basert_fleet.wire.alarm import Alarm

FIRST_BYTE_SECONDS = 10.0
"""Chosen: an engine that took a request shows it in /slots far sooner; only one that shows nothing is given up."""
SILENCE_SECONDS = 10.0
"""Chosen: a response that stopped while /slots says idle will not go on."""
CONNECT_SECONDS = 5.0
"""Chosen: loopback connects at once unless the process has stopped accepting."""
PROBE_SECONDS = 1.0
"""How long one question to /slots may take before it counts as silence."""
WATCH_FIRST_SECONDS, WATCH_LATER_SECONDS = 0.25, 5.0
"""How soon a silent engine is looked at, and how often at most while it keeps silent (doubling between)."""
SETTLE_FIRST_SECONDS, SETTLE_LATER_SECONDS = 0.002, 0.1
"""The same once a proof of idle is what everything waits for: it is on the way of the next request."""


class Process(Protocol):
    """What a generation needs of the engine it runs on: a process of ours, or a server that something else runs."""

    exited: asyncio.Future[int]
    """Resolves once it is gone, or must not be used any more."""

    def give_up(self) -> None:
        """Use it no more, for want of a proof: a process of ours is killed with its group, a server is in doubt.

        Must neither wait nor fail, whatever has happened to it before.
        """

    def stopped(self) -> bool:
        """Say whether the process was halted by a signal."""

    def describe_exit(self) -> str:
        """Say how the process ended."""


class Journal(Protocol):
    """Where it is recorded that a process may be busy."""

    def sent(self) -> None:
        """Record that a generation is about to be sent."""

    def settled(self) -> None:
        """Record that it is proven to have ended."""


class Sink(Protocol):
    """Takes a response as it arrives. It must not fail: what it makes of a bad response is its own finding."""

    def head(self, head: ResponseHead) -> None:
        """Take status and headers."""

    def data(self, data: bytes) -> None:
        """Take a piece of the body."""

    def end(self) -> None:
        """Take note that the body is whole; whether the slot is idle and clean is not known yet."""


class Ended(StrEnum):
    """How a generation ended, whatever became of its slot."""

    COMPLETE = "complete"
    """The response came to its own end."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    """Its deadline passed."""
    SWALLOWED = "swallowed"
    """The engine took it and never began."""
    LOST = "lost"
    """The process died, cut the response short, broke the protocol or fell silent."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """What is known once a generation is over. Unless `idle_proven`, its engine has been given up."""

    ended: Ended
    detail: str
    """For a person: why it did not complete."""
    died: bool
    """Whether the engine was gone by itself meanwhile, and not because it was given up for want of a proof."""
    idle_proven: bool
    after: Probe | None
    """The probe that proved it; None if none did."""
    sent_at: float
    over_at: float
    """When the response ended or its connection was closed: the engine is not known to be idle yet."""


class EngineLine:
    """The connections to one engine, and what was last seen of its slot."""

    def __init__(self, host: str, port: int, api_key: str) -> None:
        self.loop = asyncio.get_running_loop()
        """Kept, for asking which one runs costs a system call (getpid) each time."""
        self.host, self.port, self.api_key = host, port, api_key
        self.requests = RequestEncoder(host, port, api_key)
        self.connection = EngineConnection()
        self.probes = ProbeClient(host, port, api_key)
        self.last_probe: Probe | None = None
        self.probed_at = 0.0

    @property
    def slots_page(self) -> SlotsPage:
        """Whether the engine has /slots, as far as is known."""
        return self.probes.page

    @property
    def key_refusal(self) -> int | None:
        """The status with which /slots refused the key when it last answered; None if it did not."""
        return self.probes.key_refusal

    async def ask(self) -> Probe | None:
        """Ask the slot for its counters; None if it keeps silent or has none."""
        return None if self.slots_page is SlotsPage.ABSENT else await self.probes.slots(PROBE_SECONDS)

    def remember(self, probe: Probe | None) -> None:
        """Keep what an idle slot was last seen to show."""
        self.last_probe, self.probed_at = probe, self.loop.time()

    def close(self) -> None:
        """Close all connections."""
        self.connection.close()
        self.probes.close()


class Generation:
    """One request, from its first byte until its end is proven or its engine given up.

    However `run` ends, the slot is then proven idle or the engine given up; a run that is cut short gives it up.
    """

    def __init__(
        self,
        line: EngineLine,
        process: Process,
        journal: Journal,
        *,
        request: bytes,
        timeout_seconds: float,
        settle_seconds: float,
        sink: Sink,
    ) -> None:
        self._loop = line.loop
        self._line, self._process, self._journal = line, process, journal
        self._request, self._sink = request, sink
        self._settling = Settling(SettlePolicy(settle_seconds, line.slots_page), line.last_probe)
        self._step = Step.WAIT
        self._sent_at = self._loop.time()
        self._deadline = self._sent_at + timeout_seconds
        self._give_in_at = self._deadline + settle_seconds
        self._quiet_since = self._sent_at
        self._first_byte_at: float | None = None
        self._over_at: float | None = None
        self._after: Probe | None = None
        self._ended: Ended | None = None
        self._detail = ""
        self._watchdog_fired = False
        self._question: Question | None = None
        self._answer: Probe | None = None
        self._answered = False  # a question whose answer was not judged yet
        self._probe_asked_at = 0.0
        self._probe_pause = WATCH_FIRST_SECONDS
        self._next_probe = self._sent_at + WATCH_FIRST_SECONDS
        self._waiter: asyncio.Future[None] | None = None
        self._alarm = Alarm(self._wake)

    def cancel(self) -> None:
        """Ask for an early end; `run` goes on until the slot is settled. Too late it does nothing."""
        self._give_up(Ended.CANCELLED, "cancelled")

    async def run(self) -> Execution:
        """Send the request and return once its end is proven or its engine was given up."""
        self._process.exited.add_done_callback(self._wake)
        self._line.connection.watch(self._wake)
        try:
            await self._send()
            while not self._advance():
                await self._news()
        except BaseException:
            self._process.give_up()
            raise
        finally:
            self._process.exited.remove_done_callback(self._wake)
            self._line.connection.unwatch()
            self._alarm.cancel()
            if self._question is not None:
                self._question.give_up()
        return self._conclude()

    def _conclude(self) -> Execution:
        died = self._process.exited.done()
        proven = self._step is Step.IDLE and self._record_settled()
        detail = self._detail
        if died:  # often known only after its connection broke
            detail = f"the process {self._process.describe_exit()}" + (f": {detail}" if detail else "")
        if proven:
            self._line.remember(self._after)
        else:
            self._process.give_up()
            self._line.close()
        return Execution(
            ended=self._ended or Ended.LOST,
            detail=detail,
            died=died,
            idle_proven=proven,
            after=self._after if proven else None,
            sent_at=self._sent_at,
            over_at=self._over_at if self._over_at is not None else self._loop.time(),
        )

    def _record_settled(self) -> bool:
        """Record the proof; what cannot be recorded is not relied on."""
        try:
            self._journal.settled()
        except OSError as error:
            self._end(Ended.LOST, f"the end could not be recorded: {error}")
            return False
        return True

    async def _send(self) -> None:
        try:
            if not self._line.connection.reusable:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._line.connection.connect(self._line.host, self._line.port)
            self._journal.sent()
            self._sent_at = self._loop.time()
            self._line.connection.send(self._request)
        except (EngineGone, OSError) as error:  # a TimeoutError, or a record that cannot be written
            self._kill(Ended.LOST, f"the request was not sent: {error!r}")

    def _advance(self) -> bool:
        """Take in all that came and do what follows from it; say whether the slot is settled."""
        now = self._loop.time()
        self._enforce_limits(now)
        if self._step is Step.WAIT:
            self._take_answer(now)
        while self._step is Step.WAIT and (event := self._next_event()) is not None:
            self._take(event)
        if self._step is Step.CLOSE:
            self._line.connection.close()
            self._over(now)
        if self._step is not Step.WAIT:
            return True
        self._ask_when_due(now)
        self._alarm.set_by(self._next_wake())
        return False

    async def _news(self) -> None:
        """Return once something happened since `_advance`: nothing can happen between the two, for neither waits."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the response

    def _next_event(self) -> Event | None:
        """Return what the engine said next, or None if nothing has come or nothing counts any more."""
        if self._over_at is not None:
            return None
        try:
            return self._line.connection.take()
        except EngineGone as gone:
            self._lost(str(gone))
            return None

    def _take(self, event: Event) -> None:
        now = self._loop.time()
        self._quiet_since = now
        self._probe_pause, self._next_probe = WATCH_FIRST_SECONDS, now + WATCH_FIRST_SECONDS
        match event:
            case ResponseHead():
                self._first_byte_at = now
                self._step = self._settling.head_seen()
                if self._ended is None:
                    self._sink.head(event)
            case Data(data=data):
                if self._ended is None:
                    self._sink.data(data)
            case EndOfResponse(proven=True):
                is_wanted = self._ended is None
                self._end(Ended.COMPLETE, "")
                self._over_at = now
                self._step = self._settling.end_mark(now)
                self._hurry(now)
                self._ask_when_due(now)  # on its way while the sink makes sense of the whole
                if is_wanted:
                    self._sink.end()
            case EndOfResponse():
                self._lost("the engine closed the connection without marking the end of its response")

    # --- what ends it early

    def _end(self, ended: Ended, detail: str) -> None:
        """Note how it ended; the first word counts."""
        if self._ended is None:
            self._ended, self._detail = ended, detail

    def _give_up(self, ended: Ended, detail: str) -> None:
        if self._ended is None and self._step is Step.WAIT:
            self._end(ended, detail)
            self._step = self._settling.cancel()
            self._hurry(self._loop.time())
            self._wake()

    def _lost(self, detail: str) -> None:
        self._end(Ended.LOST, detail)
        self._over(self._loop.time())

    def _over(self, now: float) -> None:
        if self._over_at is None:
            self._over_at = now
        self._step = self._settling.closed(now)
        self._hurry(now)

    def _kill(self, ended: Ended, detail: str) -> None:
        self._end(ended, detail)
        self._step = self._settling.process_died()

    def _enforce_limits(self, now: float) -> None:
        if self._process.exited.done():
            self._kill(Ended.LOST, "")
        elif now >= self._deadline and self._ended is None:
            self._give_up(Ended.TIMED_OUT, "the request's time was over")
        elif now >= self._give_in_at and self._over_at is None:
            self._kill(Ended.TIMED_OUT, "still not known to have started when its time was over")
        elif self._first_byte_at is None and now - self._sent_at >= FIRST_BYTE_SECONDS and not self._watchdog_fired:
            self._watchdog_fired = True
            self._step = self._settling.first_byte_expired(now)

    def _next_wake(self) -> float:
        """Return when something is due although nothing comes."""
        limits = []
        if self._ended is None:
            limits.append(self._deadline)
        elif self._over_at is None:
            limits.append(self._give_in_at)
        if self._first_byte_at is None and not self._watchdog_fired:
            limits.append(self._sent_at + FIRST_BYTE_SECONDS)
        if self._settling.kill_at is not None:
            limits.append(self._settling.kill_at)
        if self._question is not None:
            limits.append(self._probe_asked_at + PROBE_SECONDS)
        elif self._line.slots_page is SlotsPage.PRESENT:
            limits.append(self._next_probe)
        return min(limits)

    # --- the slot

    def _hurry(self, now: float) -> None:
        """Ask /slots at once and often: from here on only a proof of idle is waited for."""
        self._probe_pause, self._next_probe = SETTLE_FIRST_SECONDS, now

    def _ask_when_due(self, now: float) -> None:
        if self._question is not None or now < self._next_probe or self._line.slots_page is SlotsPage.ABSENT:
            return
        # A loop's clock stands still within one turn: what is asked after the end was taken is later all the same.
        self._probe_asked_at = now if self._over_at is None else max(now, math.nextafter(self._over_at, math.inf))
        self._question = self._line.probes.ask_slots(self._slots_told)
        self._next_probe = now + self._probe_pause
        limit = WATCH_LATER_SECONDS if self._ended is None else SETTLE_LATER_SECONDS
        self._probe_pause = min(self._probe_pause * 2, limit)

    def _slots_told(self, probe: Probe | None) -> None:
        self._answer, self._answered = probe, True
        self._wake()

    def _take_answer(self, now: float) -> None:
        """Judge what /slots answered, if it was asked; too late an answer is silence, and that a tick of the clock."""
        if self._question is not None and not self._answered and now >= self._probe_asked_at + PROBE_SECONDS:
            self._question.give_up()
            self._answer, self._answered = None, True
        if self._answered:
            self._question, self._answered = None, False
            self._judge_probe(self._answer)
            if self._ended is not None:
                self._next_probe = min(self._next_probe, now + self._probe_pause)
        elif self._settling.kill_at is not None and now >= self._settling.kill_at:
            self._judge_probe(None)

    def _judge_probe(self, probe: Probe | None) -> None:
        now = self._loop.time()
        if probe is None and self._process.stopped():
            self._kill(Ended.LOST, "the process was halted by a signal")
            return
        self._step = self._settling.probe(probe, asked_at=self._probe_asked_at, now=now)
        self._after = probe
        if self._step is Step.KILL and self._over_at is None:
            self._end(Ended.SWALLOWED, "the engine took the request and never began to process it")
        elif probe is not None and not probe.is_processing and self._fell_silent(now):
            self._lost("the response stopped, and /slots says that nothing runs")

    def _fell_silent(self, now: float) -> bool:
        """Say whether a begun response has been without a byte for too long, this probe included."""
        began = self._first_byte_at is not None and self._over_at is None
        return began and min(now, self._probe_asked_at) - self._quiet_since >= SILENCE_SECONDS
