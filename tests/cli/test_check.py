"""`basert-fleet check` against real emulator processes: what it finds, what it prints, how it exits."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import jsonschema_rs
import msgspec
import pytest

from basert_fleet.cli.asking import Server
from basert_fleet.cli.counters import CountersFound, ReadingFound
from basert_fleet.cli.findings import AnswerFound, ShapeFound
from basert_fleet.cli.main import main
from basert_fleet.cli.profile import DriftFound, FirstWrong, Profile, ReuseFound
from basert_fleet.cli.recommendation import Recommendation, Setting
from basert_fleet.cli.report import Finding, Report
from support.emulator import emulator

Check = Callable[..., Awaitable[tuple[int, str, str]]]
BUG = ("--sim-bug", "on", "--sim-batch-window", "0.1")  # wide enough for a busy machine: requests at once must overlap
DOCS = Path(__file__).resolve().parents[2] / "docs" / "check.md"


def read(out: str) -> Report:
    """Return what --json printed."""
    return msgspec.json.decode(out, type=Report)


async def test_a_contaminated_server_is_found(check: Check) -> None:
    """The report's sequence: controls and five answers right, the sixth lost, and the exit status says so."""
    async with emulator(*BUG) as server:
        status, out, _ = await check(f"{server.url}/v1", "--requests", "6", "--json")
    found = read(out)
    assert (status, found.all_right, found.version) == (1, False, 1)
    shapes = {shape.name: shape for shape in found.shapes}
    assert [(shape.name, shape.right, shape.judged) for shape in found.shapes] == [
        ("schemas", 4, 4), ("completions", 3, 3), ("cjk", 2, 2),
        ("sequential", 5, 6), ("concurrent-2", 0, 2), ("concurrent-4", 0, 4),
    ]  # fmt: skip
    sequential = shapes["sequential"]
    assert (sequential.first_prompt_tokens, sequential.least_later_prompt_tokens) == (274, 9)
    assert sequential.slots_after is not None
    assert [str(slot) for slot in sequential.slots_after] == ["275/403"]
    assert sequential.answers[5].got == "no call (length, 2048 tokens)"


@pytest.mark.parametrize(
    ("shape", "got"),
    [
        ("concurrent-2", ['lookup_key({"key":"key"})', "no call (length, 2048 tokens)"]),
        (
            "concurrent-4",
            ['lookup_key({"key":"4"})'] * 2 + ["no call (length, 2048 tokens)", 'lookup_key({"key":"4-3"})'],
        ),
    ],
)
async def test_requests_at_once_come_back_as_in_the_report(check: Check, shape: str, got: list[str]) -> None:
    """One shape by itself, on a fresh process: requested key -> what the report says was answered."""
    async with emulator(*BUG) as server:
        status, out, _ = await check(server.url, "--only", shape, "--json")
    found = read(out)
    assert status == 1
    assert sorted(answer.got for answer in found.shapes[0].answers) == sorted(got)


async def test_a_healthy_server_passes(check: Check) -> None:
    """All right is exit status 0, told as a table on standard output."""
    async with emulator() as server:
        status, out, _ = await check(server.url, "--concurrency", "2,16")
    assert status == 0
    assert re.search(r"one after another +12/12 ", out)
    assert re.search(r"16 at once +16/16 ", out)
    assert "All 39 answers are right." in out


async def test_a_person_is_told_what_was_asked_and_what_came(check: Check) -> None:
    """The wrong answers stand below the table, and what a restart has to do with it."""
    async with emulator(*BUG, "--sim-bug-after", "1") as server:
        status, out, err = await check(server.url, "--only", "sequential", "--requests", "3")
    assert status == 1
    assert "one after another: WRONG, 2 of 3 answers are not what was asked for" in out
    assert "seq-1: wrong, no call (length, 2048 tokens)" in out
    assert "restart the server" in out
    assert "asking model: one after another (3 requests)" in err


async def test_errors_are_no_wrong_answers(check: Check) -> None:
    """A server that breaks the connection fails the check, and is not said to mix requests up."""
    async with emulator("--sim-fault", "truncate") as server:
        status, out, _ = await check(server.url, "--only", "sequential", "--requests", "2")
    assert status == 1
    assert "2 of 2 requests got no answer; no answer was wrong." in out
    assert "the connection failed" in out


async def test_a_request_that_takes_too_long_is_an_error(check: Check) -> None:
    """--timeout bounds each request in all."""
    async with emulator("--sim-fault", "hang") as server:
        status, out, _ = await check(server.url, "--only", "sequential", "--requests", "1", "--timeout", "0.2")
    assert status == 1
    assert "no answer within 0.2 s" in out


async def test_a_server_without_slots_is_examined_all_the_same(check: Check) -> None:
    """Where /slots cannot be read, as through a fleet, the answers alone decide."""
    async with emulator("--sim-slots", "off") as server:
        status, out, _ = await check(server.url, "--only", "schemas", "--json")
    found = read(out)
    assert status == 0
    assert found.shapes[0].slots_before is None


async def test_a_server_without_slots_is_asked_for_them_once() -> None:
    """A fleet answers 404, and its log is not filled with more of them; a busy server is asked again."""
    statuses, asked = iter([503, 404]), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(next(statuses))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://fleet") as client:
        server = Server(client, "http://fleet", timeout_seconds=1)
        assert [await server.slots() for _ in range(4)] == [None] * 4
    assert asked == ["/slots"] * 2


def test_a_server_that_cannot_be_reached_is_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was found out, which is neither right nor wrong."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["check", f"http://127.0.0.1:{port}"]) == 2
    assert f"http://127.0.0.1:{port} cannot be reached" in capsys.readouterr().err


async def test_a_missing_or_wrong_api_key_is_exit_status_2(check: Check) -> None:
    """The right key is sent; without it the message names the option."""
    async with emulator("--api-key", "secret") as server:
        status, _, err = await check(server.url)
        assert (status, "--api-key" in err) == (2, True)
        assert (await check(server.url, "--api-key", "secret", "--only", "schemas"))[0] == 0


async def test_an_unknown_shape_is_exit_status_2_and_names_the_known_ones(check: Check) -> None:
    """A misspelt --only must not pass as `nothing wrong`."""
    async with emulator() as server:
        status, _, err = await check(server.url, "--only", "sequentail")
    assert status == 2
    assert "schemas, completions, cjk, sequential, concurrent-2, concurrent-4" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["127.0.0.1:8080"], ["ftp://127.0.0.1"], ["http://"], ["http://[::1"],
        ["http://h", "--requests", "0"], ["http://h", "--requests", "x"], ["http://h", "--requests", "1001"],
        ["http://h", "--concurrency", "1"], ["http://h", "--concurrency", "2,,4"],
        ["http://h", "--report", "pdf"], ["http://h", "--json", "--report", "md"], ["http://h", "--total-timeout", "0"],
        ["http://h", "--restart-command", ""], ["http://h", "--restart-command", "'"],
        ["http://h", "--timeout", "0"], ["http://h", "--timeout", "nan"], ["http://h", "--timeout", "inf"],
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_exit_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is sent."""
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


async def test_the_json_keeps_to_its_schema_and_the_docs_name_every_field(check: Check) -> None:
    """docs/check.md describes exactly the fields that scripts get."""
    async with emulator() as server:
        _, out, _ = await check(server.url, "--json")
    jsonschema_rs.validate(msgspec.json.schema(Report), msgspec.json.decode(out))
    documented = re.findall(r"^\| `(\w+)` \|", DOCS.read_text().partition("## JSON")[2], re.MULTILINE)
    structs = (
        Report, Finding, Profile, CountersFound, ReadingFound, ReuseFound, FirstWrong, DriftFound,
        Recommendation, Setting, ShapeFound, AnswerFound,
    )  # fmt: skip
    assert documented == [field for struct in structs for field in struct.__struct_encode_fields__]
