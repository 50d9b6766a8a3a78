"""What `check --report` writes: documents that tools read, whatever a server or a person put into them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.cli.answers import Outcome, failed
from basert_fleet.cli.findings import shape_found
from basert_fleet.cli.main import main
from basert_fleet.cli.profile import profile_of
from basert_fleet.cli.report import Report, Status, report
from basert_fleet.cli.report_junit import junit
from basert_fleet.cli.report_markdown import markdown
from basert_fleet.cli.shapes import seed_shapes
from basert_fleet.cli.verdicts import told
from basert_fleet.cli.visible import visible
from support.emulator import emulator

Check = Callable[..., Awaitable[tuple[int, str, str]]]
BUG = ("--sim-bug", "on", "--sim-batch-window", "0.1")
SEQUENTIAL = next(shape for shape in seed_shapes("m", sequential=2, concurrency=()) if shape.name == "sequential")
HOSTILE = "\x1b[31m\x00]]>&<script>|`\n# head\ud800\ufffe"


def report_of(text: str) -> Report:
    """Return a report that holds this text wherever a server or a person may put some."""
    answers = [
        replace(failed(question, text, 0.1), outcome=Outcome.WRONG, finish_reason=text)
        for question in SEQUENTIAL.questions
    ]
    shapes = [shape_found(SEQUENTIAL, answers, 1.0, slots_before=None, slots_after=None)]
    return report(f"http://{text}", text, shapes, profile_of(None, shapes))


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_can_act_on_a_document(text: str) -> None:
    """Any text: the XML is well-formed with the same testcases, a Markdown row stays one, a terminal is left alone."""
    found = report_of(text)
    suite = ET.fromstring(junit(found))  # noqa: S314  # our own document
    assert [case.get("name") for case in suite.iter("testcase")] == [finding.name for finding in found.findings]
    assert markdown(found).count("\n") == markdown(report_of("plain")).count("\n")
    assert all(character == "\n" or character.isprintable() for character in told(found) + markdown(found))


def test_hostile_text_is_shown_and_not_obeyed() -> None:
    """Control characters are told by their escapes, marks of Markdown and XML are no marks any more."""
    assert visible(HOSTILE) == "\\x1b[31m\\x00]]>&<script>|`\\n# head\\ud800\\ufffe"
    written = markdown(report_of(HOSTILE))
    assert "\\<script\\>\\|\\`" in written
    failure = ET.fromstring(junit(report_of(HOSTILE))).find(".//failure")  # noqa: S314  # our own document
    assert failure is not None
    assert "\\x1b[31m\\x00]]>&<script>" in failure.attrib["message"]


@pytest.mark.parametrize("bug", [(), BUG], ids=["healthy", "bug"])
async def test_a_ci_gates_on_the_junit_report_as_on_the_exit_status(check: Check, bug: tuple[str, ...]) -> None:
    """One testcase for each finding; failures and errors are counted, and there are some exactly at exit status 1."""
    async with emulator(*bug) as server:
        status, out, _ = await check(server.url, "--requests", "6", "--report", "junit")
    suite = ET.fromstring(out)  # noqa: S314  # our own document
    cases = {str(case.get("name")): [child.tag for child in case] for case in suite.iter("testcase")}
    assert list(cases) == [
        "counters", "prefix-reuse", "schemas", "completions", "cjk", "sequential", "concurrent-2", "concurrent-4",
        "fresh", "drift",
    ]  # fmt: skip
    failures = sum("failure" in children for children in cases.values())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("10", str(failures), "0")
    assert (status, failures) == ((1, 3) if bug else (0, 0))
    assert cases["fresh"] == ["skipped"]


async def test_a_request_without_an_answer_is_an_error_of_junit(check: Check) -> None:
    """It fails the gate without accusing the server of mixing requests up."""
    async with emulator("--sim-fault", "truncate") as server:
        status, out, _ = await check(server.url, "--only", "sequential", "--requests", "1", "--report", "junit")
    suite = ET.fromstring(out)  # noqa: S314  # our own document
    assert (status, suite.get("failures"), suite.get("errors")) == (1, "0", "1")


async def test_markdown_tells_readings_wrong_answers_and_settings(check: Check) -> None:
    """What a ticket needs: all of it in one document."""
    async with emulator(*BUG) as server:
        _, out, _ = await check(server.url, "--requests", "6", "--concurrency", "2", "--report", "md")
    assert "| tool\\_calls |" not in out
    assert "| tool_calls | 142 | " in out
    assert "| sequential | seq-5 | wrong | lookup\\_key\\(\\{" in out
    assert "```yaml\n# merge into the pool's own spec:\nspec:\n  isolation:\n    level: scrub  # " in out


@pytest.mark.parametrize("form", ["md", "json", "junit"])
async def test_a_report_goes_to_a_file_and_the_screen_to_the_output(check: Check, form: str, tmp_path: Path) -> None:
    """A CI keeps the file, a person reads the job's log."""
    file = tmp_path / "report"
    async with emulator() as server:
        status, out, _ = await check(server.url, "--only", "schemas", "--report", form, "--output", str(file))
    assert status == 0
    assert "All 4 answers are right." in out
    assert file.read_text(encoding="utf-8").startswith({"md": "# Check", "json": "{", "junit": "<?xml"}[form])


@pytest.mark.parametrize(
    ("arguments", "told_why"),
    [(["--output", "{folder}/r"], "needs --report"), (["--report", "md", "--output", "{folder}"], "no file"),
     (["--report", "md", "--output", "{folder}/none/r"], "no file"),
     (["--report", "md", "--output", "{folder}/" + "r" * 300], "name too long")],
)  # fmt: skip
def test_an_output_that_cannot_be_is_refused_before_anything_is_sent(
    arguments: list[str], told_why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mistake is told at once: nobody listens at that address."""
    assert main(["check", "http://127.0.0.1:9", *(word.format(folder=tmp_path) for word in arguments)]) == 2
    assert told_why in capsys.readouterr().err


async def test_a_report_that_cannot_be_written_is_not_lost(check: Check, tmp_path: Path) -> None:
    """The folder went away meanwhile, as a link shows: the findings are printed, and the exit status is 2."""
    file = tmp_path / "report"
    file.symlink_to(tmp_path / "gone" / "report")
    async with emulator() as server:
        status, out, err = await check(server.url, "--only", "schemas", "--report", "json", "--output", str(file))
    assert (status, json.loads(out)["allRight"]) == (2, True)
    assert "No such file" in err


async def test_a_password_in_the_address_is_in_no_report(check: Check) -> None:
    """A report is passed on; the server is asked with the password all the same."""
    async with emulator() as server:
        address = server.url.replace("http://", "http://anna:secret@")
        status, out, err = await check(address, "--only", "schemas", "--json")
    assert (status, msgspec.json.decode(out, type=Report).url) == (0, server.url)
    assert "secret" not in out + err


def test_every_status_has_its_place_in_junit() -> None:
    """A status that junit forgot would pass a gate unseen."""
    found = report_of("text")
    findings = tuple(msgspec.structs.replace(found.findings[0], name=status, status=status) for status in Status)
    suite = ET.fromstring(junit(msgspec.structs.replace(found, findings=findings)))  # noqa: S314  # our own document
    assert {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")} == {
        "passed": [], "failed": ["failure"], "error": ["error"], "untested": ["skipped"], "noted": ["system-out"],
    }  # fmt: skip
