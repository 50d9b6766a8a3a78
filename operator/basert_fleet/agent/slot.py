"""One engine as its only sender sees it: who it is, how it is reached, and what its slot showed last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from basert_fleet.agent.engines import Engine
from basert_fleet.agent.generation import Ended, EngineLine, Execution, Generation, Sink
from basert_fleet.agent.state import SlotRecord
from basert_fleet.core.api import BasertWorker, ChatMode, WorkerSpec
from basert_fleet.core.calibration import Baseline, Probe
from basert_fleet.core.doubt import is_fresh
from basert_fleet.engine.canary import CHAT_PATH
from basert_fleet.engine.connection import ResponseHead
from basert_fleet.engine.rendered_chat import RenderedChat
from basert_fleet.engine.request import JSON_TYPE, Prepared, prepare
from basert_fleet.engine.response import Reader, ResponseFacts, reader_for

OWN_REQUEST_SECONDS = 120.0
"""Chosen: how long a canary, a scrub or a calibration request may take; they are short on any model."""


@dataclass(slots=True)
class Slot:
    """One engine of one worker. What is known of it goes with it."""

    engine: Engine
    record: SlotRecord
    line: EngineLine
    generation: int
    baseline: Baseline | None = None
    calibration_note: str = ""
    """Why there is no baseline, for a person."""
    served: int = 0
    """Leases that ended in this process."""
    over_at: float | None = None
    """When its last generation was over."""
    handoff_seconds: float | None = None
    """From the end of the generation before the current one to its start."""
    rendering: RenderedChat | None = None
    """What makes completions of its chats; None where the engine takes them as they are."""

    async def prepare(self, path: str, body: bytes, request_id: str, content_type: str = JSON_TYPE) -> Prepared:
        """Make a request ready for this process: the fleet's own go the way that the users' go.

        Raises:
            InvalidRequest: it cannot be served as it is.
        """
        if self.rendering is None or path != CHAT_PATH:
            return prepare(path, body, request_id, content_type)
        return await asyncio.to_thread(self.rendering.prepare, body, request_id)

    def begin(
        self, path: str, content_type: str, body: bytes, *, timeout_seconds: float, worker: BasertWorker, sink: Sink
    ) -> Generation:
        """Make one generation ready to run; the caller must let the one before it end first."""
        self.handoff_seconds = None if self.over_at is None else self.line.loop.time() - self.over_at
        return Generation(
            self.line,
            self.engine,
            self.record,
            request=self.line.requests.post(path, content_type, body),
            timeout_seconds=timeout_seconds,
            settle_seconds=worker.spec.isolation.settle_seconds,
            sink=sink,
        )

    async def ask(self, body: bytes, worker: BasertWorker) -> tuple[Execution, OwnAnswer]:
        """Run one of the fleet's own chat requests to its end."""
        prepared = await self.prepare(CHAT_PATH, body, request_id="")
        return await self._ask(prepared, worker, OwnAnswer(prepared))

    async def ask_and_cancel(self, body: bytes, worker: BasertWorker) -> Execution:
        """Run one of the fleet's own chat requests and cancel it at its first byte."""
        prepared = await self.prepare(CHAT_PATH, body, request_id="")
        execution, _ = await self._ask(prepared, worker, OwnAnswer(prepared, cancel_at_first_byte=True))
        return execution

    async def _ask(self, prepared: Prepared, worker: BasertWorker, answer: OwnAnswer) -> tuple[Execution, OwnAnswer]:
        answer.generation = self.begin(
            prepared.path,
            prepared.content_type,
            prepared.body,
            timeout_seconds=OWN_REQUEST_SECONDS,
            worker=worker,
            sink=answer,
        )
        execution = await answer.generation.run()
        self.over(execution)
        return execution, answer

    def over(self, execution: Execution) -> None:
        """Take note of a generation that has run to its end."""
        self.over_at = execution.over_at
        if execution.ended is Ended.LOST:
            self.engine.suspect_restart(execution.detail)

    async def probe_before_lease(self) -> Probe | None:
        """Return a fresh probe of the idle slot, or None if the last one is recent enough to stand."""
        if self.line.loop.time() - self.line.probed_at < self.engine.probe_good_for_seconds:
            return None
        before, last = await self.line.ask(), self.line.last_probe
        if before is not None:
            if is_fresh(before) and last is not None and not is_fresh(last):
                self.engine.suspect_restart("/slots shows a process that was never used")
            self.line.remember(before)
        return before

    def close(self) -> None:
        """Close the connections; the engine is ended by its worker."""
        self.line.close()


class OwnAnswer:
    """Reads the answer to one of the fleet's own requests."""

    def __init__(self, prepared: Prepared, *, cancel_at_first_byte: bool = False) -> None:
        self._prepared = prepared
        self._reader: Reader | None = None
        self._cancel_at_first_byte = cancel_at_first_byte
        self.generation: Generation | None = None
        self.status: int | None = None

    def head(self, head: ResponseHead) -> None:
        """Take the status."""
        self.status, self._reader = head.status, reader_for(self._prepared, head)

    def data(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self._reader is not None:
            self._reader.feed(data)
        if self._cancel_at_first_byte and self.generation is not None:
            self.generation.cancel()

    def end(self) -> None:
        """Do nothing: it is read once its slot is settled."""

    def finish(self) -> tuple[bytes, ResponseFacts | None]:
        """Return the whole body, empty if there is none, and what was found in it."""
        if self._reader is None:
            return b"", None
        body = b"".join(piece.data for piece in self._reader.finish())
        return body, self._reader.facts()


async def rendering_of(spec: WorkerSpec) -> RenderedChat | None:
    """Return what renders the chats of a worker's next process, read anew; None where the engine does it.

    Raises:
        TemplateMissing: the pool's chat template cannot be used.
    """
    if spec.server.chat is ChatMode.NATIVE:
        return None
    return await asyncio.to_thread(RenderedChat.load, spec.server, spec.model)
