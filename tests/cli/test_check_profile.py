"""What `check` finds out about a server: its counters, its reuse, its first wrong answer; against real emulators."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import httpx
import msgspec
import pytest

from basert_fleet.cli import counters
from basert_fleet.cli.asking import Server
from basert_fleet.cli.counters import CounterMode, calibrate
from basert_fleet.cli.profile import Profile
from basert_fleet.cli.report import Report, Status
from basert_fleet.core.calibration import Baseline, Ending, Probe, Reading, fit
from basert_fleet.engine.canary import calibration_requests
from support.emulator import emulator

Check = Callable[..., Awaitable[tuple[int, str, str]]]
BUG = ("--sim-bug", "on", "--sim-batch-window", "0.1")  # wide enough for a busy machine: requests at once must overlap
PACE = ("--sim-tokens-per-second", "1000")
LONG_TOKENS = 3000  # at that pace, three seconds in which to hang up
MODES = tuple(CounterMode)
PROBE = Probe(is_processing=False, cache_tokens=9, cache_position=9)
GAPS = {
    CounterMode.EQUAL: dict.fromkeys(("stop", "tool_calls", "length", "cancelled"), 0),
    CounterMode.CONSTANT: dict.fromkeys(("stop", "tool_calls", "length", "cancelled"), 7),
    CounterMode.COMPLETION: {"stop": 0, "tool_calls": 0, "length": 0},
    CounterMode.ENDING: {"stop": 0, "tool_calls": 1, "length": -1, "cancelled": 1},
}
"""docs/emulator.md. With a slope, nothing is learnt of a hang-up: it does not say how many tokens there were."""


def read(out: str) -> Report:
    """Return what --report json printed."""
    return msgspec.json.decode(out, type=Report)


def statuses(found: Report) -> dict[str, Status]:
    """Return each finding's status by its name."""
    return {finding.name: finding.status for finding in found.findings}


def settings(found: Report) -> dict[str, object]:
    """Return the recommended value of each setting."""
    return {setting.path: setting.value for setting in found.recommendation.settings}


def profile_without_counters(found: Report) -> Profile:
    """Return what must be the same whatever the counters look like."""
    return msgspec.structs.replace(found.profile, counters=None)


@pytest.fixture
def long_to_hang_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the emulator's answer to the request that is hung up on long enough for a busy machine."""
    content = f"[[len={LONG_TOKENS}]] Count."
    body = {"model": "model", "messages": [{"role": "user", "content": content}], "stream": True}
    long = json.dumps(body | {"max_tokens": LONG_TOKENS}).encode()
    monkeypatch.setattr(
        counters, "calibration_requests", lambda model: calibration_requests(model)._replace(cancelled=long)
    )


@pytest.mark.usefixtures("long_to_hang_up_on")
@pytest.mark.parametrize("mode", MODES)
async def test_the_healthy_counters_are_fitted_after_every_ending(check: Check, mode: CounterMode) -> None:
    """Two lengths, a stop, a tool call and a hang-up give the mode and its gaps, and the readings are told."""
    async with emulator("--sim-counters", mode, *PACE) as server:
        _, out, _ = await check(server.url, "--only", "counters", "--report", "json")
        assert [record["cancelled"] for record in server.journal("end")] == [False] * 4 + [True]
    found = read(out).profile.counters
    assert found is not None
    assert (found.mode, found.slope) == (mode, int(mode is CounterMode.COMPLETION))
    assert {ending.value: gap for ending, gap in found.intercepts.items()} == GAPS[mode]
    assert [(reading.ending, reading.completion_tokens) for reading in found.readings] == [
        (Ending.TOOL_CALLS, 142), (Ending.LENGTH, 4), (Ending.LENGTH, 16), (Ending.STOP, 24), (Ending.CANCELLED, None),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
async def test_a_healthy_build_is_profiled_as_one(check: Check, mode: CounterMode) -> None:
    """Whatever its counters look like: prefixes are reused, nothing is wrong, nothing drifts, and little is needed."""
    async with emulator("--sim-counters", mode) as server:
        status, out, _ = await check(server.url, "--report", "json")
    found = read(out)
    assert status == 0
    assert set(statuses(found).values()) == {Status.PASSED, Status.NOTED, Status.UNTESTED}
    assert [name for name, status in statuses(found).items() if status is Status.UNTESTED] == ["fresh"]
    assert found.profile.counters is not None
    assert found.profile.counters.mode is mode
    assert msgspec.to_builtins(profile_without_counters(found)) == {
        "counters": None,
        "reuse": {"isReused": True, "firstPromptTokens": 274, "leastLaterPromptTokens": 9},
        "firstWrong": {
            "sequentialRequest": None, "sequentialAsked": 12, "concurrentSize": None, "concurrentTested": (2, 4),
        },
        "drift": {
            "toleranceTokens": 2, "judged": 12, "wrongShown": 0, "wrongHidden": 0, "rightDrifted": 0,
            "firstTokens": None,
        },
    }  # fmt: skip
    assert settings(found) == {
        "isolation.level": "verify", "isolation.requireSlots": True, "isolation.drift.action": "recycle",
        "isolation.drift.toleranceTokens": 2, "delivery.verify": "toolCalls",
    }  # fmt: skip
    assert found.recommendation.recycle_max_requests is None


@pytest.mark.parametrize("mode", MODES)
async def test_the_reports_build_is_profiled_as_such(check: Check, mode: CounterMode) -> None:
    """Whatever its counters look like: the sixth repeated request is the first wrong one, and its drift shows."""
    async with emulator(*BUG, "--sim-counters", mode) as server:
        status, out, _ = await check(server.url, "--requests", "8", "--concurrency", "2", "--report", "json")
    found = read(out)
    assert status == 1
    wanted = {"schemas": Status.PASSED, "completions": Status.PASSED, "cjk": Status.PASSED}
    wanted |= {"sequential": Status.FAILED, "concurrent-2": Status.FAILED, "fresh": Status.UNTESTED}
    assert wanted.items() <= statuses(found).items()
    assert msgspec.to_builtins(profile_without_counters(found)) == {
        "counters": None,
        "reuse": {"isReused": True, "firstPromptTokens": 274, "leastLaterPromptTokens": 9},
        "firstWrong": {
            "sequentialRequest": 6, "sequentialAsked": 8, "concurrentSize": None, "concurrentTested": (),
        },
        "drift": {
            "toleranceTokens": 2, "judged": 8, "wrongShown": 3, "wrongHidden": 0, "rightDrifted": 0,
            "firstTokens": 128,
        },
    }  # fmt: skip
    assert settings(found) == {
        "isolation.level": "scrub", "isolation.requireSlots": True, "isolation.drift.action": "recycle",
        "isolation.drift.toleranceTokens": 2, "delivery.verify": "full",
    }  # fmt: skip
    assert found.recommendation.recycle_max_requests == 2


async def test_requests_at_once_are_told_only_of_a_server_not_yet_found_wrong(check: Check) -> None:
    """By itself the shape shows at how many the server fails; nothing is said of what was not asked."""
    async with emulator(*BUG) as server:
        _, out, _ = await check(server.url, "--only", "concurrent-2", "--only", "concurrent-4", "--report", "json")
    found = read(out)
    assert (found.profile.first_wrong.concurrent_size, found.profile.first_wrong.concurrent_tested) == (2, (2,))
    assert "the server had been wrong before" in next(f.detail for f in found.findings if f.name == "concurrent-4")
    assert (found.profile.counters, found.profile.reuse, found.profile.drift) == (None, None, None)
    assert settings(found)["isolation.level"] == "scrub"


async def test_no_rule_is_drawn_from_a_server_that_was_wrong_already(check: Check) -> None:
    """The counters of a contaminated slot say nothing of a healthy one, and nothing is given up because of them."""
    async with emulator("--sim-fault", "contaminate:nth=1", "--sim-counters", "completion") as server:
        await check(server.url, "--only", "sequential", "--requests", "2")
        _, out, _ = await check(server.url, "--only", "counters", "--report", "json")
    found = read(out)
    assert found.profile.counters is not None
    assert (found.profile.counters.canary_passed, found.profile.counters.mode) == (False, None)
    assert len(found.profile.counters.readings) >= 4
    assert settings(found)["isolation.requireSlots"] is True


async def test_counters_that_look_healthy_prove_nothing_once_the_canary_failed() -> None:
    """Readings that a rule would fit are told, and no rule is drawn from them."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/slots":
            return httpx.Response(200, json=[{"is_processing": False, "cache_tokens": 9, "cache_position": 9}])
        asked = json.loads(request.content)
        if asked.get("stream"):
            return httpx.Response(200, stream=httpx.ByteStream(b"data: [DONE]\n\n"))
        choice = {"message": {"content": "no call"}, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": asked["max_tokens"]}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://server") as client:
        calibration = await calibrate(Server(client, "http://server", timeout_seconds=60), "model")
    assert isinstance(
        fit([Reading(r.ending, r.completion_tokens, PROBE) for r in calibration.found.readings]), Baseline
    )
    assert (calibration.baseline, calibration.found.mode, calibration.found.canary_passed) == (None, None, False)


async def test_reuse_is_seen_of_a_server_that_has_the_prefix_already(check: Check) -> None:
    """Asked a second time, already the first answer reports the rest of its prompt only."""
    only = ("--only", "sequential", "--requests", "2", "--report", "json")
    async with emulator() as server:
        await check(server.url, *only)
        _, out, _ = await check(server.url, *only)
    reuse = read(out).profile.reuse
    assert reuse is not None
    assert (reuse.is_reused, reuse.first_prompt_tokens, reuse.least_later_prompt_tokens) == (True, 9, 9)


async def test_a_server_without_slots_is_recommended_canaries_alone(check: Check) -> None:
    """What cannot be read cannot be required, and is untested rather than healthy."""
    async with emulator("--sim-slots", "off") as server:
        status, out, _ = await check(server.url, "--report", "json")
    found = read(out)
    assert status == 0
    assert (statuses(found)["counters"], statuses(found)["drift"]) == (Status.UNTESTED, Status.UNTESTED)
    assert settings(found)["isolation.requireSlots"] is False


async def test_the_total_time_ends_a_check_that_would_go_on(check: Check) -> None:
    """What is left is an error each, sent nowhere; a server that hangs costs no more than the limit."""
    async with emulator("--sim-fault", "hang") as server:
        status, out, _ = await check(
            server.url, "--only", "sequential", "--requests", "3", "--total-timeout", "0.3", "--report", "json"
        )
        assert len(server.journal("begin")) == 1
    found = read(out)
    assert status == 1
    assert [answer.got for answer in found.shapes[0].answers] == [
        "no answer before the time for the whole check was used up"
    ] * 3


async def test_the_profile_fits_on_a_screen(check: Check) -> None:
    """Without --report a person gets the table, the profile and the settings, and no more than 50 lines."""
    async with emulator(*BUG) as server:
        status, out, _ = await check(server.url)
    assert status == 1
    assert "healthy counters of /slots: equal" in out
    assert "reuse of a repeated prefix: reused, prompt_tokens 274 -> 9" in out
    assert "level: scrub  # request 6 of the repeated shape was the first wrong one" in out
    assert len(out.splitlines()) <= 50


@pytest.mark.parametrize("bug", [(), BUG], ids=["healthy", "bug"])
async def test_nothing_is_asked_that_could_load_or_unload(check: Check, bug: tuple[str, ...]) -> None:
    """Only chats and completions are sent, however the server answers."""
    async with emulator(*bug) as server:
        await check(server.url, "--requests", "6")
        assert {record["kind"] for record in server.journal("begin")} == {"chat", "completion"}
