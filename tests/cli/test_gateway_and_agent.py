"""The two programs of a fleet across machines: what they refuse to start with, and what they tell a person."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from basert_fleet.cli.exits import Exit
from basert_fleet.cli.main import main
from support.cut_proxy import cut_proxy
from support.fleet import MODEL, free_ports, pool, write_pools
from support.links import Program, agent_program, gateway_program


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A fleet file with one emulated worker."""
    write_pools(tmp_path, pool(replicas=1))
    return tmp_path / "fleet.yaml"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--agents-listen", "0.0.0.0:0"], "0.0.0.0"),
        (["--agents-listen", "0.0.0.0:0", "--agent-token-file", "TOKEN"], "0.0.0.0"),
        (["--listen", "0.0.0.0:0"], "give --keys-file"),
        (["--tls-cert", "TOKEN"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "TOKEN", "--tls-key", "TOKEN"], "cannot use"),
        (["--agent-token-file", "EMPTY"], "holds no token"),
        (["--agent-token-file", "MISSING"], "cannot read"),
    ],
)
def test_a_gateway_that_would_be_open_or_broken_does_not_start(
    options: list[str], told: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything but loopback needs TLS and tokens for agents, keys for clients; wrong files are told by name."""
    (tmp_path / "TOKEN").write_text("secret\n")
    (tmp_path / "EMPTY").write_text("\n")
    named = [str(tmp_path / word) if word.isupper() else word for word in options]
    assert main(["gateway", str(file), *named]) == Exit.USAGE
    err = capsys.readouterr().err
    assert told in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ws://fleet.example:8081"], "unencrypted"),
        (["http://127.0.0.1:8081"], "no gateway's address"),
        (["wss://127.0.0.1:8081", "--ca", "MISSING"], "cannot use"),
        (["ws://127.0.0.1:8081", "--token-file", "MISSING"], "cannot read"),
    ],
)
def test_an_agent_that_would_leak_or_never_connect_does_not_start(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts and tokens never cross a network in the clear; wrong files are told now, not at the first dial."""
    named = [str(tmp_path / word) if word.isupper() else word for word in arguments]
    assert main(["agent", *named]) == Exit.USAGE
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["agent", "ws://127.0.0.1:1", "--node", "Mac 1"],
        ["agent", "ws://127.0.0.1:1", "--node", "a" * 64],
        ["gateway", "f", "--wait-for-agents", "-1"],
        ["gateway", "f", "--wait-for-agents", "soon"],
        ["gateway", "f", "--wait-for-agents", "inf"],
    ],
)
def test_values_that_mean_nothing_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By status 2 and what was wrong."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == Exit.USAGE
    assert "should be" in (err := capsys.readouterr().err) or "is no number" in err


@asynccontextmanager
async def programs(*all_of_them: Program) -> AsyncIterator[None]:
    """Run programs; afterwards each ends by itself, with status 0, the last one first."""
    try:
        for program in all_of_them:
            await program.start()
        yield
        for program in reversed(all_of_them):
            assert await program.stop() == Exit.OK, program.log()
    finally:
        for program in all_of_them:
            if program.process is not None:
                await program.kill()


async def test_a_wrong_token_is_told_at_both_ends_and_a_right_one_needs_no_restart(file: Path, tmp_path: Path) -> None:
    """The agent says what to compare, the gateway that somebody was refused; mending the agent's file is enough."""
    port, ops_port, agents = free_ports(3)
    (tmp_path / "tokens").write_text("old-token\nnew-token\n")
    (tmp_path / "token").write_text("stale-token\n")
    gateway = gateway_program(tmp_path, port, ops_port, agents, "--agent-token-file", str(tmp_path / "tokens"))
    agent = agent_program(tmp_path, "mac-1", agents, "--token-file", str(tmp_path / "token"))
    async with programs(gateway, agent):
        await agent.says("does not know this agent's token")
        await gateway.says("it showed no token, or one that is not in --agent-token-file")
        (tmp_path / "token").write_text("new-token\n")
        await agent.says(f"connected to ws://127.0.0.1:{agents}")
        await gateway.says("node mac-1 is connected")
        await agent.says("is ready")
    for program in (gateway, agent):
        assert not any(token in program.log() for token in ("old-token", "new-token", "stale-token"))


async def links_counted(ops_port: int) -> dict[tuple[str, str], float]:
    """Return what a scrape says of links, by the counter's name and the node."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ops_port}") as client:
        text = (await client.get("/metrics")).raise_for_status().text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        (sample.name.removeprefix("basert_fleet_").removesuffix("_total"), sample.labels["node"]): sample.value
        for sample in samples
        if sample.name.startswith("basert_fleet_link")
    }


async def test_a_scrape_tells_what_links_went_through(file: Path, tmp_path: Path) -> None:
    """A link, a cut and a resume count for their node, a refused token for nobody; all begin at 0."""
    port, ops_port, agents = free_ports(3)
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(f"{name}-token\n")
    gateway = gateway_program(tmp_path, port, ops_port, agents, "--agent-token-file", str(tmp_path / "right"))
    stranger = agent_program(tmp_path, "mac-2", agents, "--token-file", str(tmp_path / "wrong"))
    async with cut_proxy(agents) as line:
        agent = agent_program(tmp_path, "mac-1", line.port, "--token-file", str(tmp_path / "right"))
        async with programs(gateway):
            await gateway.says("agents dial")
            before = await links_counted(ops_port)
            assert len(before) == 6
            assert set(before.values()) == {0}
            async with programs(agent, stranger):
                await gateway.says("node mac-1 is connected")
                assert (await links_counted(ops_port))["links_resumed", "mac-1"] == 0
                line.cut()
                await gateway.says("node mac-1 is out of reach")
                line.forward()
                await gateway.says("node mac-1 is back, and nothing was lost")
                await stranger.says("does not know this agent's token")
                after = await links_counted(ops_port)
    assert after["link_refusals", ""] >= 1
    of_node = {name: value for (name, node), value in after.items() if node == "mac-1"}
    assert of_node.pop("link_duplicates") >= 0
    assert of_node == {
        "links_opened": 1,
        "links_resumed": 1,
        "links_lost": 0,
        "link_refusals": 0,
        "link_malformed_frames": 0,
    }
    assert {node for _, node in after} == {"", "mac-1"}


async def test_an_agent_dials_by_tls_and_the_fleet_serves(
    file: Path, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """With a certificate that --ca names; a client gets its answer, and both ends tell how it went."""
    cert, key = certificate
    port, ops_port, agents = free_ports(3)
    gateway = gateway_program(tmp_path, port, ops_port, agents, "--tls-cert", str(cert), "--tls-key", str(key))
    agent = agent_program(tmp_path, "mac-1", agents, "--ca", str(cert))
    agent.arguments[1] = f"wss://127.0.0.1:{agents}"
    async with programs(gateway, agent):
        await gateway.says("Ready.")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
            answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == httpx.codes.OK
    assert f"agents dial wss://127.0.0.1:{agents}" in gateway.log()
    assert "node mac-1 is gone" in gateway.log()
    assert "the gateway is gone" not in agent.log()
    assert agent.log().endswith("stopped\n")


async def test_failed_handshakes_on_the_agents_port_are_told_in_one_line(
    file: Path, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """A port scan and an agent without --ca leave no traceback; the agent says what it needs."""
    cert, key = certificate
    port, ops_port, agents = free_ports(3)
    gateway = gateway_program(tmp_path, port, ops_port, agents, "--tls-cert", str(cert), "--tls-key", str(key))
    agent = agent_program(tmp_path, "mac-1", agents)
    agent.arguments[1] = f"wss://127.0.0.1:{agents}"
    async with programs(gateway):
        await gateway.says("agents dial")
        _, writer = await asyncio.open_connection("127.0.0.1", agents)
        writer.close()
        await gateway.says("to the agents' port ended within the TLS handshake")
        async with programs(agent):
            await agent.says("does not trust the gateway's certificate")
    for program in (gateway, agent):
        assert "Traceback" not in program.log()
        assert "tb_frame" not in program.log()
    assert gateway.log().count("within the TLS handshake") == 1


async def test_what_a_gateway_ends_by_stopping_is_no_news(file: Path, tmp_path: Path) -> None:
    """Its agents are not told as gone when it closes their links; they say that it is."""
    port, ops_port, agents = free_ports(3)
    gateway = gateway_program(tmp_path, port, ops_port, agents)
    agent = agent_program(tmp_path, "mac-1", agents)
    async with programs(agent, gateway):
        await gateway.says("node mac-1 is connected")
        assert await gateway.stop() == Exit.OK
        await agent.says("the gateway is gone; workers go on")
    assert "is gone" not in gateway.log()


async def test_an_agent_that_dials_the_clients_port_is_told_to_both(file: Path, tmp_path: Path) -> None:
    """The gateway says which port is meant, and nothing of packages to install."""
    port, ops_port, agents = free_ports(3)
    gateway = gateway_program(tmp_path, port, ops_port, agents)
    lost = agent_program(tmp_path, "mac-1", port)
    async with programs(gateway, lost):
        await gateway.says("a WebSocket client came to a port that speaks HTTP only")
        await lost.says("Is it a gateway's address for agents?")
    assert "pip install" not in gateway.log()
    assert "Unsupported upgrade" not in gateway.log()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (("nope.pem", "key.pem"), "cannot read nope.pem: "),
        (("cert.pem", "nope.pem"), "cannot read nope.pem: "),
        (("key.pem", "key.pem"), "cannot use key.pem: it should hold a certificate chain"),
        (("cert.pem", "cert.pem"), "cannot use cert.pem: it should hold the certificate's private key"),
        (("cert.pem", "other.pem"), "cannot use other.pem: it is not the key of the certificate in cert.pem"),
    ],
)
@pytest.mark.usefixtures("file", "certificate")
def test_a_wrong_file_of_tls_is_named(
    files: tuple[str, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Which of the two it is, and what is wrong with it."""
    monkeypatch.chdir(tmp_path)
    other = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", "other.pem"]
    subprocess.run(other, check=True, capture_output=True)
    assert main(["gateway", "fleet.yaml", "--tls-cert", files[0], "--tls-key", files[1]]) == Exit.USAGE
    assert told in capsys.readouterr().err


async def test_c25_one_state_directory_holds_one_of_each(file: Path, tmp_path: Path) -> None:
    """C25: a second gateway or agent on a state directory ends with status 1 and says what to do."""
    port, ops_port, agents, *others = free_ports(6)
    gateway = gateway_program(tmp_path, port, ops_port, agents)
    agent = agent_program(tmp_path, "mac-1", agents)
    async with programs(gateway, agent):
        await gateway.says("node mac-1 is connected")
        for second in (gateway_program(tmp_path, *others), agent_program(tmp_path, "mac-1", agents)):
            second.log_path = tmp_path / "second"
            await second.start()
            assert await second.running.wait() == Exit.FAILURE
            assert second.log().count("is in use by a fleet that runs already") >= 1
            second.log_path.unlink()
