"""What only a network can do to a link: cuts, silence, strangers, restarts, and peers that send nonsense."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from picows import WSListener, WSMsgType, ws_connect

from basert_fleet.core.delivery import Part, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.wire import dialling as dialling_module
from basert_fleet.wire import server as server_module
from basert_fleet.wire.codec import MAX_FRAME_BYTES
from basert_fleet.wire.credentials import UnprotectedAddress, token_check
from basert_fleet.wire.dialling import DialFailed, TokenRefused, VersionRefused, dial
from basert_fleet.wire.handshake import Open
from basert_fleet.wire.messages import Accepted, Body, Cancel, Lease
from basert_fleet.wire.resumable import LinkLimits
from basert_fleet.wire.server import NOBODY, AgentServer
from support.cut_proxy import cut_proxy
from support.link_ends import LOST, RESUMED, SUSPENDED, LinkEnd
from support.turns import settled, until
from support.websocket_ends import dialling, gateway

if TYPE_CHECKING:
    from picows import WSFrame, WSTransport

BRIEF = LinkLimits(resume_seconds=0.3)
WATCHFUL = LinkLimits(ping_idle_seconds=0.1, ping_reply_seconds=0.1)


def epoch(number: int) -> Epoch:
    """Return one of many epochs."""
    return Epoch("ab12", 1, number)


def numbered(kind: type[Accepted | Cancel], start: int, end: int) -> list:
    """Return messages that can be told apart."""
    return [kind("w", epoch(number)) for number in range(start, end)]


# --- Cuts


async def test_a_cut_connection_costs_no_message() -> None:
    """Whatever was in flight, and whatever both ends send while there is no connection."""
    async with (
        gateway() as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}") as agent,
    ):
        await until(lambda: agent.end.links)
        for cut in range(5):
            start = 300 * cut
            agent.end.send(*numbered(Accepted, start, start + 100))
            running.end.send(*numbered(Cancel, start, start + 100))
            await settled(cut)  # somewhere on the way
            proxy.cut()
            agent.end.send(*numbered(Accepted, start + 100, start + 200))
            await until(lambda: agent.end.words[-1:] == [SUSPENDED] == running.end.words[-1:])
            agent.end.send(*numbered(Accepted, start + 200, start + 300))
            running.end.send(*numbered(Cancel, start + 100, start + 300))
            proxy.forward()
            await until(lambda: agent.end.words[-1:] == [RESUMED] == running.end.words[-1:])
        await until(lambda: len(agent.end.messages) == len(running.end.messages) == 1500)
        assert running.end.messages == numbered(Accepted, 0, 1500)
        assert agent.end.messages == numbered(Cancel, 0, 1500)
        assert len(agent.end.links) == len(running.ends) == 1
        assert (agent.counts.resumed, agent.counts.lost) == (5, 0)


async def test_a_large_lease_goes_on_where_it_was_cut() -> None:
    """Across several cuts, without starting again each time."""
    lease = Lease("w", epoch(1), "r1", "/v1/x", "application/json", bytes(32 * 2**20), 9.0, VerifyMode.FULL)
    async with (
        gateway() as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}") as agent,
    ):
        await until(lambda: agent.end.links)
        running.end.send(lease, Cancel("w", epoch(1)))
        for _ in range(3):
            await settled(20)
            proxy.cut()
            await until(lambda: agent.end.words[-1:] == [SUSPENDED])
            proxy.forward()
            await until(lambda: agent.end.words[-1:] == [RESUMED])
        await until(lambda: len(agent.end.messages) == 2)
        assert agent.end.messages == [lease, Cancel("w", epoch(1))]


async def test_a_link_is_lost_at_both_ends_when_no_connection_comes_in_time() -> None:
    """Then the agent dials anew, hears of the loss first, and has a new link."""
    async with (
        gateway(limits=BRIEF) as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}", limits=BRIEF) as agent,
    ):
        await until(lambda: agent.end.links)
        first = running.end
        proxy.cut()
        await until(lambda: agent.end.heard == first.heard == [SUSPENDED, LOST])
        proxy.forward()
        await until(lambda: len(agent.end.links) == len(running.ends) == 2)
        agent.end.send(Accepted("w", epoch(1)))
        await until(lambda: running.end.heard == [Accepted("w", epoch(1))])
        assert first.heard == [SUSPENDED, LOST]


async def test_an_agent_that_gave_up_sooner_does_not_wait_for_the_gateway() -> None:
    """Its old session ends when the new one begins; else the node's name would still be taken."""
    async with (
        gateway() as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}", limits=BRIEF) as agent,
    ):
        await until(lambda: agent.end.links)
        proxy.cut()
        await until(lambda: LOST in agent.end.heard)
        proxy.forward()
        await until(lambda: len(running.ends) == 2)
        assert running.ends[0].heard == [SUSPENDED, LOST]


async def test_a_restarted_gateway_knows_no_links() -> None:
    """The agent's is lost, and it gets a new one; nothing of the old one is sent there."""
    async with gateway() as first, dialling(f"ws://127.0.0.1:{first.port}") as agent:
        await until(lambda: agent.end.links)
        for connection in list(first.server._connections):
            connection.abort()
        first.server._server.close()
        await until(lambda: agent.end.heard == [SUSPENDED])
        agent.end.send(Accepted("old", epoch(1)))
        async with gateway(port=first.port) as second:
            await until(lambda: len(agent.end.links) == 2)
            assert agent.end.heard == [SUSPENDED, LOST]
            agent.end.send(Accepted("new", epoch(1)))
            await until(lambda: second.end.heard == [Accepted("new", epoch(1))])


async def test_a_half_open_connection_is_noticed_by_either_end_alone() -> None:
    """No end, no error, no data: the pings find out, and the link goes on with a new connection (C40)."""
    async with (
        gateway(limits=WATCHFUL) as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}", limits=WATCHFUL) as agent,
    ):
        await until(lambda: agent.end.links)
        proxy.swallow()
        agent.end.send(*numbered(Accepted, 0, 10))
        running.end.send(*numbered(Cancel, 0, 10))
        await until(lambda: RESUMED in agent.end.heard and RESUMED in running.end.heard)
        await until(lambda: len(agent.end.messages) == len(running.end.messages) == 10)
        assert running.end.messages == numbered(Accepted, 0, 10)


async def test_a_new_connection_replaces_one_that_the_gateway_still_believes_in() -> None:
    """A Mac that slept dials again long before the gateway's pings tell (C40)."""
    async with (
        gateway() as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}", limits=WATCHFUL) as agent,
    ):
        await until(lambda: agent.end.links)
        proxy.swallow()
        running.end.send(*numbered(Cancel, 0, 10))
        await until(lambda: running.end.heard == [SUSPENDED, RESUMED])
        await until(lambda: agent.end.messages == numbered(Cancel, 0, 10))


# --- Slow and busy links


async def test_a_reader_that_stalls_bounds_what_is_kept_for_it() -> None:
    """Past the bound the link is lost; the sender is never blocked."""
    limits = LinkLimits(backlog_bytes=4 * 2**20)
    async with (
        gateway(limits=limits) as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}") as agent,
    ):
        await until(lambda: agent.end.links)
        proxy.stall()
        for number in range(1000):
            if LOST in running.ends[0].heard:
                break
            running.ends[0].send(
                Lease("w", epoch(number), "r", "/", "application/json", bytes(2**20), 9.0, VerifyMode.OFF)
            )
            await settled(2)
        assert running.ends[0].heard[-1] == LOST
        assert number < 20
        proxy.forward()
        await until(lambda: len(agent.end.links) == 2)


async def test_a_stall_shorter_than_the_pings_patience_goes_unnoticed() -> None:
    """What waited goes out; nobody is told of anything."""
    async with (
        gateway() as running,
        cut_proxy(running.port) as proxy,
        dialling(f"ws://127.0.0.1:{proxy.port}") as agent,
    ):
        await until(lambda: agent.end.links)
        proxy.stall()
        agent.end.send(Body("w", epoch(1), bytes(16 * 2**20), Part.WHOLE))
        await settled(50)
        assert running.end.heard == []
        proxy.forward()
        await until(lambda: running.end.heard)
        assert running.end.words == agent.end.words == []


async def test_small_messages_pass_a_large_one_of_another_worker() -> None:
    """A cancel for one slot is not stalled by a prompt of 32 MiB for another."""
    async with gateway() as running, dialling(f"ws://127.0.0.1:{running.port}") as agent:
        await until(lambda: agent.end.links)
        large = Lease("w", epoch(1), "r1", "/", "application/json", bytes(32 * 2**20), 9.0, VerifyMode.FULL)
        running.end.send(large)
        running.end.send(Cancel("v", epoch(1)), Cancel("w", epoch(1)))
        await until(lambda: len(agent.end.heard) == 3)
        assert agent.end.heard == [Cancel("v", epoch(1)), large, Cancel("w", epoch(1))]


# --- Who may dial


async def test_a_wrong_token_is_refused_and_told_clearly() -> None:
    """The agent goes on trying, slowly, and is let in once the file is right."""
    tokens = ["right"]
    async with gateway(check=token_check(lambda: tuple(tokens))) as running:
        url = f"ws://127.0.0.1:{running.port}"
        async with dialling(url, token="wrong") as agent, dialling(url) as nameless:
            await until(lambda: agent.failures and nameless.failures)
            assert {type(error) for error in agent.failures + nameless.failures} == {TokenRefused}
            assert "token file" in str(agent.failures[0])
            await until(lambda: agent.pauses)
            assert agent.pauses[0] == (5.0, 10.0)
            assert running.ends == []
            assert running.server.counts[NOBODY].refused >= 2
            tokens.append("wrong")
            await until(lambda: agent.end.links)


async def test_ends_without_a_common_version_say_which_one_to_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the agent does not hurry to ask again."""
    monkeypatch.setattr(dialling_module, "PROTOCOL_MIN", 7)
    monkeypatch.setattr(dialling_module, "PROTOCOL_MAX", 9)
    async with gateway() as running, dialling(f"ws://127.0.0.1:{running.port}") as agent:
        await until(lambda: agent.pauses)
        assert isinstance(agent.failures[0], VersionRefused)
        assert "Upgrade the gateway." in str(agent.failures[0])
        assert agent.pauses[0] == (60.0, 120.0)
        assert running.ends == []


async def test_a_gateway_with_a_strange_certificate_gets_no_token(certificate) -> None:
    """Without its authority the agent does not speak to it."""
    context = certificate.server_context()
    async with gateway(ssl_context=context) as running, dialling(f"wss://127.0.0.1:{running.port}", token="x") as agent:
        await until(lambda: agent.failures)
        assert "certificate" in str(agent.failures[0])
        assert running.ends == []


async def test_what_would_be_unprotected_is_refused_before_anything_is_sent() -> None:
    """At either end, at once."""
    with pytest.raises(UnprotectedAddress):
        await dial("ws://gateway.example.com", LinkEnd(), node="mac-1", failed=print)
    with pytest.raises(UnprotectedAddress):
        await AgentServer(LinkEnd, check=None).start("0.0.0.0", 0)


async def test_an_address_where_nobody_listens_is_told_and_tried_again() -> None:
    """Each pause may be longer than the one before."""
    async with gateway() as gone:
        port = gone.port
    async with dialling(f"ws://127.0.0.1:{port}") as agent:
        await until(lambda: len(agent.pauses) == 3)
        assert f"127.0.0.1:{port} cannot be reached" in str(agent.failures[0])
        assert agent.pauses == [(0.0, 0.2), (0.0, 0.4), (0.0, 0.8)]


async def test_a_token_that_cannot_be_read_is_a_failed_attempt() -> None:
    """The file may be just being replaced."""
    failures: list[DialFailed] = []

    def token() -> str:
        raise FileNotFoundError("agent.token")

    async with gateway() as running:
        url = f"ws://127.0.0.1:{running.port}"
        task = asyncio.create_task(
            dial(url, LinkEnd(), node="mac-1", token=token, failed=failures.append, draw=lambda low, high: 0.001)
        )
        await until(lambda: len(failures) == 2)
        task.cancel()
        await asyncio.wait([task])
        assert "agent.token" in str(failures[0])


async def test_a_server_that_is_no_gateway_is_told_as_such() -> None:
    """It may be the port for clients."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, dialling(f"ws://127.0.0.1:{port}") as agent:
        await until(lambda: agent.failures)
        assert "status 404" in str(agent.failures[0])


async def test_a_server_that_never_answers_is_given_up_on_in_time() -> None:
    """And it is told, with the time that it had."""
    open_connections: set[asyncio.StreamWriter] = set()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        await reader.read(-1)
        writer.close()
        open_connections.discard(writer)

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with dialling(url, limits=LinkLimits(handshake_seconds=0.05)) as agent:
            await until(lambda: agent.failures)
            assert "did not answer within 0.05 s" in str(agent.failures[0])
        await until(lambda: not open_connections)


# --- Nonsense


class Stranger(WSListener):
    """A peer that speaks WebSocket, and nothing of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = asyncio.Event()
        self.frames: list[bytes] = []

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.BINARY:
            self.frames.append(frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.gone.set()


async def stranger(port: int) -> tuple[WSTransport, Stranger]:
    """Connect without saying anything yet."""
    transport, listener = await ws_connect(Stranger, f"ws://127.0.0.1:{port}")
    assert isinstance(listener, Stranger)
    return transport, listener


OPEN = msgspec.msgpack.encode(Open("mac-9", 1, 1))


async def flood(port: int, first: list[bytes], kind: WSMsgType, data: bytes) -> None:
    """Connect, say `first`, then send nonsense until the other end has had enough."""
    transport, listener = await stranger(port)
    for frame in first:
        transport.send(WSMsgType.BINARY, frame)
    for _ in range(100):
        transport.send(kind, data)
    await listener.gone.wait()


@pytest.mark.parametrize("first", [[], [OPEN]], ids=["before a link", "on a link"])
@pytest.mark.parametrize(
    ("kind", "data"),
    [(WSMsgType.BINARY, b"\xc1 nonsense"), (WSMsgType.BINARY, b""), (WSMsgType.TEXT, b"hello")],
    ids=["unreadable", "empty", "text"],
)
async def test_a_flood_of_nonsense_ends_each_connection_that_brings_it(first, kind, data) -> None:
    """Counted once per connection, for the node that it said it is; others do not notice."""
    async with gateway() as running, dialling(f"ws://127.0.0.1:{running.port}") as agent:
        await until(lambda: agent.end.links)
        for _ in range(10):
            await flood(running.port, first, kind, data)
        await until(lambda: len(running.server._connections) == 1)
        assert running.server.counts["mac-9" if first else NOBODY].malformed == 10
        agent.end.send(Accepted("w", epoch(1)))
        await until(lambda: running.ends[0].heard == [Accepted("w", epoch(1))])


async def test_a_frame_that_is_too_large_ends_its_connection() -> None:
    """Before it is read."""
    async with gateway() as running:
        await flood(running.port, [OPEN], WSMsgType.BINARY, bytes(MAX_FRAME_BYTES + 1))
        await until(lambda: not running.server._connections)
        assert running.end.messages == []


async def test_names_that_agents_make_up_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many nodes are counted apart, and no long name: they would fill the memory, and the metrics."""
    monkeypatch.setattr(server_module, "COUNTED_NODES", 2)
    async with gateway() as running:
        for number, name in enumerate(["x" * 64, "mac-1", "mac-2", "mac-3", "mac-1"], start=1):
            transport, _ = await stranger(running.port)
            transport.send(WSMsgType.BINARY, msgspec.msgpack.encode(Open(name, 1, 1)))
            await until(lambda number=number: len(running.ends) == number)
        opened = {node: counts.opened for node, counts in running.server.counts.items()}
        assert opened == {NOBODY: 2, "mac-1": 2, "mac-2": 1}


async def test_a_connection_that_asks_for_nothing_is_turned_away() -> None:
    """It has as long as a slow handshake may take."""
    async with gateway(limits=LinkLimits(handshake_seconds=0.05)) as running:
        _, listener = await stranger(running.port)
        await listener.gone.wait()
        assert running.server.counts[NOBODY].refused == 1


async def test_a_link_whose_agent_says_nothing_is_given_up() -> None:
    """It has a channel, and pings are answered: nothing else would ever end it."""
    async with gateway(limits=LinkLimits(handshake_seconds=0.05)) as running:
        transport, listener = await stranger(running.port)
        transport.send(WSMsgType.BINARY, msgspec.msgpack.encode(Open("mac-1", 1, 1)))
        await listener.gone.wait()
        assert running.server.counts["mac-1"].refused == 1


async def test_a_link_that_a_stranger_asks_for_is_not_theirs_to_have() -> None:
    """An unknown name makes a new link, with a name of the gateway's own."""
    async with gateway() as running:
        transport, listener = await stranger(running.port)
        asked = Open("mac-9", 1, 1, channel="guessed", received=5, given_up="other")
        transport.send(WSMsgType.BINARY, msgspec.msgpack.encode(asked))
        await until(lambda: listener.frames)
        answer = msgspec.msgpack.decode(listener.frames[0])
        assert answer["type"] == "Opened"
        assert answer["channel"] not in {"", "guessed"}
        transport.disconnect()


# --- The end


async def test_an_agent_that_stops_dialling_says_goodbye() -> None:
    """The gateway knows at once, after all that the agent had sent, and does not wait for a resume."""
    async with gateway() as running:
        async with dialling(f"ws://127.0.0.1:{running.port}") as agent:
            await until(lambda: agent.end.links)
            agent.end.send(Accepted("w", epoch(1)))
        assert agent.end.heard == [LOST]
        await until(lambda: LOST in running.end.heard)
        assert running.end.heard == [Accepted("w", epoch(1)), LOST]


async def test_a_gateway_that_closes_says_goodbye() -> None:
    """The agent keeps no link to it, and dials for the next one."""
    async with gateway() as running, dialling(f"ws://127.0.0.1:{running.port}") as agent:
        await until(lambda: agent.end.links)
        running.end.send(Cancel("w", epoch(1)))
        await running.server.close()
        assert running.end.heard == [LOST]
        await until(lambda: agent.end.heard == [Cancel("w", epoch(1)), LOST])
        await until(lambda: agent.failures)


async def test_dialling_may_be_cancelled_at_any_turn() -> None:
    """Nothing is left behind, however far it had come; the gateway waits once more for an agent it never met."""
    async with gateway(limits=BRIEF) as running:
        for turns in range(30):
            async with dialling(f"ws://127.0.0.1:{running.port}") as agent:
                await settled(turns)
            assert agent.end.heard == [LOST] * len(agent.end.links)
        await until(lambda: not running.server._connections and not running.server._links)
