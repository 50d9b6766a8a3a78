"""A worker whose chats are rendered outside of its engine: what it needs to start, and what a refusal costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from basert_fleet.core.api import BasertPool
from basert_fleet.core.delivery import Outcome
from support.desk import SIM, chat, desk, pool_document
from support.emulator import read_journal

TEMPLATE = Path(__file__).resolve().parents[1] / "engine" / "templates" / "qwen_xml.jinja"


def rendered(template: Path = TEMPLATE, *, journal: Path | None = None, **spec: Any) -> BasertPool:
    """Return a pool of one emulated worker that renders by this template."""
    args = ["--sim-journal", str(journal)] if journal else []
    server = {"command": SIM, "args": args, "chat": "rendered", "chatTemplate": {"file": str(template)}}
    return pool_document(server=server, **spec)


async def test_all_that_a_rendered_worker_runs_are_completions(tmp_path: Path) -> None:
    """Its canaries, its calibration and its scrubs prove the way that its users' requests take."""
    journal = tmp_path / "journal"
    async with desk(tmp_path / "state") as front:
        front.want_pool(rendered(journal=journal, isolation={"level": "scrub", "canary": {"everyRequests": 1}}))
        await front.ask("a")
        await front.offer()
        assert front.statuses["qwen-0"].canaries_passed == 2
        assert front.statuses["qwen-0"].calibrated is True
    begun = [entry for entry in read_journal(journal) if entry["event"] == "begin"]
    assert len(begun) >= 8
    assert {entry["kind"] for entry in begun} == {"completion"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "cannot be read from"),
        ("{% if %}", "is no Jinja template: line 1"),
        ("{# <tool_call>{'name': … #}{{ raise_exception('never') }}", "cannot be rendered: The model's chat template"),
        ("{{ messages[0].content }}", "teaches no tool calls"),
    ],
)
async def test_a_template_that_is_of_no_use_offers_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, said: str
) -> None:
    """A pool that could serve nobody is found at its start, by its operator."""
    monkeypatch.setattr("basert_fleet.core.lifecycle.FAILURES_UNTIL_FATAL", 1)
    template = tmp_path / "template.jinja"
    if source is not None:
        template.write_text(source)
    async with desk(tmp_path / "state") as front:
        front.want_pool(rendered(template))
        await front.until(lambda: front.phases()[-1:] in (["FATAL"], ["READY"]))
        assert front.statuses["qwen-0"].phase == "FATAL"
        assert said in front.statuses["qwen-0"].message


async def test_a_request_that_cannot_be_rendered_is_its_senders_fault(tmp_path: Path) -> None:
    """It is rejected in the template's words, and the worker goes on as if it had not been (promise 7)."""
    async with desk(tmp_path) as front:
        front.want_pool(rendered())
        end = await front.end(await front.lease(chat("x", messages=[{"role": "system", "content": "alone"}])))
        assert end.outcome is Outcome.REJECTED
        assert "needs a message of the user" in end.error
        await front.offer()
        assert (front.statuses["qwen-0"].phase, front.statuses["qwen-0"].recycles) == ("READY", {})
