"""Attached servers in a fleet file: what is refused, what is told, and what an edit of them leads to."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from basert_fleet.agent.attached import AttachedServer
from basert_fleet.cli.attach import KeyFileRefused, attached_servers, promises, refuse_own_ports
from basert_fleet.cli.endpoint import add_endpoint_arguments, endpoint_settings
from basert_fleet.cli.exits import Exit
from basert_fleet.cli.fleetfile import FleetFileRefused, read_fleet_file, read_pools
from basert_fleet.cli.followed import FileUnreadable
from basert_fleet.cli.listen import Address
from basert_fleet.cli.main import main
from basert_fleet.cli.process import UsageRefused
from basert_fleet.cli.up import AttachChanged, FileOfOneMachine
from basert_fleet.core.api import AttachSpec, ChatMode
from basert_fleet.core.server_address import ServerAddress

API = "apiVersion: fleet.basert.dev/v1alpha1\n"
MODEL = "  model: {name: qwen, path: q.base}\n"
FIRST, SECOND = "http://127.0.0.1:8896", "http://127.0.0.1:8897"


def standalone(*entries: str) -> str:
    """A Standalone document; its entries stand on lines 5, 6, and so on."""
    return f"{API}kind: Standalone\nspec:\n  attach:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries)


def a_pool(replicas: int = 1, more: str = "") -> str:
    """A pool whose spec begins on the fifth line of its document."""
    return f"{API}kind: BasertPool\nmetadata: {{name: qwen}}\nspec:\n  replicas: {replicas}\n{more}{MODEL}"


def named(url: str, more: str = "") -> str:
    """An entry for the pool."""
    return f'pool: qwen, url: "{url}"{more}'


def problems(*documents: str) -> list[str]:
    """What is told of a file: its lines below the first one."""
    with pytest.raises(FleetFileRefused) as caught:
        read_fleet_file("---\n".join(documents).encode(), "f")
    return str(caught.value).splitlines()[1:]


def test_entries_are_workers_in_the_order_of_the_file() -> None:
    """The document may stand anywhere; a pool's servers are numbered as its other workers would be."""
    text = a_pool(2) + "---\n" + standalone(named(SECOND), named(FIRST, ", restartCommand: [launchctl, kickstart]"))
    file = read_fleet_file(text.encode(), "f")
    assert [pool.metadata.name for pool in file.pools] == ["qwen"]
    assert attached_servers(file.attach) == {
        "qwen-0": AttachedServer(ServerAddress("127.0.0.1", 8897)),
        "qwen-1": AttachedServer(ServerAddress("127.0.0.1", 8896), "", ("launchctl", "kickstart")),
    }


@pytest.mark.parametrize(
    "again",
    ["http://127.0.0.1:8896", "http://LOCALHOST:8896", "http://[::1]:8896", "http://127.0.0.2:8896/"],
)
def test_one_server_may_be_named_once(again: str) -> None:
    """By whatever name: two workers would send it two requests at once."""
    told = "f:6: spec.attach[1].url: names the server of line 5 again: two workers would send it two requests at once"
    assert problems(standalone(named(FIRST), named(again)), a_pool(2)) == [told]


def test_the_default_port_is_a_port() -> None:
    """Without a port a URL means 80."""
    assert (
        "names the server of line 5"
        in problems(standalone(named("http://localhost"), named("http://127.0.0.1:80")), a_pool(2))[0]
    )


def test_an_entry_names_a_pool_that_has_no_other_workers() -> None:
    """As many replicas as entries, so that each worker is one of them."""
    assert problems(standalone(named(FIRST), named(SECOND)), a_pool(3)) == [
        "f:12: spec.replicas: should be 2, as all workers of this pool are attached servers, found 3"
    ]
    assert problems(standalone(named(FIRST), f'pool: gwen, url: "{SECOND}"'), a_pool(1)) == [
        'f:6: spec.attach[1].pool: names no pool of this file, found "gwen"'
    ]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("  server: {args: [--kv-bits, '8']}\n", "spec.server.args"),
        ("  server: {command: [basert-serve]}\n", "spec.server.command"),
        ("  server: {maxContext: 8192}\n", "spec.server.maxContext"),
        ("  resources: {memory: 24Gi}\n", "spec.resources.memory"),
    ],
)
def test_what_nothing_would_honour_is_refused(more: str, field: str) -> None:
    """Something else starts the servers, and gives them their flags and their memory (C21)."""
    assert problems(standalone(named(FIRST)), a_pool(1, more)) == [
        f"f:12: {field}: should not be set: the servers of this pool are attached, and something else starts them"
    ]


def test_what_concerns_requests_may_be_set() -> None:
    """How long one may take, and who renders it, is the fleet's own doing, whoever starts the server."""
    settings = "requestTimeoutSeconds: 60, chat: rendered, chatTemplate: {file: q.jinja}, toolDialect: hermes"
    text = standalone(named(FIRST)) + "---\n" + a_pool(1, f"  server: {{{settings}}}\n")
    server = read_fleet_file(text.encode(), "f").pools[0].spec.server
    assert (server.request_timeout_seconds, server.chat) == (60, ChatMode.RENDERED)


def test_without_slots_there_must_be_a_command() -> None:
    """Nothing else could ever end a doubt."""
    more = "  isolation: {requireSlots: false}\n"
    assert "spec.attach[0]: needs restartCommand" in problems(standalone(named(FIRST)), a_pool(1, more))[0]
    text = standalone(named(FIRST, ", restartCommand: [restart]")) + "---\n" + a_pool(1, more)
    assert read_fleet_file(text.encode(), "f").attach


def test_a_wrong_url_is_told_with_its_line() -> None:
    """The schema's words, and the field."""
    (told,) = problems(standalone(named("https://127.0.0.1:8896")), a_pool())
    assert told.startswith("f:5: spec.attach[0].url: should begin with http://: an attached server is of this machine")
    assert told.endswith('found "https://127.0.0.1:8896"')


def test_there_is_one_such_document() -> None:
    """A second one is told with the line of the first."""
    assert problems(standalone(named(FIRST)), standalone(named(SECOND)), a_pool(2)) == [
        "f:8: kind: one Standalone is enough; line 1 has one"
    ]


def test_a_fleet_of_many_machines_attaches_none() -> None:
    """`gateway` refuses the document, and says where it belongs."""
    with pytest.raises(FleetFileRefused, match="by `basert-fleet up` only, on the machine they run on"):
        read_pools(standalone(named(FIRST)).encode(), "f")


def test_the_fleets_own_ports_are_no_servers() -> None:
    """Under any name of this machine; a port that the system is to choose is none yet."""
    servers = {"qwen-0": AttachedServer(ServerAddress("::1", 8080))}
    with pytest.raises(UsageRefused, match=r"qwen-0 .* is the port of --listen 127.0.0.1:8080"):
        refuse_own_ports(servers, {"--listen": Address("127.0.0.1", 8080)})
    refuse_own_ports(servers, {"--listen": Address("127.0.0.1", 0), "--ops-listen": Address("127.0.0.1", 9090)})


def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    """Without the line's end; a file that is missing, or holds something else, is told by its name."""
    file = tmp_path / "key"
    entry = AttachSpec(pool="qwen", url=FIRST, api_key_file=str(file))
    with pytest.raises(FileUnreadable, match=str(file)):
        attached_servers([entry])
    file.write_text("s3cret\n")
    assert attached_servers([entry])["qwen-0"].api_key == "s3cret"
    for wrong in ("", "two words", "line\nline", "schlüssel"):
        file.write_text(wrong)
        with pytest.raises(KeyFileRefused, match=str(file)) as refused:
            attached_servers([entry])
        assert not wrong or wrong not in str(refused.value)


def test_the_weaker_promises_name_the_servers_that_nobody_restarts() -> None:
    """Each worker with its server, and which of them would wait for a person."""
    servers = {
        "qwen-0": AttachedServer(ServerAddress("127.0.0.1", 8896)),
        "qwen-1": AttachedServer(ServerAddress("127.0.0.1", 8897), "", ("restart",)),
    }
    told = promises(servers)
    assert told.startswith(f"qwen-0 is the server at {FIRST}\nqwen-1 is the server at {SECOND}\n")
    assert "qwen-0 has none, and would wait until you restart it." in told
    assert "each has one." in promises({"qwen-1": servers["qwen-1"]})


def test_an_edit_of_the_attached_servers_is_refused() -> None:
    """They are those of the start; the pools may change all the same (C21)."""
    file = FileOfOneMachine()
    entry = standalone(named(FIRST))
    file.read(f"{entry}---\n{a_pool()}".encode(), "f")
    changed = f"{entry}---\n{a_pool(1, '  isolation: {settleSeconds: 5}')}".replace("5}", "5}\n")
    assert file.read(changed.encode(), "f")[0].spec.isolation.settle_seconds == 5
    with pytest.raises(AttachChanged, match=r"spec\.attach changed, which is read at the start only"):
        file.read(f"{standalone(named(SECOND))}---\n{a_pool()}".encode(), "f")
    assert [entry.url for entry in file.attach] == [FIRST]


def test_validate_tells_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In place of the command line that other pools have."""
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{standalone(named(FIRST))}---\n{a_pool()}")
    assert main(["validate", str(file)]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  qwen: 1 worker, for qwen",
        f"    attached: {FIRST}",
    ]


def test_up_refuses_its_own_port_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a usage error, like everything that is wrong with what it was given."""
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{standalone(named('http://localhost:18111'))}---\n{a_pool()}")
    assert main(["up", str(file), "--listen", "127.0.0.1:18111", "--state-dir", str(tmp_path / "s")]) == Exit.USAGE
    assert "would send its requests to itself" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_file_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    """`gateway` and `up` share the endpoint, and read the same file differently."""
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{standalone(named(FIRST))}---\n{a_pool()}")
    parser = argparse.ArgumentParser()
    add_endpoint_arguments(parser)
    args = parser.parse_args([str(file)])
    with pytest.raises(FleetFileRefused):
        endpoint_settings(args)
    assert endpoint_settings(args, FileOfOneMachine().read).fleet_file.first[0].metadata.name == "qwen"
