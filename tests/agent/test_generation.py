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
    """An engine that says what its script says, when it says it, and answers /slots by a function of time."""

    def __init__(self, script: list[tuple[float, Event]], slots: Callable[[float], Probe | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._script, self._slots_at = list(script), slots
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.killed = False
        self.closed_at: float | None = None
        self.sent_records: list[str] = []
        # As an EngineLine:
        self.host, self.port, self.slots = "engine", 1, SlotsPage.PRESENT
        self.last_probe: Probe | None = IDLE
        self.probed_at = 0.0
        self.connection = self
        self.reusable = True

    # --- its connection

    def send(self, _request: bytes) -> None:
        """The request arrives at time 0 of the script."""

    async def next_event(self) -> Event:
        if not self._script:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(max(0.0, self._script[0][0] - self._loop.time()))
        event = self._script.pop(0)[1]
        if isinstance(event, EngineGone):
            raise event
        return event

    def close(self) -> None:
        self.closed_at = self._loop.time() if self.closed_at is None else self.closed_at

    # --- its /slots

    async def ask(self) -> Probe | None:
        return self._slots_at(self._loop.time())

    def remember(self, probe: Probe | None) -> None:
        self.last_probe = probe

    # --- its process

    def kill_group(self) -> None:
        self.killed = True

    def stopped(self) -> bool:
        return False

    def describe_exit(self) -> str:
        return "ended by SIGKILL"

    # --- its record

    def sent(self) -> None:
        self.sent_records.append("sent")

    def settled(self) -> None:
        self.sent_records.append("settled")


class Collected:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def head(self, head: ResponseHead) -> None:
        """Only its arrival matters."""

    def data(self, data: bytes) -> None:
        self.pieces.append(data)


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
    assert (execution.ended, execution.idle_proven, engine.killed) == (Ended.COMPLETE, True, False)
    assert sink.pieces == [b"x"]


def test_c11_a_stream_of_an_hour_is_cut_by_nothing() -> None:
    """C11: an hour with pauses of fifty seconds while the slot is processing comes to its own end."""
    pieces = [(50.0 * number, Data(b"x")) for number in range(1, 72)]
    script = [(1.0, HEAD), *pieces, (3600.0, END)]
    execution, engine, sink, now = run(script, lambda now: BUSY if now < 3600 else AFTER, timeout_seconds=4000)
    assert (execution.ended, engine.killed, len(sink.pieces)) == (Ended.COMPLETE, False, 71)
    assert now < 3601


def test_c12_a_request_that_is_never_processed_is_given_up_by_a_kill() -> None:
    """C12: no byte and an idle /slots, ten seconds long: swallowed."""
    execution, engine, _, now = run([], lambda _: IDLE)
    assert (execution.ended, execution.idle_proven, engine.killed) == (Ended.SWALLOWED, False, True)
    assert 10 <= now < 20


def test_c02_a_slot_is_free_when_the_engine_is_not_when_the_bytes_are_there() -> None:
    """C02: after the last byte the engine still processes for three seconds; only then the proof comes."""
    execution, engine, _, now = run([(1.0, HEAD), (2.0, END)], lambda now: BUSY if now < 5.0 else AFTER)
    assert (execution.idle_proven, execution.after, engine.killed) == (True, AFTER, False)
    assert 5.0 <= now < 5.2


def test_an_engine_that_never_comes_to_rest_is_killed() -> None:
    """Past settleSeconds without a proof the process goes, and nothing says that it was idle."""
    execution, engine, _, now = run([(1.0, HEAD), (2.0, END)], lambda _: BUSY)
    assert (execution.ended, execution.idle_proven, engine.killed) == (Ended.COMPLETE, False, True)
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
    assert (execution.ended, execution.idle_proven, engine.killed) == (Ended.TIMED_OUT, True, False)
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
    assert (execution.ended, execution.idle_proven, engine.killed) == (Ended.LOST, True, False)


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
        return engine.killed

    assert run_virtual(play())
