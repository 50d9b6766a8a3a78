"""One worker: drives its lifecycle table, and with it the sequential life of its slot.

This loop is the only owner of the worker's phase, of its process and of what is offered. Whatever is sent to the
process is sent from here, one after another (promise 1).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from basert_fleet.agent.engines import EngineSource, StartFailed
from basert_fleet.agent.lease_run import LeaseRun, Settled
from basert_fleet.agent.processes import SpawnFailed
from basert_fleet.agent.proving import Finding, Proof
from basert_fleet.agent.slot import Slot, rendering_of
from basert_fleet.agent.state import SlotRecord
from basert_fleet.agent.worker_log import last_lines, rotate, size
from basert_fleet.core.api import BasertWorker, CanaryProfile, IsolationLevel, WorkerState
from basert_fleet.core.calibration import Ending, Probe
from basert_fleet.core.delivery import Outcome
from basert_fleet.core.isolation import CanarySchedule, Check, DriftTrust
from basert_fleet.core.lifecycle import INITIAL, SPEC_CHANGED, Do, Event, StartRecord, State, advance
from basert_fleet.core.slot_lease import LeaseAnswer, SlotLease
from basert_fleet.core.verdict import Reason, Verdict
from basert_fleet.engine.template_files import TemplateMissing
from basert_fleet.wire.alarm import Alarm
from basert_fleet.wire.messages import (
    Accepted,
    Cancel,
    End,
    Lease,
    Offer,
    Recall,
    Refused,
    ToGateway,
    Withdraw,
    WorkerStatus,
)

DRAIN_SECONDS = 5.0
"""How long an idle process may take to exit by itself once asked; it has nothing left to finish."""
REAP_SECONDS = 5.0
"""How long a killed process may take to be gone; the kernel needs milliseconds, a swapping machine more."""
PROVED_AFTER_SECONDS = 60.0
"""Chosen: a process that idled this long and then died did not fail to start."""
WAITS_FOR_TURN = "waits for its turn: other workers of this node are starting"
LOG_LINES = 5
"""How many last lines of the engine's output go into the message of a failure."""
DRIFT_UNUSABLE = (
    "DriftUnusable: several fresh processes of this pool drifted at once although their canaries passed, so this "
    "build's counters do not follow what its warm-up shows."
)

T = TypeVar("T")


class Worker:
    """One worker on this node, from the first document that names it until it is removed."""

    def __init__(
        self,
        worker: BasertWorker,
        *,
        incarnation: str,
        record: SlotRecord,
        engines: EngineSource,
        log: Path,
        after_generation: int,
        trust_of: Callable[[str], DriftTrust],
        send: Callable[[ToGateway], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._record, self._engines, self._log = record, engines, log
        self._trust_of, self._send = trust_of, send
        self._offers = SlotLease(incarnation)
        self._state, self._do = INITIAL.state, INITIAL.do
        self._message = ""
        self._generation = after_generation
        self._log_start = 0
        self._ready_at = 0.0
        self._template = ""
        self._slot: Slot | None = None
        self._starts = StartRecord()
        self._schedule = self._new_schedule()
        self._learnable: tuple[Ending, Probe, int | None] | None = None
        self._run: LeaseRun | None = None
        self._ahead: Lease | None = None
        """What `_offers` holds back."""
        self._recycles: Counter[str] = Counter()
        self._canaries: Counter[bool] = Counter()
        self._stopping = False
        self._changed = asyncio.Event()
        self._alarm = Alarm(self._changed.set)
        self._rest = asyncio.Event()
        self._rest.set()

    # --- what is asked of it

    @property
    def name(self) -> str:
        """The worker's name, which is also its slot's."""
        return self._worker.metadata.name

    @property
    def generation(self) -> int:
        """How many processes of this worker there have been since the agent started."""
        return self._generation

    @property
    def wanted(self) -> bool:
        """Whether a process of this worker should run."""
        return not self._stopping and self._worker.spec.state is WorkerState.RUNNING

    @property
    def has_stopped(self) -> bool:
        """Whether its document asks for no process, and there is none."""
        return self._state is State.STOPPED and self._worker.spec.state is WorkerState.STOPPED

    async def rested(self) -> None:
        """Return once no process of this worker exists."""
        await self._rest.wait()

    def update(self, worker: BasertWorker) -> None:
        """Take a newer document of this worker; a changed template ends the current process after its lease."""
        before, self._worker = self._worker, worker
        canary = worker.spec.isolation.canary
        self._schedule.reconfigure(every_requests=canary.every_requests, every_seconds=canary.every_seconds)
        if before.spec.template != worker.spec.template:
            self._starts = self._starts.proved()
        self._heed_change()

    def stop(self) -> None:
        """Ask it to end for good, whatever its document says: after its lease, without a process."""
        self._stopping = True
        self._heed_change()

    def lease(self, lease: Lease) -> None:
        """Take a lease, or say that it came too late."""
        match self._offers.lease(lease.epoch):
            case LeaseAnswer.ACCEPT:
                self._accept(lease)
                self._changed.set()
            case LeaseAnswer.HOLD:
                self._ahead = lease
            case LeaseAnswer.REFUSE:
                self._send(Refused(lease.worker, lease.epoch))
            case LeaseAnswer.IGNORE:
                pass

    def cancel(self, cancel: Cancel) -> None:
        """Stop working on a lease; one that is over already is left alone."""
        if self._offers.holds(cancel.epoch) and self._run is not None:
            self._run.cancel()
        elif cancel.epoch == self._offers.ahead:
            self._refuse_ahead()

    def recall(self, recall: Recall) -> None:
        """Give a lease back that still waits for the one before it; any other goes on."""
        if recall.epoch == self._offers.ahead:
            self._refuse_ahead()

    def abandoned(self) -> None:
        """Take note that the gateway is gone: nobody wants what it was given."""
        self._refuse_ahead()
        if self._run is not None:
            self._run.cancel()

    def introduced(self) -> None:
        """Take note of a new link: what was offered before it is taken back, and offered anew on it."""
        self._offers.withdraw()
        self._changed.set()

    def status(self) -> WorkerStatus:
        """Return the worker as it is now."""
        slot = self._slot
        return WorkerStatus(
            worker=self.name,
            pool=self._worker.spec.pool,
            phase=self._state.value,
            generation=self._generation,
            template=self._template if slot is not None else "",
            message=self._message,
            calibrated=slot.baseline is not None if slot is not None and self._state is not State.WARMING else None,
            pid=slot.engine.pid if slot is not None else None,
            engine=Path(self._worker.spec.server.command[0]).name,
            canaries_passed=self._canaries[True],
            canaries_failed=self._canaries[False],
            recycles=dict(self._recycles),
        )

    # --- the loop

    async def run(self) -> None:
        """Live until cancelled. However it ends, its engine is given up (see `Process`) and its lock given back."""
        activities: dict[Do, Callable[[], Awaitable[Event]]] = {
            Do.AWAIT_WANTED: self._await_wanted,
            Do.START_PROCESS: self._start,
            Do.WARM_UP: self._warm_up,
            Do.SERVE: self._serve,
            Do.FINISH_LEASE: self._serve,
            Do.TEST: self._test,
            Do.STOP_GROUP: self._stop_group,
            Do.KILL_GROUP: self._kill_group,
            Do.WAIT_BACKOFF: self._wait_backoff,
            Do.AWAIT_CHANGE: self._await_change,
        }
        try:
            while True:
                self._advance(await activities[self._do]())
        finally:
            try:
                await self._die()
            finally:
                self._record.close()

    async def _die(self) -> None:
        """Leave no engine in use and no lease without an end: a request whose loop was cut short runs elsewhere."""
        self._alarm.cancel()
        if self._slot is not None:
            self._slot.engine.give_up()
            self._slot.close()
        self.withdraw()
        if self._offers.leased is not None:
            verdict = Verdict.because(Reason.NO_PROOF_OF_IDLE)
            self._send(End(self.name, self._offers.end(), Outcome.WORKER_LOST, verdict, error="the worker was ended"))
        if self._slot is not None:
            await asyncio.wait({self._slot.engine.exited}, timeout=REAP_SECONDS)

    def _advance(self, event: Event) -> None:
        step = advance(self._state, event)
        self._state, self._do = step.state, step.do
        if self._state is State.STOPPED:
            self._rest.set()
        else:
            self._rest.clear()
        self._send(self.status())

    def _tell(self, message: str) -> None:
        """Report a message within a phase."""
        self._message = message
        self._send(self.status())

    def _heed_change(self) -> None:
        """Let the loop see a changed wish; a serving worker shows at once that it drains."""
        if self._state is State.READY and not self._is_current:
            self._drain()
        self._changed.set()

    def _drain(self) -> None:
        if self.wanted:
            self._recycles[SPEC_CHANGED] += 1
        self._message = "its spec changed" if self.wanted else "it is not wanted any more"
        self._advance(Event.UNWANTED)

    @property
    def _is_current(self) -> bool:
        """Whether the process at hand is the one that is wanted, and may serve by what the spec says now."""
        return self.wanted and self._template == self._worker.spec.template and not self._lacks_proof

    @property
    def _lacks_proof(self) -> bool:
        """Whether a serving process has no drift baseline though the spec, perhaps since a moment, requires one."""
        uncalibrated = self._slot is not None and self._slot.baseline is None
        return self._state is State.READY and uncalibrated and self._worker.spec.isolation.require_slots

    @property
    def _current_slot(self) -> Slot:
        if self._slot is None:
            raise RuntimeError(f"worker {self.name} has no process in {self._state}")
        return self._slot

    async def _next_change(self, until: float | None = None) -> None:
        """Return once something changed, or at `until`; perhaps earlier, so whoever calls looks what is due."""
        self._alarm.set_by(until)
        await self._changed.wait()
        self._changed.clear()

    async def _while_current(self, work: Coroutine[None, None, T]) -> T | None:
        """Return what the work gives, or None if it was cut short because the process is not wanted any more."""
        task = asyncio.create_task(work, name=f"{self.name} {self._state}")
        task.add_done_callback(lambda _: self._changed.set())
        try:
            while not task.done() and self._is_current:
                await self._next_change()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    # --- its activities, one for each `Do`; each returns what came of it

    async def _await_wanted(self) -> Event:
        while not self.wanted:
            await self._next_change()
        return Event.WANTED

    async def _start(self) -> Event:
        self._template = self._worker.spec.template
        with self._engines.turn() as turn:
            if not turn.is_set():
                self._tell(WAITS_FOR_TURN)
                await self._while_current(turn.wait())
                self._tell("")
            return await self._bring_up() if self._is_current else Event.UNWANTED

    async def _bring_up(self) -> Event:
        """Start the next process, in this worker's turn to do so."""
        self._generation += 1
        self._message = self._engines.note
        if self._message:
            self._send(self.status())
        try:
            rotate(self._log)
            self._log_start = size(self._log)
            rendering = await rendering_of(self._worker.spec)
            slot = await self._engines.launch(self._worker, self._generation)
            slot.rendering = rendering
            self._slot = slot
            slot.engine.exited.add_done_callback(lambda _: self._changed.set())
            await self._while_current(self._engines.listening(slot))
        except (SpawnFailed, StartFailed, TemplateMissing, OSError) as error:
            return self._failed(Event.START_FAILED, str(error))
        self._message = ""
        return Event.LISTENING if self._is_current else Event.UNWANTED

    async def _warm_up(self) -> Event:
        slot = self._current_slot
        proof = Proof(slot, self._worker)
        finding = await self._while_current(proof.warm_up())
        if finding is None:
            return Event.UNWANTED
        self._count_canary(finding)
        if finding.event is Event.WARM and slot.baseline is not None and self._trust_of(self._template).unusable:
            finding = proof.uncalibrated(DRIFT_UNUSABLE)
        if finding.event is not Event.WARM:
            return self._failed(finding.event, finding.message)
        self._schedule = self._new_schedule()
        self._ready_at = self._loop.time()
        self._message = slot.calibration_note
        slot.engine.remember_family()
        return Event.WARM

    async def _serve(self) -> Event:
        """Serve leases one after another until something else has to be done; then nothing is offered or leased."""
        while True:
            if self._run is not None:
                event = await self._execute(self._run)
            else:
                event = self._interruption()
                if event is None and self._current_slot.engine.has_exited():
                    await asyncio.wait({self._current_slot.engine.exited})  # how it ended is about to be told
                elif event is None and not self._take_ahead():
                    self._offer()
                    await self._next_change(self._schedule.next_due_at() if self._runs_canaries else None)
            if event is not None:
                self.withdraw()
                return event

    def _interruption(self) -> Event | None:
        """Say why the idle slot must not be offered, if it must not."""
        slot = self._current_slot
        if self._state is State.READY and not self._is_current:
            self._drain()
        if slot.engine.exited.done():
            self._message = f"the idle process {slot.engine.describe_exit()}"
            self._recycles[Reason.SERVER_RESTARTED] += 1
            idled_long = self._loop.time() - self._ready_at >= PROVED_AFTER_SECONDS
            self._starts = self._starts.proved() if idled_long else self._starts.failed()
            return Event.DIED
        if self._state is State.DRAINING:
            return Event.DRAINED
        return Event.CHECK_DUE if self._runs_canaries and self._schedule.due(self._loop.time()) else None

    def _offer(self) -> None:
        if self._offers.offered is None:
            epoch = self._offers.offer(self._generation)
            self._send(Offer(self.name, self._worker.spec.pool, epoch, self._current_slot.served))

    def offer_ahead(self) -> None:
        """Offer the slot while it is being verified, so that the next lease travels meanwhile."""
        verifies_only = self._worker.spec.isolation.level is IsolationLevel.VERIFY
        if self._state is not State.READY or not self._is_current or not verifies_only:
            return
        if self._runs_canaries and self._schedule.due_after_another(self._loop.time()):
            return
        if self._offers.offered is None and self._offers.ahead is None:
            epoch, served = self._offers.offer_ahead(self._generation), self._current_slot.served + 1
            self._send(Offer(self.name, self._worker.spec.pool, epoch, served, ahead=True))

    def withdraw(self) -> None:
        """Take back what is offered, ahead or not, and refuse what was leased ahead."""
        epoch = self._offers.withdraw()
        if epoch is not None:
            self._send(Withdraw(self.name, epoch))
        self._refuse_ahead()

    def _refuse_ahead(self) -> None:
        epoch, self._ahead = self._offers.drop_ahead(), None
        if epoch is not None:
            self._send(Refused(self.name, epoch))

    def _accept(self, lease: Lease) -> None:
        self._run = LeaseRun(lease, self._current_slot, self._worker, self._send, self)
        self._send(Accepted(lease.worker, lease.epoch))

    def _take_ahead(self) -> bool:
        """Accept the lease that waited for this slot to be found clean; False if there is none."""
        epoch = self._offers.take_ahead()
        if epoch is None:
            return False
        lease, self._ahead = self._ahead, None
        if lease is None or lease.epoch != epoch:
            raise RuntimeError(f"the lease of {epoch} was not kept")
        self._accept(lease)
        return True

    async def _execute(self, run: LeaseRun) -> Event | None:
        settled = await run.run()
        self._run = None
        self._offers.end()
        if settled.sent:
            self._starts = self._starts.proved()
            self._schedule.served(self._loop.time())
            self._trust_of(self._template).judged(self.name, self._generation, settled.verdict)
        event = self._after(settled)
        if event is None and self._worker.spec.isolation.level is IsolationLevel.SCRUB:
            self.withdraw()  # the level may have changed since it was offered ahead
            finding = await Proof(self._current_slot, self._worker).scrub()
            if finding is not None:
                self._note_end(finding.message, finding.reason)
                return finding.event
        return event

    def _after(self, settled: Settled) -> Event | None:
        """Say what a lease obliges the worker to do before its next offer."""
        if not settled.alive:
            slot = self._current_slot
            how = slot.engine.describe_exit() if slot.engine.exited.done() else "was not proven idle and killed"
            self._note_end(f"the process {how}", settled.verdict.reason)
            return Event.DIED
        match settled.check:
            case Check.RECYCLE:
                self._note_end(f"contaminated: {settled.verdict.reason}", settled.verdict.reason)
                return Event.CONTAMINATED
            case Check.CANARY if self._state is State.READY:
                self._learnable = settled.learnable
                self._message = f"to be tested: {settled.verdict.reason or 'a broken response'}"
                return Event.CHECK_DUE
            case _:
                return None

    async def _test(self) -> Event:
        slot, learnable, self._learnable = self._current_slot, self._learnable, None
        slot.engine.remember_family()
        finding = await self._while_current(Proof(slot, self._worker).test())
        if finding is None:
            return Event.UNWANTED
        self._count_canary(finding)
        if finding.event is not Event.PROVEN:
            self._note_end(finding.message, finding.reason)
            return finding.event
        if learnable is not None and slot.baseline is not None:
            ending, probe, tokens = learnable
            slot.baseline = slot.baseline.learn(ending, probe, tokens)
        self._starts = self._starts.proved()
        self._schedule.proven(self._loop.time())
        self._message = slot.calibration_note
        return Event.PROVEN

    async def _stop_group(self) -> Event:
        return await self._end_group(DRAIN_SECONDS)

    async def _kill_group(self) -> Event:
        return await self._end_group(0.0)

    async def _end_group(self, drain_seconds: float) -> Event:
        if self._slot is not None:
            self._slot.close()
            await self._slot.engine.end(drain_seconds=drain_seconds)
            self._slot = None
        unrecorded = self._engines.ended()
        out_of_service = self._engines.out_of_service if self.wanted else ""
        for more in filter(None, (out_of_service, unrecorded)):
            self._message = f"{self._message.rstrip('.')}. {more}".removeprefix(". ")
        return Event.GIVE_UP if out_of_service else self._starts.after_stop(wanted=self.wanted)

    async def _wait_backoff(self) -> Event:
        until = self._loop.time() + self._starts.backoff_seconds(random.random())  # noqa: S311 - spreads starts
        while self.wanted and self._is_current and self._loop.time() < until:
            await self._next_change(until)
        return Event.RESTART if self.wanted else Event.UNWANTED

    async def _await_change(self) -> Event:
        await self._while_current(self._engines.mended())
        return Event.RESTART if self.wanted else Event.UNWANTED

    # --- what is noted on the way

    @property
    def _runs_canaries(self) -> bool:
        return self._worker.spec.isolation.canary.profile is not CanaryProfile.NONE

    def _new_schedule(self) -> CanarySchedule:
        canary = self._worker.spec.isolation.canary
        schedule = CanarySchedule(every_requests=canary.every_requests, every_seconds=canary.every_seconds)
        schedule.proven(self._loop.time())
        return schedule

    def _count_canary(self, finding: Finding) -> None:
        if finding.canary_passed is not None:
            self._canaries[finding.canary_passed] += 1

    def _failed(self, event: Event, why: str) -> Event:
        """Note that a fresh process did not prove itself, with the last words of its log."""
        self._starts = self._starts.failed()
        said = last_lines(self._log, LOG_LINES, since=self._log_start)
        self._message = why if not said else f"{why.rstrip('.')}. Its log ends with: {' | '.join(said)}"
        return event

    def _note_end(self, message: str, reason: Reason | None) -> None:
        """Note why a process that served is replaced."""
        self._message = message
        self._recycles[reason or Reason.SERVER_RESTARTED] += 1
