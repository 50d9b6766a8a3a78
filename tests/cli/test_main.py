"""The command line as a shell sees it: what it prints, where, and its exit status."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import pytest

from basert_fleet.cli import process, up
from basert_fleet.cli.endpoint import name_of_state
from basert_fleet.cli.exits import Exit
from basert_fleet.cli.main import COMMANDS, main

EMPTY = """\
apiVersion: fleet.basert.dev/v1alpha1
kind: BasertPool
metadata: {name: qwen}
spec:
  model: {name: qwen, path: qwen.base}
  replicas: 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A fleet file that needs no worker."""
    path = tmp_path / "fleet.yaml"
    path.write_text(EMPTY)
    return path


def test_version_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A script can read the version from standard output."""
    assert main(["version"]) == Exit.OK
    assert capsys.readouterr() == (f"{version('basert-fleet')}\n", "")
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == Exit.OK
    assert capsys.readouterr() == (f"{version('basert-fleet')}\n", "")


@pytest.mark.parametrize("argv", [[], ["nothing"], ["up"], ["up", "f", "--listen", "x"], ["up", "f", "--lis", "a:1"]])
def test_a_wrong_command_line_is_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors end with status 2 and say something on stderr; options are not abbreviated."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "basert-fleet" in err


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_tells_its_exit_status(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help describes the command and what its exit status means."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == Exit.OK
    words = " ".join(capsys.readouterr().out.split())
    assert all(f" {status.value} " in words.partition("exit status:")[2] for status in Exit)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read {file}: No such file or directory"),
        ("kind: Deployment", "{file}:1: kind: should be BasertPool"),
        ("a: b: c", "{file}:1: not valid YAML"),
    ],
)
def test_a_wrong_file_is_status_2(
    content: str | None, told: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be used is told with its name and line, never by a traceback."""
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert main(["up", str(file)]) == Exit.USAGE
    assert told.format(file=file) in capsys.readouterr().err


def test_a_wrong_keys_file_is_status_2(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys that cannot be read never mean that everybody may ask."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: 1")
    assert main(["up", str(file), "--keys-file", str(keys)]) == Exit.USAGE
    assert str(keys) in capsys.readouterr().err


def test_an_open_port_needs_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without keys other machines are not served."""
    assert main(["up", str(file), "--listen", "0.0.0.0:0"]) == Exit.USAGE
    assert "give --keys-file" in capsys.readouterr().err


def test_a_taken_port_is_status_1(file: Path, tmp_path: Path) -> None:
    """A port in use is told with its address, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [*UP, str(file), "--listen", address, "--ops-listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "s")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == Exit.FAILURE
    assert ended.stderr.startswith(f"cannot listen on {address}")
    assert "Traceback" not in ended.stderr


UP = [sys.executable, "-m", "basert_fleet.cli.main", "up"]


@pytest.fixture
def file_with_a_worker(file: Path) -> Path:
    """A fleet file with one emulated worker."""
    emulator = [sys.executable, "-m", "basert_fleet.sim"]
    file.write_text(EMPTY.replace("replicas: 0", f"server: {{command: {emulator}}}"))
    return file


async def test_the_program_serves_until_a_signal(file_with_a_worker: Path, tmp_path: Path) -> None:
    """The real program brings its workers up, on the event loop that it chooses, and SIGTERM ends it with status 0."""
    file = file_with_a_worker
    process = await asyncio.create_subprocess_exec(
        *UP, str(file), "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "s"),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    lines = [await process.stderr.readline()]
    while lines[-1] and not lines[-1].startswith(b"Ready."):
        lines.append(await process.stderr.readline())
    assert lines[0].startswith(b"listening on http://127.0.0.1:")
    assert lines[-1], b"".join(lines)
    os.kill(process.pid, signal.SIGTERM)
    rest = (await process.stderr.read()).decode()
    assert await process.wait() == Exit.OK
    assert rest.endswith("stopped\n")


@pytest.fixture
def fleet_and_its_stderr(file: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO, int]]:
    """The real program, listening; the reading end of its stderr, and the writing end that it has too."""
    reader, writer = os.pipe()
    argv = [
        *UP,
        str(file),
        "--listen",
        "127.0.0.1:0",
        "--ops-listen",
        "127.0.0.1:0",
        "--state-dir",
        str(tmp_path / "s"),
    ]
    with os.fdopen(reader, "rb") as stderr, subprocess.Popen(argv, stderr=writer) as process:
        while not stderr.readline().startswith(b"starting"):
            pass
        yield process, stderr, writer
        os.close(writer)


def test_a_stderr_that_nobody_reads_stops_nothing(
    fleet_and_its_stderr: tuple[subprocess.Popen[bytes], BinaryIO, int],
) -> None:
    """With its pipe full, the fleet still drains and ends with status 0; what it had to say is lost."""
    process, _stderr, writer = fleet_and_its_stderr
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)  # the program shares this setting, and hangs in its next write
    process.terminate()
    assert process.wait() == Exit.OK


def test_a_stderr_that_is_closed_stops_nothing(
    fleet_and_its_stderr: tuple[subprocess.Popen[bytes], BinaryIO, int],
) -> None:
    """As after `up | head`: the pipe is broken, and the exit status is still that of the fleet."""
    process, stderr, _writer = fleet_and_its_stderr
    stderr.close()
    process.terminate()
    assert process.wait() == Exit.OK


def test_the_state_directory_follows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fleet file has one state directory, whatever the path to it, and two files have two."""
    one, two = tmp_path / "a" / "fleet.yaml", tmp_path / "b" / "fleet.yaml"
    one.parent.mkdir()
    monkeypatch.chdir(one.parent)
    assert name_of_state(one) == name_of_state(Path("fleet.yaml"))
    assert name_of_state(one) != name_of_state(two)
    assert process.state_home("x") == Path.home() / ".local/state/basert-fleet/x"


@pytest.mark.parametrize(
    ("hostname", "node"),
    [("Anns-Mac-mini.local", "anns-mac-mini"), ("mac_1", "mac-1"), ("", "local"), ("日本", "local"), ("-a-", "a")],
)
def test_a_node_is_called_by_its_host_name(hostname: str, node: str) -> None:
    """The name is one that metrics and Kubernetes take."""
    assert process.node_name(hostname) == node


def test_defaults_are_loopback() -> None:
    """Without options nobody else on the network can reach anything."""
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    args = parser.parse_args(["fleet.yaml"])
    assert (str(args.listen), str(args.ops_listen)) == ("127.0.0.1:8080", "127.0.0.1:9090")
    assert args.listen.is_loopback
    assert args.ops_listen.is_loopback
