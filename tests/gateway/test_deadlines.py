"""Everything that time decides, in virtual time: heads, comments, deadlines, leases that nobody accepts."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable

from basert_fleet.core.delivery import Outcome, Part
from basert_fleet.core.verdict import Reason, Verdict
from basert_fleet.gateway.app import ClientApi
from basert_fleet.gateway.auth import Keys
from basert_fleet.gateway.client_protocol import CONNECTION
from basert_fleet.gateway.fleet import Fleet
from basert_fleet.telemetry.logs import FleetLog
from support.scripted_agent import ENDING, ROLE, ScriptedAgent, pool, text
from support.virtual_loop import run_virtual

COMMENT = b": keep-alive\n\n"


class Call:
    """One request through the ASGI application: what is sent, and when."""

    def __init__(self, fleet: Fleet, *, stream: bool = True, headers: dict[str, str] | None = None) -> None:
        loop = asyncio.get_running_loop()
        body = json.dumps({"model": "qwen", "messages": [], "stream": stream}).encode()
        self.sent: list[tuple[float, dict]] = []
        self.aborted = asyncio.Event()
        self.reads = asyncio.Event()  # cleared, the client reads nothing
        self.reads.set()
        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict:
            if requests:
                return requests.pop()
            await self.aborted.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            await self.reads.wait()
            self.sent.append((loop.time(), message))

        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions",
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
            "extensions": {CONNECTION: self},
        }  # fmt: skip
        self.task = asyncio.create_task(ClientApi(fleet, Keys)(scope, receive, send))

    def abort(self) -> None:
        """Be dropped by the gateway."""
        self.aborted.set()

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Take note of who wants to know that this client leaves, which it never does."""

    def forget(self, callback: Callable[[], None]) -> None:
        """Forget them again."""

    @property
    def status(self) -> int | None:
        """The status, once it is sent."""
        return self.sent[0][1]["status"] if self.sent else None

    @property
    def pieces(self) -> list[tuple[float, bytes]]:
        """What of the body was sent, and when."""
        return [(at, message["body"]) for at, message in self.sent[1:] if message["body"]]


def fleet_of(*pools) -> Fleet:
    """Return a fleet that logs to nowhere."""
    fleet = Fleet(FleetLog(io.BytesIO()))
    fleet.apply(pools or (pool(),))
    return fleet


async def until(seconds: float) -> None:
    """Let virtual time pass until this moment."""
    loop = asyncio.get_running_loop()
    reached = asyncio.Event()
    loop.call_at(seconds, reached.set)
    await reached.wait()


def test_no_head_while_a_request_waits() -> None:
    """However long the queue, no byte is written before a lease is accepted, so that a 503 stays possible (C04)."""

    async def main() -> None:
        call = Call(fleet_of())
        await until(299.9)
        assert call.sent == []
        await call.task
        assert call.status == 503
        assert call.sent[0][0] == 300.0

    run_virtual(main())


def test_a_silent_stream_gets_its_head_after_15_seconds() -> None:
    """The head goes out 15 s after the lease was accepted, then comments every 10 s; the text follows whole (C07)."""

    async def main() -> None:
        agent = ScriptedAgent(lambda agent, lease: agent.begin(lease)).join(fleet := fleet_of())
        call = Call(fleet)
        await until(14.9)
        assert call.sent == []
        await until(40.0)
        assert (call.status, call.sent[0][0]) == (200, 15.0)
        assert call.pieces == [(25.0, COMMENT), (35.0, COMMENT)]
        agent.body(agent.leases[0], text("a"), Part.TEXT)
        agent.finish(agent.leases[0])
        await call.task
        assert b"".join(data for _, data in call.pieces[2:]) == ROLE + text("a") + ENDING

    run_virtual(main())


def test_a_retry_after_an_early_head_is_invisible() -> None:
    """Even with the head out, a failed attempt's role chunk never is: the client sees one role chunk."""

    async def main() -> None:
        agent = ScriptedAgent(lambda agent, lease: agent.begin(lease)).join(fleet := fleet_of())
        call = Call(fleet)
        await until(20.0)
        agent.script = lambda agent, lease: agent.stream(lease, "b")
        agent.end(agent.leases[0], Outcome.WORKER_LOST, Verdict.because(Reason.SERVER_RESTARTED))
        agent.settle(agent.leases[0], new_process=True)
        await call.task
        assert b"".join(data for _, data in call.pieces) == ROLE + text("b") + ENDING

    run_virtual(main())


def test_an_error_after_an_early_head_is_an_event() -> None:
    """An engine's refusal that comes after the head is told within the stream, without [DONE]."""

    async def main() -> None:
        agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(fleet := fleet_of())
        call = Call(fleet)
        await until(20.0)
        agent.head(agent.leases[0], 400, "application/json")
        agent.body(agent.leases[0], b'{"error":\n {"message":"no"}}', Part.WHOLE)
        agent.end(agent.leases[0])
        await call.task
        assert call.pieces[-1][1] == b'data: {"error":{"message":"no"}}\n\n'

    run_virtual(main())


def test_a_whole_answer_may_take_as_long_as_the_request_may() -> None:
    """No limit but the request's own cuts a long prefill: nothing is sent for an hour, then all of it (C07, C11)."""

    async def main() -> None:
        fleet = fleet_of(pool(server={"requestTimeoutSeconds": 7200}))
        agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(fleet)
        call = Call(fleet, stream=False)
        await until(3600.0)
        assert call.sent == []
        agent.answer(agent.leases[0])
        await call.task
        assert call.status == 200

    run_virtual(main())


def test_a_lease_carries_what_is_left_of_the_time() -> None:
    """A first attempt may take the request timeout; a late retry only what is left of the total."""

    async def main() -> None:
        fleet = fleet_of(pool(server={"requestTimeoutSeconds": 100}, queue={"maxWaitSeconds": 20}))
        agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(fleet)
        call = Call(fleet, stream=False)
        await until(90.0)
        agent.end(agent.leases[0], Outcome.WORKER_LOST, Verdict.because(Reason.SERVER_RESTARTED))
        agent.settle(agent.leases[0], new_process=True)
        await agent.until(lambda: len(agent.leases) == 2)
        assert [lease.timeout_seconds for lease in agent.leases] == [100.0, 30.0]
        agent.answer(agent.leases[1])
        await call.task

    run_virtual(main())


def test_a_timed_out_lease_is_a_504() -> None:
    """When the agent says that the request's time is over, so does the status; nothing runs again."""

    async def main() -> None:
        agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(fleet := fleet_of())
        call = Call(fleet, stream=False)
        await until(600.0)
        agent.end(agent.leases[0], Outcome.TIMED_OUT, Verdict.because(Reason.NO_PROOF_OF_IDLE))
        await call.task
        assert call.status == 504
        assert len(agent.leases) == 1

    run_virtual(main())


def test_an_agent_that_never_ends_does_not_keep_the_client() -> None:
    """Five seconds past the total time the client gets 504 and the lease is cancelled; the slot stays taken (C29)."""

    async def main() -> None:
        agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(fleet := fleet_of())
        agent.on_cancel = lambda agent, cancel: None
        call = Call(fleet, stream=False)
        await call.task
        assert (call.status, call.sent[0][0]) == (504, 300.0 + 600.0 + 5.0)
        await agent.until(lambda: agent.cancels)
        assert fleet.traffic.leases == {"qwen-0": agent.leases[0].epoch}

    run_virtual(main())


def test_a_lease_that_nobody_accepts_is_taken_elsewhere() -> None:
    """After 2 s the request runs on another slot, as its first attempt; late frames of the old lease are dropped."""

    async def main() -> None:
        fleet = fleet_of(pool(replicas=1))
        mute = ScriptedAgent().join(fleet)
        call = Call(fleet, stream=False)
        await mute.until(lambda: mute.leases)
        other = ScriptedAgent(
            lambda agent, lease: agent.answer(lease), workers=("qwen-1",), node="mac-2", incarnation="bbbb"
        ).join(fleet)
        await call.task
        assert (call.status, call.sent[0][0]) == (200, 2.0)
        assert dict(call.sent[0][1]["headers"])[b"x-basert-attempts"] == b"1"
        await mute.until(lambda: mute.cancels)
        mute.answer(mute.leases[0])
        await until(3.0)
        stale = fleet.metrics.registry.get_sample_value("basert_fleet_stale_frames_total", {"node": "mac-1"})
        assert stale >= 4.0
        assert len(other.leases) == 1

    run_virtual(main())


def test_a_client_that_takes_nothing_is_cut() -> None:
    """A response that waits unread for two minutes is dropped with its connection; the lease had ended long ago."""

    async def main() -> None:
        agent = ScriptedAgent(lambda agent, lease: agent.begin(lease)).join(fleet := fleet_of())
        call = Call(fleet)
        await until(16.0)  # the head is out
        call.reads.clear()
        agent.body(agent.leases[0], text("a"), Part.TEXT)
        agent.finish(agent.leases[0])
        await until(135.9)
        assert not call.aborted.is_set()
        await call.task
        assert call.aborted.is_set()
        assert asyncio.get_running_loop().time() == 136.0

    run_virtual(main())
