"""One generation in virtual time, against an engine whose every move is scripted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

import pytest

from basert_fleet.agent.generation import Ended, EngineLine, Execution, Generation
from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SlotsPage
from basert_fleet.engine.connection import Data, EndOfResponse, EngineGone, Event, GoneCause, ResponseHead
from support.virtual_loop import run_virtual

IDLE, BUSY, AFTER = Probe(False, 10, 10), Probe(True, 10, 10), Probe(False, 20, 20)
HEAD = ResponseHead(200, ((b"content-type", b"text/event-stream"),))
END = EndOfResponse(proven=True)


class ScriptedEngine:
    """An engine that says what its script says, when it says it, and answers /slots by a function of time.

    It is its own line, connection, probe client, process and record.
    """

    def __init__(self, script: list[tuple[float, Event]], slots: Callable[[float], Probe | None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._script, self._slots_at = list(script), slots
        self._said: list[Event] = []
        self._heard: Callable[[], None] | None = None
        self._asked: asyncio.TimerHandle | None = None
        self.exited: asyncio.Future[int] = self.loop.create_future()
        self.given_up = False
        self.closed_at: float | None = None
        self.sent_records: list[str] = []
        # As an EngineLine:
        self.host, self.port, self.slots_page = "engine", 1, SlotsPage.PRESENT
        self.last_probe: Probe | None = IDLE
        self.probed_at = 0.0
        self.connection = self.probes = self
        self.reusable = True
        self.questions = 0
        self.slots_take = 0.0

    # --- its connection

    def send(self, _request: bytes) -> None:
        """The request arrives at time 0 of the script."""
        for at, event in self._script:
            self.loop.call_at(at, self._say, event)

    def _say(self, event: Event) -> None:
        self._said.append(event)
        if self._heard is not None:
            self._heard()

    def watch(self, heard: Callable[[], None]) -> None:
        self._heard = heard

    def unwatch(self) -> None:
        self._heard = None

    def take(self) -> Event | None:
        event = self._said.pop(0) if self._said else None
        if isinstance(event, EngineGone):
            raise event
        return event

    def close(self) -> None:
        self.closed_at = self.loop.time() if self.closed_at is None else self.closed_at

    # --- its /slots

    def ask_slots(self, answered: Callable[[Probe | None], None]) -> ScriptedQuestion:
        assert self._asked is None, "asked while a question is under way"
        self._asked = self.loop.call_later(self.slots_take, self._answer, answered)
        self.questions += 1
        return ScriptedQuestion(self)

    def _answer(self, answered: Callable[[Probe | None], None]) -> None:
        probe = self._slots_at(self.loop.time())
        if probe is not None:  # else it keeps silent until it is given up
            self._asked = None
            answered(probe)

    def unask(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None

    def remember(self, probe: Probe | None) -> None:
        self.last_probe = probe

    # --- its process

    def give_up(self) -> None:
        self.given_up = True

    def stopped(self) -> bool:
        return False

    def describe_exit(self) -> str:
        return "ended by SIGKILL"

    # --- its record

    def sent(self) -> None:
        self.sent_records.append("sent")

    def settled(self) -> None:
        self.sent_records.append("settled")


class ScriptedQuestion:
    """A question to the /slots of a scripted engine."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    def give_up(self) -> None:
        self._engine.unask()


class Collected:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def head(self, head: ResponseHead) -> None:
        """Only its arrival matters."""

    def data(self, data: bytes) -> None:
        self.pieces.append(data)

    def end(self) -> None:
        """What it means is not looked at."""


def generation(engine: ScriptedEngine, sink: Collected, timeout_seconds: float = 600.0) -> Generation:
    """Return a generation on this engine."""
    return Generation(
        cast(EngineLine, engine), engine, engine, request=b"POST", timeout_seconds=timeout_seconds,
        settle_seconds=10.0, sink=sink,
    )  # fmt: skip


def run(
    script: list[tuple[float, Event]],
    slots: Callable[[float], Probe | None],
    *,
    timeout_seconds: float = 600.0,
    cancel_at: float | None = None,
) -> tuple[Execution, ScriptedEngine, Collected, float]:
    """Play a script; return what came of it, and at which virtual second."""

    async def play() -> tuple[Execution, ScriptedEngine, Collected, float]:
        engine, sink = ScriptedEngine(script, slots), Collected()
        running = generation(engine, sink, timeout_seconds)
        if cancel_at is not None:
            asyncio.get_running_loop().call_at(cancel_at, running.cancel)
        execution = await running.run()
        return execution, engine, sink, asyncio.get_running_loop().time()

    return run_virtual(play())


def test_c07_the_first_byte_may_take_ten_minutes() -> None:
    """C07, C16: ten minutes of prefill with a silent /slots are cut by nothing of ours."""
    script = [(599.0, HEAD), (599.0, Data(b"x")), (599.5, END)]
    execution, engine, sink, _ = run(script, lambda now: None if now < 599.0 else AFTER)
    assert (execution.ended, execution.idle_proven, engine.given_up) == (Ended.COMPLETE, True, False)
    assert sink.pieces == [b"x"]


def test_c11_a_stream_of_an_hour_is_cut_by_nothing() -> None:
    """C11: an hour with pauses of fifty seconds while the slot is processing comes to its own end."""
    pieces = [(50.0 * number, Data(b"x")) for number in range(1, 72)]
    script = [(1.0, HEAD), *pieces, (3600.0, END)]
    execution, engine, sink, now = run(script, lambda now: BUSY if now < 3600 else AFTER, timeout_seconds=4000)
    assert (execution.ended, engine.given_up, len(sink.pieces)) == (Ended.COMPLETE, False, 71)
    assert now < 3601


def test_c12_a_request_that_is_never_processed_is_given_up_by_a_kill() -> None:
    """C12: no byte and an idle /slots, ten seconds long: swallowed."""
    execution, engine, _, now = run([], lambda _: IDLE)
    assert (execution.ended, execution.idle_proven, engine.given_up) == (Ended.SWALLOWED, False, True)
    assert 10 <= now < 20


def test_c02_a_slot_is_free_when_the_engine_is_not_when_the_bytes_are_there() -> None:
    """C02: after the last byte the engine still processes for three seconds; only then the proof comes."""
    execution, engine, _, now = run([(1.0, HEAD), (2.0, END)], lambda now: BUSY if now < 5.0 else AFTER)
    assert (execution.idle_proven, execution.after, engine.given_up) == (True, AFTER, False)
    assert 5.0 <= now < 5.2


def test_an_engine_that_never_comes_to_rest_is_killed() -> None:
    """Past settleSeconds without a proof the process goes, and nothing says that it was idle."""
    execution, engine, _, now = run([(1.0, HEAD), (2.0, END)], lambda _: BUSY)
    assert (execution.ended, execution.idle_proven, engine.given_up) == (Ended.COMPLETE, False, True)
    assert 12.0 <= now < 13.0


def test_a_cancel_before_the_start_was_seen_keeps_the_connection() -> None:
    """Closing at once would leave a request in the accept queue, to start after the slot was given away."""
    slots = lambda now: IDLE if now < 3.0 else (BUSY if now < 4.0 else AFTER)  # noqa: E731 - a script
    execution, engine, _, _ = run([], slots, cancel_at=0.5)
    assert engine.closed_at is not None
    assert engine.closed_at >= 3.0
    assert (execution.ended, execution.idle_proven) == (Ended.CANCELLED, True)


def test_a_deadline_is_a_cancel_with_another_name() -> None:
    """The request's own time ends it; the slot settles as after any cancel."""
    slots = lambda now: BUSY if now < 31.0 else AFTER  # noqa: E731 - a script
    execution, engine, _, now = run([(1.0, HEAD)], slots, timeout_seconds=30.0)
    assert (execution.ended, execution.idle_proven, engine.given_up) == (Ended.TIMED_OUT, True, False)
    assert 31.0 <= now < 32.0


def test_a_response_that_stops_while_the_slot_is_idle_is_lost() -> None:
    """A stream without an end, on a slot that is idle, will not go on: the request runs elsewhere."""
    execution, _, _, now = run([(1.0, HEAD), (2.0, Data(b"x"))], lambda now: BUSY if now < 2.0 else AFTER)
    assert (execution.ended, execution.idle_proven) == (Ended.LOST, True)
    assert now < 30.0


def test_a_broken_connection_is_settled_by_proof() -> None:
    """The engine cut its response and lives: the slot comes back once it is proven idle."""
    gone = cast(Event, EngineGone(GoneCause.TRUNCATED, "closed by the engine"))
    execution, engine, _, _ = run([(1.0, HEAD), (2.0, gone)], lambda now: BUSY if now < 4.0 else AFTER)
    assert (execution.ended, execution.idle_proven, engine.given_up) == (Ended.LOST, True, False)


def test_the_record_says_sent_before_and_settled_only_after_proof() -> None:
    """Another agent must be able to tell whether this process may be busy."""
    assert run([(1.0, HEAD), (2.0, END)], lambda _: AFTER)[1].sent_records == ["sent", "settled"]
    assert run([], lambda _: IDLE)[1].sent_records == ["sent"]


@pytest.mark.parametrize("cut_at", [0.5, 1.5, 2.0, 2.5, 4.0])
def test_a_generation_that_is_cut_short_kills_its_process(cut_at: float) -> None:
    """However its task ends, the slot is proven idle or the process group dead."""

    async def play() -> bool:
        engine = ScriptedEngine([(1.0, HEAD), (2.0, END)], lambda now: BUSY if now < 5.0 else AFTER)
        task = asyncio.ensure_future(generation(engine, Collected()).run())
        await asyncio.sleep(cut_at)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return engine.given_up

    assert run_virtual(play())


def test_a_probe_that_keeps_silent_is_given_up_and_asked_anew() -> None:
    """C16: while /slots is silent it is asked again, one question at a time, and nothing is concluded from it."""
    slots = lambda now: None if now < 7.0 else AFTER  # noqa: E731 - a script
    execution, engine, _, now = run([(1.0, HEAD), (2.0, END)], slots)
    assert (execution.ended, execution.idle_proven, engine.given_up) == (Ended.COMPLETE, True, False)
    assert 7.0 <= now < 8.2
    assert engine.questions < 10


def test_without_slots_nothing_is_asked_and_the_end_mark_proves() -> None:
    """A build without /slots, where the pool allows it: no turn of the loop is spent on asking."""

    async def play() -> tuple[Execution, int, int]:
        engine = ScriptedEngine([(30.0, HEAD), (60.0, END)], lambda _: None)
        engine.slots_page = SlotsPage.ABSENT
        running = generation(engine, Collected())
        turns = 0
        advance = running._advance

        def counted() -> bool:
            nonlocal turns
            turns += 1
            return advance()

        running._advance = counted  # type: ignore[method-assign]  # counts the looks that nothing called for
        return await running.run(), engine.questions, turns

    execution, questions, turns = run_virtual(play())
    assert (execution.ended, execution.idle_proven, questions) == (Ended.COMPLETE, True, 0)
    assert turns < 10


def test_events_that_came_together_are_taken_in_order() -> None:
    """Head, body and end in one turn of the loop reach the sink in order, and then the proof is asked for."""
    script = [(1.0, HEAD), (1.0, Data(b"a")), (1.0, Data(b"b")), (1.0, END)]
    execution, engine, sink, now = run(script, lambda _: AFTER)
    assert (sink.pieces, execution.ended, execution.after) == ([b"a", b"b"], Ended.COMPLETE, AFTER)
    assert (now, engine.questions) == (1.0, 3)  # at 0.25, 0.75, and once the end was taken


def test_an_answer_asked_for_before_the_end_proves_nothing() -> None:
    """A probe under way while the response ends may tell of the time before: another one is asked."""

    async def play() -> tuple[Execution, ScriptedEngine, float]:
        engine = ScriptedEngine([(0.1, HEAD), (0.4, END)], lambda _: AFTER)
        engine.slots_take = 0.2  # asked at 0.35 for the first time
        execution = await generation(engine, Collected()).run()
        return execution, engine, asyncio.get_running_loop().time()

    execution, engine, now = run_virtual(play())
    assert (execution.idle_proven, engine.questions) == (True, 2)
    assert now == pytest.approx(0.75)


def test_a_sink_may_cancel_while_it_takes_an_event() -> None:
    """The fleet's own cancelled request: closed at its first byte, whatever came with it, and settled by proof."""

    class Cancelling(Collected):
        running: Generation

        def data(self, data: bytes) -> None:
            super().data(data)
            self.running.cancel()

    async def play() -> tuple[Execution, ScriptedEngine, Cancelling]:
        script = [(1.0, HEAD), (1.0, Data(b"a")), (1.0, Data(b"b")), (9.0, END)]
        engine, sink = ScriptedEngine(script, lambda now: BUSY if now < 2.0 else AFTER), Cancelling()
        sink.running = generation(engine, sink)
        return await sink.running.run(), engine, sink

    execution, engine, sink = run_virtual(play())
    assert (execution.ended, execution.idle_proven, engine.closed_at) == (Ended.CANCELLED, True, 1.0)
    assert sink.pieces == [b"a"]


def test_a_process_that_exits_is_noticed_at_once() -> None:
    """Its exit wakes the generation, which concludes without another probe."""

    async def play() -> tuple[Execution, float]:
        engine = ScriptedEngine([(1.0, HEAD)], lambda _: BUSY)
        asyncio.get_running_loop().call_at(1.1, engine.exited.set_result, -9)
        execution = await generation(engine, Collected()).run()
        return execution, asyncio.get_running_loop().time()

    execution, now = run_virtual(play())
    assert (execution.ended, execution.died, execution.idle_proven, now) == (Ended.LOST, True, False, 1.1)


def test_everything_at_the_same_moment_is_taken_in_one_turn() -> None:
    """A cancel, an event, an answer and an exit that race for the same wake-up: none is lost, the exit wins."""

    async def play() -> Execution:
        engine = ScriptedEngine([(1.0, HEAD), (1.0, Data(b"x"))], lambda _: BUSY)
        engine.slots_take = 0.75  # asked at 0.25, answered at 1.0
        running = generation(engine, Collected())
        asyncio.get_running_loop().call_at(1.0, running.cancel)
        asyncio.get_running_loop().call_at(1.0, engine.exited.set_result, -9)
        return await running.run()

    execution = run_virtual(play())
    assert (execution.ended, execution.died) == (Ended.CANCELLED, True)


@pytest.mark.parametrize("cut_at", [None, 0.3, 1.2, 2.1])
def test_nothing_is_left_behind(cut_at: float | None) -> None:
    """However it ends, nothing rings or calls later for a generation that is over."""

    async def play() -> ScriptedEngine:
        engine = ScriptedEngine([(1.0, HEAD), (2.0, END)], lambda now: BUSY if now < 3.0 else AFTER)
        engine.slots_take = 0.2
        running = generation(engine, Collected())
        task = asyncio.ensure_future(running.run())
        await asyncio.wait({task}, timeout=cut_at)
        task.cancel()
        await asyncio.wait({task})
        assert running._alarm._handle is None
        return engine

    engine = run_virtual(play())
    assert (engine._heard, engine._asked, engine.exited._callbacks) == (None, None, None)
    assert engine.given_up is (cut_at is not None)
