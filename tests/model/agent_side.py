"""One worker of an agent: production lease, proof, judge, gate and lifecycle, called in the order of its loop.

The loop itself (`agent.worker`, `agent.lease_run`, `agent.generation`) is made of coroutines, which cannot be copied
and gone back to; what stands here in its place is what they do between two awaits. Each await is a move, so whatever
can happen meanwhile does. A warm-up, a canary and its scrub are one request to the engine here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import SimpleNamespace

from basert_fleet.agent import lease_run
from basert_fleet.agent.generation import Ended, Execution
from basert_fleet.agent.lease_run import LeaseRun
from basert_fleet.core import isolation
from basert_fleet.core.api import DriftAction, IsolationSpec
from basert_fleet.core.calibration import Baseline, Ending, Probe
from basert_fleet.core.delivery import Admission, Gate, Outcome, Part
from basert_fleet.core.isolation import Check, JudgePolicy
from basert_fleet.core.lifecycle import INITIAL, StartRecord, State, advance
from basert_fleet.core.lifecycle import Event as Lifecycle
from basert_fleet.core.settle import SettlePolicy, Settling, Step
from basert_fleet.core.slot_lease import LeaseAnswer, SlotLease
from basert_fleet.core.verdict import Reason
from basert_fleet.engine.response import ResponseFacts
from basert_fleet.wire.messages import (
    Accepted,
    Body,
    Cancel,
    End,
    Head,
    Lease,
    Offer,
    Recall,
    Refused,
    ToGateway,
    Withdraw,
)
from model.answers import PieceKind, Truth, piece
from model.engine import Engine, Phase
from model.machine import Broken, Event, Fault, Machine, Move, Output, pickled
from model.post import opened, posted

SETTLE_SECONDS = 1e6
"""Longer than any lease has events, each of which takes a second of its own; only the move that waits for it does."""
BASELINE = Baseline(0, dict.fromkeys(Ending, 0))
POLICY = JudgePolicy(tolerance_tokens=2, require_slots=True, drift_action=DriftAction.RECYCLE)
WORKER = SimpleNamespace(spec=SimpleNamespace(isolation=IsolationSpec()))
TRUTH_OF_ANSWER = {"answers right": Truth.RIGHT, "answers odd": Truth.ODD, "answers wrong": Truth.WRONG}


class Run:
    """One lease in progress: what `LeaseRun` and `Generation` remember."""

    overflowed = False

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.streams = lease.body.endswith(b"stream")
        self.cancelled = False
        self.settling: Settling | None = None
        self.settled_before: Probe | None = None
        self.step = Step.WAIT
        self.ended: Ended | None = None
        self.over = self.watched = self.texted = self.headed = False
        self.asked: tuple[Probe, float] | None = None
        self.after: Probe | None = None
        self.truth = Truth.RIGHT
        self.over_at = self.watched_at = self.now = 0.0
        self.gate = Gate(lease.verify, structured=False)
        self.held: list[tuple[Part, bytes]] = []
        self.passed: list[tuple[Part, bytes]] = []

    def admit(self, part: Part, data: bytes) -> None:
        """Take a piece of the response; it goes out now or waits."""
        (self.passed if self.gate.admit(part) is Admission.PASS else self.held).append((part, data))

    def release(self) -> None:
        """Let out what was held."""
        self.passed += self.held
        self.held = []

    @property
    def proof(self) -> Settling:
        """The proof under way; there is one from the POST on."""
        if self.settling is None:
            raise ValueError("nothing was sent yet")
        return self.settling

    def key(self) -> Hashable:
        """Return its state; of times, what comes before what."""
        settling, asked = self.settling, self.asked
        return (
            self.lease.request_id,
            self.lease.agreed,
            self.cancelled,
            self.ended,
            self.over,
            self.watched,
            self.texted,
            self.headed,
            self.truth,
            self.settled_before,
            tuple(self.held),
            asked and (asked[0], self.over and asked[1] > self.over_at, self.watched and asked[1] > self.watched_at),
            settling
            and (
                settling._head_seen,
                settling._start_seen,
                settling._cancelled,
                settling._expired_at is None,
                settling._over_at is None,
                settling.kill_at is None,
            ),
        )


class WorkerSide:
    """One worker and its process, under one incarnation of its agent."""

    def __init__(self, name: str, incarnation: str) -> None:
        self.name = name
        self._offers = SlotLease(incarnation)
        self._state = INITIAL.state
        self._generation = 0
        self._served = 0
        self._engine = Engine()
        self._run: Run | None = None
        self._ahead: Lease | None = None
        self._last_probe: Probe | None = None
        self._sent: list[ToGateway] = []
        self._advance(Lifecycle.WANTED)
        self._start()

    def handle(self, event: Event) -> tuple[Output, ...]:
        """Take one event; outputs are messages to the gateway."""
        match event:
            case ("message", str(item)):
                self._receive(opened(item))
            case ("lost",):
                self._abandon()
            case ("introduce",):
                self._offers.withdraw()  # it is offered anew on the new link, or ahead once more at the lease's end
            case ("restart", str(incarnation)):
                self.__init__(self.name, incarnation)  # type: ignore[misc] - nothing of it survives
            case (str(name),):
                self._move(name)
            case _:
                raise ValueError(f"a worker cannot see {event}")
        sent = tuple(posted(message) for message in self._sent)
        self._sent.clear()
        return sent

    def moves(self) -> tuple[Move, ...]:
        """Return what can happen in it now."""
        moves = self._moves_of_run(self._run) if self._run is not None else self._moves_without_run()
        if not self._engine.dead:
            moves["process dies"] = Fault.CRASH
        return tuple(((name,), fault) for name, fault in moves.items())

    def stored(self) -> Callable[[], Machine]:
        """Keep it as it is."""
        return pickled(self)

    def key(self) -> Hashable:
        """Return its state."""
        offers = self._offers
        epochs = offers.incarnation, offers._counter, offers.offered, offers.leased, offers.ahead, offers._answered
        ahead = self._ahead and (self._ahead.request_id, self._ahead.agreed)
        run = self._run.key() if self._run is not None else None
        return epochs, ahead, self._state, self._generation, self._served, self._engine.key(), self._last_probe, run

    def view(self) -> Hashable:
        """Return the epoch that it offers, if any."""
        return self._offers.offered

    # --- What it is told

    def _receive(self, message: object) -> None:
        match message:
            case Lease():
                self._lease(message)
            case Cancel() if self._offers.holds(message.epoch) and self._run is not None:
                self._cancel(self._run, Ended.CANCELLED)
            case Cancel() | Recall() if message.epoch == self._offers.ahead:
                self._refuse_ahead()

    def _lease(self, lease: Lease) -> None:
        match self._offers.lease(lease.epoch):
            case LeaseAnswer.ACCEPT:
                self._accept(lease)
            case LeaseAnswer.HOLD:
                self._ahead = lease
            case LeaseAnswer.REFUSE:
                self._sent.append(Refused(lease.worker, lease.epoch))

    def _accept(self, lease: Lease) -> None:
        if self._run is not None:
            raise Broken(1, f"{lease.request_id} was accepted while {self._run.lease.request_id} runs")
        if self._engine.drifted:
            raise Broken(2, f"{lease.request_id} was accepted on a slot that was found to mix requests up")
        self._run = Run(lease)
        self._sent.append(Accepted(lease.worker, lease.epoch))

    def _refuse_ahead(self) -> None:
        epoch, self._ahead = self._offers.drop_ahead(), None
        if epoch is not None:
            self._sent.append(Refused(self.name, epoch))

    def _abandon(self) -> None:
        self._refuse_ahead()
        if self._run is not None:
            self._cancel(self._run, Ended.CANCELLED)
        self._offers.withdraw()

    # --- Its life between leases

    def _moves_without_run(self) -> dict[str, Fault | None]:
        match self._state:
            case State.READY if self._engine.dead:
                return {"sees the death": None}
            case State.READY if self._offers.offered is None:
                return {"offers": None}
            case State.READY:
                return {"canary falls due": Fault.CANARY}
            case _:
                return {"canary ends": None}

    def _move(self, name: str) -> None:
        match name:
            case "offers":
                self._offer()
            case "canary falls due":
                self._withdraw()
                self._test()
            case "canary ends":
                self._end_canary()
            case "process dies":
                self._die()
            case "sees the death":
                self._withdraw()
                self._replace(Lifecycle.DIED)
            case _ if self._run is not None:
                self._move_run(self._run, name)
            case _:
                raise ValueError(f"no lease runs that could see {name}")

    def _offer(self) -> None:
        if self._engine.phase is not Phase.IDLE:
            raise Broken(2, f"{self.name} is offered while its process is {self._engine.phase}")
        if self._engine.drifted:
            raise Broken(2, f"{self.name} is offered though its slot was found to mix requests up")
        self._sent.append(Offer(self.name, "pool", self._offers.offer(self._generation), self._served))

    def _withdraw(self) -> None:
        epoch = self._offers.withdraw()
        if epoch is not None:
            self._sent.append(Withdraw(self.name, epoch))
        self._refuse_ahead()

    def _offer_ahead(self) -> None:
        if self._state is State.READY and self._offers.offered is None and self._offers.ahead is None:
            epoch = self._offers.offer_ahead(self._generation)
            self._sent.append(Offer(self.name, "pool", epoch, self._served + 1, ahead=True))

    def _test(self) -> None:
        self._advance(Lifecycle.CHECK_DUE)
        self._engine.post("a canary")

    def _end_canary(self) -> None:
        self._engine.start()
        self._engine.phase = Phase.IDLE
        if self._engine.dead:
            self._replace(Lifecycle.DIED)
        elif self._engine.drifted:
            self._replace(Lifecycle.WARM_UP_FAILED if self._state is State.WARMING else Lifecycle.CONTAMINATED)
        else:
            self._advance(Lifecycle.WARM if self._state is State.WARMING else Lifecycle.PROVEN)
            self._last_probe = self._engine.probe()

    def _die(self) -> None:
        self._engine.dead = True
        if self._run is not None and self._run.settling is not None:
            self._run.step = self._run.settling.process_died()
            self._conclude(self._run)

    def _advance(self, event: Lifecycle) -> None:
        self._state = advance(self._state, event).state

    def _replace(self, event: Lifecycle) -> None:
        """End the process group, and start the next one."""
        self._advance(event)
        self._advance(StartRecord().after_stop(wanted=True))
        self._start()

    def _start(self) -> None:
        self._generation += 1
        self._served = 0
        self._engine = Engine()
        self._last_probe = None
        self._advance(Lifecycle.LISTENING)
        self._engine.post("a warm-up")

    # --- One lease

    def _moves_of_run(self, run: Run) -> dict[str, Fault | None]:
        if run.settling is None:
            return {"posts": None}
        moves: dict[str, Fault | None] = {}
        match self._engine.phase:
            case Phase.QUEUED:
                moves["starts"] = None
            case Phase.RUNNING if run.streams and not run.texted:
                moves["streams text"] = None
            case Phase.RUNNING:
                moves |= {"answers right": None, "answers odd": Fault.ODD, "answers wrong": Fault.WRONG}
            case Phase.FINISHING:
                moves["falls idle"] = None
        if run.asked is not None:
            moves["hears of /slots"] = None
        elif run.over or run.watched or run.cancelled:
            moves["asks /slots"] = None
        if not run.over:
            moves["connection breaks"] = Fault.BREAK
            if not run.texted and not run.watched:
                moves["watchdog fires"] = Fault.WATCHDOG
        if run.ended is None:
            moves["time is over"] = Fault.OVERDUE
        if run.proof.kill_at is not None:
            moves["settle time is over"] = Fault.NO_PROOF
        return moves

    def _move_run(self, run: Run, name: str) -> None:
        run.now += 1.0
        match name:
            case "posts":
                self._post(run)
                return
            case "starts":
                self._engine.start()
            case "streams text":
                self._stream_text(run)
            case "answers right" | "answers odd" | "answers wrong":
                self._answer(run, TRUTH_OF_ANSWER[name])
            case "falls idle":
                self._engine.phase = Phase.IDLE
            case "asks /slots":
                run.asked = self._engine.probe(), run.now
            case "hears of /slots":
                self._hear_of_slots(run)
            case "connection breaks":
                self._end(run, Ended.LOST)
                self._over(run)
            case "watchdog fires":
                run.watched, run.watched_at = True, run.now
                run.step = run.proof.first_byte_expired(run.now)
            case "time is over":
                self._cancel(run, Ended.TIMED_OUT)
                return
            case "settle time is over":
                run.step = run.proof.probe(None, asked_at=run.now, now=run.now + 2 * SETTLE_SECONDS)
        self._follow(run)

    def _post(self, run: Run) -> None:
        """Send the request, unless nobody wants it any more or nobody is there to take it."""
        if run.cancelled:
            self._sent.append(End(self.name, run.lease.epoch, Outcome.CANCELLED, lease_run.CLEAN))
            self._offers.end()
            self._run = None  # nothing was offered ahead: no response came to its end
            return
        run.settling = Settling(SettlePolicy(SETTLE_SECONDS), self._last_probe)
        run.settled_before = self._last_probe
        if self._engine.dead:
            self._end(run, Ended.LOST)
            run.step = run.settling.process_died()
            self._conclude(run)
        else:
            self._engine.post(run.lease.request_id)

    def _stream_text(self, run: Run) -> None:
        run.texted = True
        if run.over:
            return
        run.step = run.proof.head_seen()
        if run.ended is None:
            run.admit(Part.TEXT, self._piece(run, PieceKind.TEXT))
            self._pass(run)

    def _answer(self, run: Run, truth: Truth) -> None:
        """The engine has said all; it may still be busy for a moment."""
        self._engine.phase = Phase.FINISHING
        self._engine.drifted = self._engine.drifted or truth is Truth.WRONG
        if run.over:
            return
        if run.ended is None:
            run.truth = truth
            run.admit(Part.ENDING if run.streams else Part.WHOLE, self._piece(run, PieceKind.REST))
            self._end(run, Ended.COMPLETE)
            if truth is not Truth.ODD:
                self._offer_ahead()
        run.over, run.over_at = True, run.now
        run.step = run.proof.end_mark(run.now)

    def _hear_of_slots(self, run: Run) -> None:
        if run.asked is None:
            raise ValueError("/slots was not asked")
        run.after, asked_at = run.asked
        run.asked = None
        run.step = run.proof.probe(run.after, asked_at=asked_at, now=run.now)
        if run.step is Step.KILL and not run.over:
            self._end(run, Ended.SWALLOWED)

    def _cancel(self, run: Run, ended: Ended) -> None:
        """Ask for an early end, as a cancel and the request's own limit do."""
        run.now += 1.0
        run.cancelled = True
        if run.settling is not None and run.ended is None and run.step is Step.WAIT:
            self._end(run, ended)
            run.step = run.settling.cancel()
            self._follow(run)

    def _over(self, run: Run) -> None:
        """Its connection is closed, by whichever side."""
        run.over, run.over_at = True, run.now
        run.step = run.proof.closed(run.now)

    def _end(self, run: Run, ended: Ended) -> None:
        run.ended = run.ended or ended

    def _follow(self, run: Run) -> None:
        """Do what the proof's step says."""
        if run.step is Step.CLOSE:
            self._over(run)
        if run.step in {Step.IDLE, Step.KILL}:
            self._conclude(run)

    def _piece(self, run: Run, kind: PieceKind) -> bytes:
        return piece(run.lease.request_id, self.name, run.lease.epoch, kind, run.truth)

    def _pass(self, run: Run) -> None:
        passed, run.passed = run.passed, []
        for part, data in passed:
            if not run.headed:
                run.headed = True
                self._sent.append(Head(self.name, run.lease.epoch, 200, "text/plain"))
            self._sent.append(Body(self.name, run.lease.epoch, data, part))

    # --- What a lease leaves behind

    def _conclude(self, run: Run) -> None:
        """Judge the lease, say how it ended, and do what it obliges the worker to."""
        execution = self._execution(run)
        facts = _facts(run)
        evidence = lease_run._evidence(
            execution,
            facts,
            settled=run.settled_before,
            before=None,
            expected_prompt_tokens=None,
            restarted=self._engine.dead,
        )
        verdict = isolation.judge(evidence, BASELINE, POLICY)
        glue = LeaseRun(run.lease, None, WORKER, self._sent.append, None)  # type: ignore[arg-type] - looks at neither
        outcome, error = glue._conclude(execution, run, facts, verdict)  # type: ignore[arg-type] - a run is its response
        self._pass(run)
        owed = isolation.next_check(verdict, POLICY, agreed=run.lease.agreed)
        check = lease_run._check(execution, facts, verdict, owed)
        if check is not Check.NONE or not execution.idle_proven:
            self._withdraw()
        self._sent.append(End(self.name, run.lease.epoch, outcome, verdict, error=error))
        self._served += 1
        self._run = None
        self._offers.end()
        self._after(execution, check)

    def _execution(self, run: Run) -> Execution:
        proven = run.step is Step.IDLE
        if proven:
            self._last_probe = run.after
        return Execution(
            ended=run.ended or Ended.LOST,
            detail="",
            died=self._engine.dead,
            idle_proven=proven,
            after=run.after if proven else None,
            sent_at=0.0,
            over_at=0.0,
        )

    def _after(self, execution: Execution, check: Check) -> None:
        if not execution.idle_proven:
            self._replace(Lifecycle.DIED)
        elif check is Check.RECYCLE:
            if not self._engine.drifted:
                raise Broken(7, "a process was replaced though nothing but its answer spoke against it")
            self._replace(Lifecycle.CONTAMINATED)
        elif check is Check.CANARY:
            self._test()
        elif self._ahead is not None and not self._engine.dead:
            lease, self._ahead = self._ahead, None
            if self._offers.take_ahead() != lease.epoch:
                raise Broken(1, f"{lease.request_id} was held back for another epoch than its own")
            self._accept(lease)


def _facts(run: Run) -> ResponseFacts | None:
    """Return what a reader found in the response; None where it never came to its end."""
    if run.ended is not Ended.COMPLETE:
        return None
    return ResponseFacts(
        finish_reason="stop",
        ending=Ending.STOP,
        prompt_tokens=None,
        completion_tokens=None,
        tool_problem=Reason.TOOL_CALL_MISSING if run.truth is Truth.ODD else None,
        saw_done=True,
        malformed=None,
        engine_error=None,
    )
