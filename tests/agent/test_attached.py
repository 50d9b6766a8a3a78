"""Servers that something else runs, as workers: served, recycled by their command, doubted, and never stopped."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import httpx
import pytest

from basert_fleet.agent import attached
from basert_fleet.agent.attached import AttachedServer
from basert_fleet.agent.state import SlotRecord, StateDirectory
from basert_fleet.core.delivery import Outcome
from basert_fleet.core.server_address import server_address
from basert_fleet.core.verdict import Reason
from support.attached import servers
from support.desk import Desk, chat, desk, edited, pool_document, stopped
from support.seed import plain

SLOW = ("--sim-tokens-per-second", "250")
"""Enough to act in the middle of an answer, and quick all the same."""


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, so that no test waits for seconds to pass."""
    for name in ("DOUBT_LOOK_SECONDS", "WATCH_SECONDS", "LATER_LOOK_SECONDS"):
        monkeypatch.setattr(attached, name, 0.02)


async def contaminate(front: Desk) -> None:
    """Send the report's sequence, whose sixth answer is withheld."""
    ends = [(await front.ask(f"seq-{number}"))[0] for number in range(6)]
    assert [end.outcome for end in ends] == [Outcome.RELEASED] * 5 + [Outcome.WITHHELD]


async def test_its_restart_command_is_its_recycle(tmp_path: Path) -> None:
    """A contaminated server is replaced by a fresh process, which proves itself before it serves."""
    async with servers(tmp_path, 1, "--sim-bug", "on") as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached()}) as front:
            front.want_pool(pool_document())
            await contaminate(front)
            end, _ = await front.ask("seq-6")
            assert (end.outcome, end.epoch.generation, server.processes) == (Outcome.RELEASED, 2, 2)
            assert front.statuses["qwen-0"].pid is None
        assert server.is_running


async def test_without_a_command_a_contaminated_server_waits_for_somebody(tmp_path: Path) -> None:
    """It is FATAL and says what to do; once a fresh process is seen there it comes back by itself."""
    async with servers(tmp_path, 1, "--sim-bug", "on") as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(restarts=False)}) as front:
            front.want_pool(pool_document())
            await contaminate(front)
            message = (await front.phase("FATAL")).message
            assert message.startswith("contaminated: position_drift. Restart the server at http://127.0.0.1:")
            await server.restart()
            assert (await front.ask("seq-6"))[0].outcome is Outcome.RELEASED
            assert server.processes == 2


async def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """Without a limit, without a failure, and without running its command: somebody else starts it."""
    async with (
        servers(tmp_path, 1) as (server,),
        desk(tmp_path / "state", {"qwen-0": server.as_attached()}) as front,
    ):
        front.want_pool(pool_document())
        await front.until(lambda: bool(front.statuses) and bool(front.statuses["qwen-0"].message))
        status = front.statuses["qwen-0"]
        assert (status.phase, status.message) == ("STARTING", f"waits for the server at {server.url}")
        await server.restart()
        await front.offer()
        assert server.processes == 1
        assert "BACKOFF" not in front.phases()


async def test_a_waiting_worker_can_stop(tmp_path: Path) -> None:
    """Nothing was ever sent to its server, so nothing is doubted of it later."""
    async with (
        servers(tmp_path, 1) as (server,),
        desk(tmp_path / "state", {"qwen-0": server.as_attached(restarts=False)}) as front,
    ):
        (worker,) = front.want_pool(pool_document())
        await front.phase("STARTING")
        front.want(stopped(worker))
        await front.phase("STOPPED")
        await server.restart()
        front.want(worker)
        await front.offer()


async def test_a_server_restarted_in_mid_lease_loses_the_lease_and_proves_itself_anew(tmp_path: Path) -> None:
    """Somebody restarts it: the request is not judged by what answers now, and runs elsewhere."""
    async with servers(tmp_path, 1, *SLOW) as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(restarts=False)}) as front:
            front.want_pool(pool_document())
            epoch = await front.lease(chat("[[len=1900]] hello", stream=True))
            await front.begun(epoch)
            await server.restart()
            end = await front.end(epoch)
            assert end.outcome in {Outcome.WORKER_LOST, Outcome.CRASHED}
            assert end.verdict.reason is Reason.SERVER_RESTARTED
            assert (await front.offer()).generation == 2
            assert server.processes == 2


async def test_a_server_that_goes_away_is_not_offered(tmp_path: Path) -> None:
    """It is withdrawn as soon as its port refuses connections, and offered again when it is back."""
    async with servers(tmp_path, 1) as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(restarts=False)}) as front:
            front.want_pool(pool_document())
            await front.until(lambda: "qwen-0" in front.offers)
            server.kill()
            await front.until(lambda: "qwen-0" not in front.offers)
            await server.restart()
            assert (await front.offer()).generation == 2


async def test_a_restart_between_two_leases_is_seen_before_the_second_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh process where a used one was: nobody's request is its first."""
    monkeypatch.setattr(attached, "WATCH_SECONDS", 3600.0)
    async with servers(tmp_path, 1) as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(restarts=False)}) as front:
            front.want_pool(pool_document())
            await front.until(lambda: "qwen-0" in front.offers)
            await server.restart()
            await listens(server.url)
            end, _ = await front.ask("seq-0")
            assert (end.outcome, end.verdict.reason) == (Outcome.WITHHELD, Reason.SERVER_RESTARTED)
            assert (await front.offer()).generation == 2


async def test_others_that_use_it_between_two_leases_are_found(tmp_path: Path) -> None:
    """However soon after a lease, their request moved the counters: the next is not sent, and the server restarted."""
    async with servers(tmp_path, 1) as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached()}) as front:
            front.want_pool(pool_document())
            assert (await front.ask("seq-0"))[0].outcome is Outcome.RELEASED
            async with httpx.AsyncClient(base_url=server.url) as other:
                answer = await other.post("/v1/chat/completions", json=plain("a stranger's quite long question"))
            assert answer.status_code == 200
            end, _ = await front.ask("seq-1")
            assert (end.outcome, end.verdict.reason) == (Outcome.WITHHELD, Reason.FOREIGN_TRAFFIC)
            await front.offer()
            assert server.processes == 2


async def test_a_missing_proof_may_come_late(tmp_path: Path) -> None:
    """An engine that ran on past a cancel is out of service until /slots shows that it has ended, and then serves."""
    async with servers(tmp_path, 1, "--sim-tokens-per-second", "250") as (server,):
        await server.restart()
        isolation = {"settleSeconds": 1}
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(restarts=False)}) as front:
            front.want_pool(pool_document(isolation=isolation))
            epoch = await front.lease(chat("[[len=600]] [[fault=run-on]] hello", stream=True))
            await front.begun(epoch)
            front.cancel(epoch)
            assert (await front.end(epoch)).verdict.reason is Reason.NO_PROOF_OF_IDLE
            assert "or the end of its last request" in (await front.phase("FATAL")).message
            assert (await front.offer()).generation == 2
            assert (server.processes, server.overlaps) == (1, 0)


async def test_a_fleet_that_ends_leaves_its_servers_running(tmp_path: Path) -> None:
    """Stopped or not before, they go on; the next fleet takes them as they are if they were idle."""
    async with servers(tmp_path, 2) as both:
        named = {f"qwen-{number}": server.as_attached(restarts=False) for number, server in enumerate(both)}
        for server in both:
            await server.restart()
        for _ in range(2):
            async with desk(tmp_path / "state", named) as front:
                first, _ = front.want_pool(pool_document(replicas=2))
                await front.offer("qwen-0")
                await front.offer("qwen-1")
                front.want(stopped(first))
                await front.phase("STOPPED")
            assert [(server.is_running, server.processes) for server in both] == [(True, 1), (True, 1)]


@pytest.mark.parametrize("restarts", [True, False])
async def test_the_next_fleet_does_not_trust_what_the_last_one_left_at_work(tmp_path: Path, restarts: bool) -> None:
    """A server that was not seen to settle is restarted first, or waits for somebody to do it."""
    async with servers(tmp_path, 1, *SLOW) as (server,):
        await server.restart()
        named = {"qwen-0": server.as_attached(restarts=restarts)}
        async with desk(tmp_path / "state", named) as front:
            front.want_pool(pool_document())
            await front.begun(await front.lease(chat("[[len=1900]] hello", stream=True)))
        assert server.is_running
        async with desk(tmp_path / "state", named) as front:
            front.want_pool(pool_document())
            if not restarts:
                message = (await front.phase("FATAL")).message
                assert "is out of service until /slots shows a fresh process. With restartCommand" in message
                await server.restart()
            await front.offer()
            assert server.processes == 2


async def test_contamination_outlives_the_fleet(tmp_path: Path) -> None:
    """Starting the fleet again is no cure for a server that nobody restarted."""
    async with servers(tmp_path, 1, "--sim-bug", "on") as (server,):
        await server.restart()
        named = {"qwen-0": server.as_attached(restarts=False)}
        async with desk(tmp_path / "state", named) as front:
            front.want_pool(pool_document())
            await contaminate(front)
            await front.phase("FATAL")
        for _ in range(2):
            async with desk(tmp_path / "state", named) as front:
                front.want_pool(pool_document())
                await front.phase("FATAL")
                assert "WARMING" not in front.phases()
        assert server.is_running


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_doubt_that_cannot_be_recorded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """Its last request settled, so the record alone would let the next fleet use the server: a person has to know."""

    def full(_record: SlotRecord) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SlotRecord, "doubted", full)
    async with servers(tmp_path, 1, "--sim-bug", "on") as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(restarts=restarts)}) as front:
            front.want_pool(pool_document())
            await contaminate(front)
            if not restarts:
                await front.phase("FATAL")
                await server.restart()
            await front.offer()
            told = [status for status in front.reported() if "recorded (No space left on device)" in status.message]
            phase, began = (
                ("STARTING", "restarts the server") if restarts else ("FATAL", "contaminated: position_drift. ")
            )
            assert any(status.phase == phase and status.message.startswith(began) for status in told)
            assert front.statuses["qwen-0"].message == ""


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("pass", "0 seconds after restartCommand ended, no fresh process answers at http://127.0.0.1:"),
        ("raise SystemExit(3)", "restartCommand exited with status 3"),
        ("print('so it goes'); raise SystemExit(1)", "Its log ends with: so it goes"),
        ("import signal; signal.pause()", "restartCommand did not end within 1 seconds, and was killed"),
        (None, "restartCommand cannot be run: "),
    ],
    ids=["restarts nothing", "fails", "says why", "hangs", "is missing"],
)
async def test_a_restart_command_that_does_not_restart_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, told: str
) -> None:
    """The server stays out of service, and the message says what the command did."""
    monkeypatch.setattr(attached, "COMMAND_SECONDS", 1.0)
    monkeypatch.setattr(attached, "RESTART_SECONDS", 0.3)
    command = (str(tmp_path / "none"),) if program is None else (sys.executable, "-c", program)
    async with servers(tmp_path, 1, "--sim-bug", "on") as (server,):
        await server.restart()
        named = {"qwen-0": AttachedServer(server_address(server.url), "", command)}
        async with desk(tmp_path / "state", named) as front:
            front.want_pool(pool_document())
            await contaminate(front)
            assert told in (await front.phase("BACKOFF")).message
            assert server.processes == 1


async def test_a_server_gets_the_key_it_asks_for(tmp_path: Path) -> None:
    """With each request, /slots included."""
    async with servers(tmp_path, 1, "--api-key", "s3cret") as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(api_key="s3cret")}) as front:
            front.want_pool(pool_document())
            assert (await front.ask("seq-0"))[0].outcome is Outcome.RELEASED


@pytest.mark.parametrize(("key", "do"), [("wrong", "compare apiKeyFile with"), ("", "set apiKeyFile to a file")])
async def test_a_key_that_is_refused_is_told_and_leaves_no_doubt(tmp_path: Path, key: str, do: str) -> None:
    """Nothing is sent to the server, so a fleet with the right key takes it as it is: it was healthy all along."""
    async with servers(tmp_path, 1, "--api-key", "s3cret") as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached(api_key=key, restarts=False)}) as front:
            front.want_pool(pool_document())
            message = (await front.phase("BACKOFF")).message
            assert f"the server at {server.url} refuses the key (401): {do}" in message
        named = {"qwen-0": server.as_attached(api_key="s3cret", restarts=False)}
        async with desk(tmp_path / "state", named) as front:
            front.want_pool(pool_document())
            assert (await front.ask("seq-0"))[0].outcome is Outcome.RELEASED


async def test_a_changed_template_lets_it_prove_itself_anew(tmp_path: Path) -> None:
    """There is no process to replace: it is let go after its lease, and taken up again."""
    async with servers(tmp_path, 1) as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached()}) as front:
            (worker,) = front.want_pool(pool_document())
            await front.offer()
            front.want(edited(worker, template="another"))
            assert (await front.offer()).generation == 2
            assert server.processes == 1


async def test_no_pid_of_a_server_is_ever_signalled(tmp_path: Path) -> None:
    """Its record names no process, so the next agent has nothing to end."""
    async with servers(tmp_path, 1) as (server,):
        await server.restart()
        async with desk(tmp_path / "state", {"qwen-0": server.as_attached()}) as front:
            front.want_pool(pool_document())
            await front.offer()
        record = StateDirectory(tmp_path / "state").open_slot("qwen-0")
        left = record.read()
        record.close()
        assert left is not None
        assert not left.is_ours_to_end


async def listens(url: str) -> None:
    """Wait until something answers there."""
    async with httpx.AsyncClient(base_url=url, transport=httpx.AsyncHTTPTransport(retries=20)) as client:
        assert (await client.get("/health")).status_code == 200
