"""An agent that says what a test tells it to, over a link in memory: the other end of a gateway's sessions."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from basert_fleet.core.api import BasertPool
from basert_fleet.core.delivery import Outcome, Part
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.verdict import Reason, Verdict, VerdictKind
from basert_fleet.wire.memory import connect
from basert_fleet.wire.messages import (
    Accepted,
    Body,
    Cancel,
    Desired,
    End,
    Head,
    Hello,
    Lease,
    Offer,
    Refused,
    Rejected,
    WorkerStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CLEAN = Verdict(VerdictKind.CLEAN)
DRIFTED = Verdict.because(Reason.POSITION_DRIFT, drift_tokens=128)
SUSPECT = Verdict.because(Reason.TOOL_ARGUMENTS_INVALID)

ANSWER = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "qwen",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}).encode()  # fmt: skip


def pool(name: str = "qwen", **spec) -> BasertPool:
    """Return a pool with this spec, camelCase keys as in a file."""
    model = {"name": name, "path": f"/models/{name}", **spec.pop("model", {})}
    return BasertPool.model_validate(
        {
            "apiVersion": "fleet.basert.dev/v1alpha1",
            "kind": "BasertPool",
            "metadata": {"name": name},
            "spec": {"model": model, **spec},
        }
    )


def event(delta: dict | None, finish_reason: str | None = None) -> bytes:
    """Return one chunk of a streamed chat as an event; `[DONE]` for None."""
    if delta is None:
        return b"data: [DONE]\n\n"
    chunk = {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "qwen",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }  # fmt: skip
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


ROLE = event({"role": "assistant"})
ENDING = event({}, "stop") + event(None)


def text(content: str) -> bytes:
    """Return a chunk of visible text."""
    return event({"content": content})


class ScriptedAgent:
    """One node; each lease is handed to `script`, which answers with the methods below."""

    def __init__(
        self,
        script: Callable[[ScriptedAgent, Lease], None] | None = None,
        *,
        workers: Sequence[str] = ("qwen-0",),
        pool: str = "qwen",
        node: str = "mac-1",
        incarnation: str = "aaaa",
        brings: Sequence[bytes] = (),
    ) -> None:
        self.script = script or (lambda agent, lease: None)
        self.workers = tuple(workers)
        self.pool = pool
        self.node = node
        self.incarnation = incarnation
        self.brings = tuple(brings)
        self.leases: list[Lease] = []
        self.cancels: list[Cancel] = []
        self.desired: list[Desired] = []
        self.rejections: list[str] = []
        self.lost = False
        self.on_cancel: Callable[[ScriptedAgent, Cancel], None] = lambda agent, cancel: agent.end(
            cancel, Outcome.CANCELLED
        )
        self._generation = dict.fromkeys(self.workers, 1)
        self._counter = dict.fromkeys(self.workers, 0)
        self._changed = asyncio.Event()

    def join(self, fleet, *, report: bool = True, offer: bool = True) -> ScriptedAgent:
        """Dial in, report all workers ready, and offer them."""
        self.session = fleet.new_session()
        self.link, to_agent = connect(self, self.session)
        self.session.bind(to_agent)
        self.link.send(Hello(self.node, self.incarnation, "0", None, self.brings))
        for worker in self.workers:
            if report:
                self.report(worker, "READY")
            if offer:
                self.offer(worker)
        return self

    def report(self, worker: str, phase: str, **fields) -> None:
        """Send a worker's status."""
        self.link.send(WorkerStatus(worker, self.pool, phase, self._generation[worker], "", engine="0.1.7", **fields))

    def offer(self, worker: str) -> Epoch:
        """Offer a slot anew."""
        self._counter[worker] += 1
        epoch = Epoch(self.incarnation, self._generation[worker], self._counter[worker])
        self.link.send(Offer(worker, self.pool, epoch))
        return epoch

    def accept(self, lease: Lease) -> None:
        """Take a lease."""
        self.link.send(Accepted(lease.worker, lease.epoch))

    def refuse(self, lease: Lease) -> None:
        """Refuse a lease that came too late."""
        self.link.send(Refused(lease.worker, lease.epoch))

    def head(self, lease: Lease, status: int = 200, content_type: str = "text/event-stream") -> None:
        """Tell the engine's status."""
        self.link.send(Head(lease.worker, lease.epoch, status, content_type))

    def body(self, lease: Lease, data: bytes, part: Part) -> None:
        """Release a piece."""
        self.link.send(Body(lease.worker, lease.epoch, data, part))

    def end(
        self, lease: Lease | Cancel, outcome: Outcome = Outcome.RELEASED, verdict: Verdict = CLEAN, **fields
    ) -> None:
        """End a lease."""
        self.link.send(End(lease.worker, lease.epoch, outcome, verdict, **fields))

    def settle(self, lease: Lease | Cancel, *, new_process: bool = False) -> None:
        """Offer the slot of an ended lease again, perhaps as a new process."""
        self._generation[lease.worker] += new_process
        self.offer(lease.worker)

    def answer(self, lease: Lease, body: bytes = ANSWER, status: int = 200, verdict: Verdict = CLEAN) -> None:
        """Answer in one piece, cleanly, and offer the slot again."""
        self.accept(lease)
        self.head(lease, status, "application/json")
        self.body(lease, body, Part.WHOLE)
        self.end(lease, verdict=verdict)
        self.settle(lease)

    def stream(self, lease: Lease, *words: str) -> None:
        """Stream these words, cleanly, and offer the slot again."""
        self.begin(lease)
        for word in words:
            self.body(lease, text(word), Part.TEXT)
        self.finish(lease)

    def begin(self, lease: Lease) -> None:
        """Accept a lease and begin a stream with its role chunk."""
        self.accept(lease)
        self.head(lease)
        self.body(lease, ROLE, Part.OPENING)

    def finish(self, lease: Lease) -> None:
        """End a stream, cleanly, and offer the slot again."""
        self.body(lease, ENDING, Part.ENDING)
        self.end(lease)
        self.settle(lease)

    def withhold(self, lease: Lease, verdict: Verdict) -> None:
        """Keep the whole response; the process is replaced if it is contaminated."""
        self.accept(lease)
        self.head(lease)
        self.end(lease, Outcome.WITHHELD, verdict)
        self.settle(lease, new_process=verdict.kind is VerdictKind.CONTAMINATED)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; looked at after each message."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def message_received(self, message: Desired | Lease | Cancel | Rejected) -> None:
        match message:
            case Lease():
                self.leases.append(message)
                self.script(self, message)
            case Cancel():
                self.cancels.append(message)
                self.on_cancel(self, message)
            case Desired():
                self.desired.append(message)
            case Rejected():
                self.rejections.append(message.reason)
        self._changed.set()

    def link_lost(self) -> None:
        self.lost = True
        self._changed.set()
