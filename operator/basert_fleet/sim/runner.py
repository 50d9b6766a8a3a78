"""Generations in time: accepted, queued, begun, prefilled, told token by token, ended; and the faults on that way.

The engine decides what is answered; this decides when. A generation that nobody listens to any more is cancelled
before its next token, unless its fault is RUN_ON.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from basert_fleet.sim.errors import Refusal, TimedOut
from basert_fleet.sim.faults import Fault
from basert_fleet.sim.finish import Finish
from basert_fleet.sim.pieces import Chunking, Piece, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.sim.answer import Answer
    from basert_fleet.sim.ask import Ask
    from basert_fleet.sim.engine import Engine, Generation
    from basert_fleet.sim.faults import FaultPlan
    from basert_fleet.sim.journal import Journal
    from basert_fleet.sim.loop import Loop, Timer

MIN_TICK_SECONDS = 0.001  # chosen: faster token rates are told in batches
HALFWAY_FAULTS = frozenset({Fault.CRASH, Fault.HANG, Fault.TRUNCATE})


class Pace(NamedTuple):
    """How long things take. A rate of 0 means: at once."""

    tokens_per_second: float = 0.0
    prefill_tokens_per_second: float = 0.0
    accept_seconds: float = 0.0  # between a request's arrival and is_processing
    batch_seconds: float = 0.0  # each prefill lasts at least this long, so that simultaneous requests overlap
    timeout_seconds: float = 0.0  # from arrival to end; 0 is none


class Sink(Protocol):
    """Whoever tells a client what a generation brings. Exactly one of the last three ends it, if the client stays."""

    def begun(self, generation: Generation) -> None:
        """Hear that decoding begins."""

    def piece(self, piece: Piece) -> None:
        """Pass on one delta."""

    def ended(self, generation: Generation, produced: int) -> None:
        """Hear that the answer is whole."""

    def failed(self, refusal: Refusal) -> None:
        """Hear that there will be no answer."""

    def cut_short(self, generation: Generation) -> None:
        """Close the connection without the answer's end mark."""


class Job:
    """One request on its way to the engine; only its runner changes it."""

    __slots__ = ("ask", "client_gone", "faults", "running", "sink", "timeout", "timer")

    def __init__(self, ask: Ask, sink: Sink, faults: frozenset[Fault]) -> None:
        self.ask, self.sink, self.faults = ask, sink, faults
        self.running: Running | None = None  # None until the engine begins it
        self.client_gone = False
        self.timer: Timer | None = None  # its next step
        self.timeout: Timer | None = None


class Running:
    """A job that the engine has begun, and how much of its answer is told."""

    __slots__ = ("answer", "decode_since", "generation", "is_prefilled", "job", "pieces", "produced", "told")

    def __init__(self, job: Job, generation: Generation) -> None:
        self.job, self.generation = job, generation
        self.is_prefilled = False
        self.decode_since = 0.0  # on the loop's clock, once it is prefilled
        self.answer: Answer | None = None  # the one that `pieces` belong to
        self.pieces: tuple[Piece, ...] = ()
        self.produced = self.told = 0  # tokens, and pieces


class Runner:
    """Runs the jobs of one process."""

    def __init__(
        self, loop: Loop, engine: Engine, journal: Journal, pace: Pace, *, chunking: Chunking, faults: FaultPlan
    ) -> None:
        self._loop, self._engine, self._journal = loop, engine, journal
        self._pace, self._chunking, self._faults = pace, chunking, faults
        self._submitted = 0
        self._queue: deque[Job] = deque()
        self._running: set[Running] = set()
        self._wedged = False
        self._idle_since = loop.now()
        self._on_prefilled: list[Callable[[], None]] = []

    @property
    def is_wedged(self) -> bool:
        """Say whether nothing but /health may be answered any more."""
        return self._wedged

    @property
    def queued(self) -> int:
        """Return how many requests wait for others to end."""
        return len(self._queue)

    @property
    def is_prefilling(self) -> bool:
        """Say whether a generation has begun and brought no token yet."""
        return any(not running.is_prefilled for running in self._running)

    def idle_seconds(self) -> float:
        """Return for how long no generation has run."""
        return 0.0 if self._running else self._loop.now() - self._idle_since

    def when_prefilled(self, callback: Callable[[], None]) -> None:
        """Call back once no prefill runs."""
        self._on_prefilled.append(callback)

    def submit(self, ask: Ask, sink: Sink) -> Job:
        """Accept a request; its sink hears how it goes."""
        self._submitted += 1
        job = Job(ask, sink, self._faults.of(self._submitted) | ask.directives.faults)
        if Fault.WEDGE in job.faults:
            self._wedged = True
        if Fault.SWALLOW in job.faults or self._wedged:
            return job
        if self._pace.timeout_seconds:
            job.timeout = self._loop.call_later(self._pace.timeout_seconds, lambda: self._time_out(job))
        job.timer = self._loop.call_later(self._pace.accept_seconds, lambda: self._accept(job))
        return job

    def client_gone(self, job: Job) -> None:
        """Stop working for a client that left. A request still in accept begins all the same, and is cancelled then."""
        job.client_gone = True
        if job.running is not None:
            self._cancel_unheard(job.running)
        elif job in self._queue and Fault.RUN_ON not in job.faults:
            self._queue.remove(job)
            self._stop_timers(job)

    def _accept(self, job: Job) -> None:
        self._queue.append(job)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._queue and self._engine.may_begin and not self._wedged:
            self._begin(self._queue.popleft())

    def _begin(self, job: Job) -> None:
        if Fault.CONTAMINATE in job.faults:
            self._engine.contaminate()
        running = job.running = Running(job, self._engine.begin(job.ask))
        self._running.add(running)
        self._journal.generation_began(running.generation)
        job.timer = self._loop.call_later(self._prefill_seconds(running.generation), lambda: self._decode(running))

    def _prefill_seconds(self, generation: Generation) -> float:
        rate = self._pace.prefill_tokens_per_second
        reading = generation.prompt_tokens / rate if rate else 0.0
        return max(self._pace.batch_seconds, reading) + generation.ask.directives.delay_seconds

    def _decode(self, running: Running) -> None:
        if self._wedged:
            return
        running.is_prefilled, running.decode_since = True, self._loop.now()
        self._release_prefill_waiters()
        if running.job.client_gone:
            self._cancel_unheard(running)
        if running in self._running:
            running.job.sink.begun(running.generation)
            self._tell(running)

    def _tell(self, running: Running) -> None:
        """Bring the tokens that are due, then end, fail, or wait for the next ones."""
        if self._wedged:
            return
        self._take_answer(running)
        total = max(1, running.generation.answer.tokens)  # embeddings and the like take the time of one token
        rate = self._pace.tokens_per_second
        due = min(total, int((self._loop.now() - running.decode_since) * rate)) if rate else total
        half = len(running.pieces) // 2
        halfway = running.pieces[half].at_token if running.pieces else max(1, total // 2)
        if due >= halfway and not running.job.faults.isdisjoint(HALFWAY_FAULTS):
            self._bring(running, running.pieces[:half], halfway)
            self._then(running, 0.0, self._fail_halfway)
            return
        self._bring(running, running.pieces, due)
        if due == total:
            running.produced = running.generation.answer.tokens
            self._end(running, running.generation.answer.finish)
        else:
            next_token = running.decode_since + (due + 1) / rate
            self._then(running, max(MIN_TICK_SECONDS, next_token - self._loop.now()), self._tell)

    def _take_answer(self, running: Running) -> None:
        """Cut the answer in pieces: the first time, and again if it was decided anew since another one overlaps."""
        answer = running.generation.answer
        if running.answer is not answer:
            running.answer, running.pieces = answer, pieces_of(answer, self._chunking)

    @staticmethod
    def _bring(running: Running, pieces: tuple[Piece, ...], tokens: int) -> None:
        while running.told < len(pieces) and pieces[running.told].at_token <= tokens:
            running.job.sink.piece(pieces[running.told])
            running.told += 1
        running.produced = max(running.produced, tokens)

    def _then(self, running: Running, seconds: float, step: Callable[[Running], None]) -> None:
        running.job.timer = self._loop.call_later(seconds, lambda: step(running))

    def _fail_halfway(self, running: Running) -> None:
        """Do what the fault says, once what was told is on its way; a hung generation just has no next step."""
        if Fault.CRASH in running.job.faults:
            self._journal.exited("crash")
            os.kill(os.getpid(), signal.SIGABRT)
        elif Fault.TRUNCATE in running.job.faults:
            running.job.sink.cut_short(running.generation)
            self._end(running, Finish.CANCELLED)

    def _cancel_unheard(self, running: Running) -> None:
        faults = running.job.faults
        is_hung = Fault.HANG in faults and running.is_prefilled
        if Fault.RUN_ON not in faults and not is_hung and not self._wedged:
            self._end(running, Finish.CANCELLED)

    def _time_out(self, job: Job) -> None:
        if self._wedged or Fault.HANG in job.faults:
            return
        job.sink.failed(TimedOut(self._pace.timeout_seconds))
        if job.running is not None:
            self._end(job.running, Finish.CANCELLED)
        elif job in self._queue:
            self._queue.remove(job)
        else:
            job.client_gone = True

    def _end(self, running: Running, finish: Finish) -> None:
        self._stop_timers(running.job)
        self._running.remove(running)
        self._engine.end(running.generation, finish, running.produced)
        self._journal.generation_ended(running.generation, finish, running.produced, self._engine)
        self._idle_since = self._loop.now()
        if finish is not Finish.CANCELLED:
            running.job.sink.ended(running.generation, running.produced)
        self._release_prefill_waiters()
        self._begin_waiting()

    @staticmethod
    def _stop_timers(job: Job) -> None:
        for timer in (job.timer, job.timeout):
            if timer is not None:
                timer.cancel()

    def _release_prefill_waiters(self) -> None:
        if not self.is_prefilling:
            waiting, self._on_prefilled = self._on_prefilled, []
            for callback in waiting:
                callback()
