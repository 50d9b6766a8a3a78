"""The settings that `check` recommends: a pool takes them as they are pasted, and they do what they are there for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from basert_fleet.cli.answers import Answer, Outcome
from basert_fleet.cli.counters import CounterMode, CountersFound
from basert_fleet.cli.findings import ShapeFound, shape_found
from basert_fleet.cli.fleetfile import read_pools
from basert_fleet.cli.profile import DriftFound, FirstWrong, Profile
from basert_fleet.cli.recommendation import recommend
from basert_fleet.cli.report import Report
from basert_fleet.cli.shapes import Shape, seed_shapes
from basert_fleet.core.api import DriftAction, IsolationLevel
from basert_fleet.core.delivery import VerifyMode
from support.emulator import emulator
from support.fleet import fleet, pool

Check = Callable[..., Awaitable[tuple[int, str, str]]]
BUG = ("--sim-bug", "on", "--sim-batch-window", "0.1")
SHAPES = {shape.name: shape for shape in seed_shapes("m", sequential=8, concurrency=(2,))}
FRAME = """\
apiVersion: fleet.basert.dev/v1alpha1
kind: BasertPool
metadata: {name: pasted}
"""
MODEL = "  model: {name: m, path: m.base}\n"
READ = CountersFound(CounterMode.EQUAL, True, 0, {}, "", ())
UNREAD = CountersFound(None, None, None, {}, "the server has no /slots", ())
SPOILED = CountersFound(None, False, 0, {}, "the canary failed", ())
NOT_WRONG = FirstWrong(sequential_request=None, sequential_asked=8, concurrent_size=None, concurrent_tested=(2,))


def drift(*, wrong_shown: int = 0, wrong_hidden: int = 0, right_drifted: int = 0) -> DriftFound:
    """Return what eight sequential answers showed."""
    first = 128 if wrong_shown + right_drifted else None
    return DriftFound(2, 8, wrong_shown, wrong_hidden, right_drifted, first_tokens=first)


def asked(name: str, wrong_from: int | None = None) -> ShapeFound:
    """Return a shape whose answers are wrong from one (from 1) on."""
    shape: Shape = SHAPES[name]
    answers = [
        Answer(question, Outcome.WRONG if wrong_from and number >= wrong_from else Outcome.RIGHT, "an answer", 0.1)
        for number, question in enumerate(shape.questions, 1)
    ]
    return shape_found(shape, answers, 1.0, slots_before=None, slots_after=None)


def profile(
    *, counters: CountersFound | None = READ, first: FirstWrong = NOT_WRONG, found: DriftFound | None = None
) -> Profile:
    """Return a profile, healthy unless something is said of it."""
    return Profile(counters=counters, reuse=None, first_wrong=first, drift=found)


def wrong_at(request: int) -> FirstWrong:
    """Return the counts of a server that was wrong at this sequential request."""
    return msgspec.structs.replace(NOT_WRONG, sequential_request=request)


@pytest.mark.parametrize("first", [*range(1, 9), None])
@pytest.mark.parametrize("counters", [READ, UNREAD, SPOILED, None], ids=["read", "unread", "spoiled", "not asked"])
@pytest.mark.parametrize("found", [None, drift(), drift(wrong_shown=1), drift(wrong_hidden=3), drift(right_drifted=8)])
def test_every_recommendation_is_a_pool_that_is_taken(
    first: int | None, counters: CountersFound | None, found: DriftFound | None
) -> None:
    """The YAML completes a document, its values are those of the settings, and each of its lines tells a reason."""
    shapes = [asked("schemas"), asked("sequential", first)]
    asked_first = NOT_WRONG if first is None else wrong_at(first)
    recommended = recommend(profile(counters=counters, first=asked_first, found=found), shapes)
    (taken,) = read_pools(f"{FRAME}{recommended.yaml}{MODEL}".encode(), "fleet.yaml")
    chosen = {setting.path: setting.value for setting in recommended.settings}
    isolation = taken.spec.isolation
    assert chosen == {
        "isolation.level": isolation.level, "isolation.requireSlots": isolation.require_slots,
        "isolation.drift.action": isolation.drift.action,
        "isolation.drift.toleranceTokens": isolation.drift.tolerance_tokens,
        "delivery.verify": taken.spec.delivery.verify,
    }  # fmt: skip
    first_line, *others = recommended.yaml.splitlines()
    assert first_line == "# merge into the pool's own spec:"
    lines = [line for line in others if not line.endswith(":")]
    assert len(lines) == len(recommended.settings) + (first is not None)
    assert all("# " in line for line in lines)


@pytest.mark.parametrize(("first", "limit"), [(1, 1), (2, 1), (3, 1), (6, 2), (9, 4), (101, 50)])
def test_a_process_is_replaced_well_before_its_first_wrong_answer(first: int, limit: int) -> None:
    """Half of the requests that were right, and never none."""
    assert recommend(profile(first=wrong_at(first)), [asked("sequential", 1)]).recycle_max_requests == limit


HIDDEN = "3 wrong answers did not drift, so drift alone does not find such"


@pytest.mark.parametrize(
    ("found", "action", "reason"),
    [
        (drift(), DriftAction.RECYCLE, "none of 8 right answers drifted"),
        (drift(wrong_shown=1), DriftAction.RECYCLE, "drift showed 1 wrong answers"),
        (drift(wrong_shown=1, right_drifted=2), DriftAction.RECYCLE, "drift showed 1 wrong answers"),
        (drift(wrong_shown=1, wrong_hidden=3), DriftAction.RECYCLE, f"drift showed 1 wrong answers; {HIDDEN}"),
        (drift(wrong_hidden=3), DriftAction.RECYCLE, f"the default; {HIDDEN}"),
        (drift(right_drifted=2), DriftAction.CONFIRM, "2 right answers drifted and no wrong one: let a canary decide"),
        (drift(right_drifted=2, wrong_hidden=3), DriftAction.CONFIRM,
            f"2 right answers drifted and no wrong one: let a canary decide; {HIDDEN}"),
    ],
)  # fmt: skip
def test_what_drift_is_good_for_decides_its_action(found: DriftFound, action: DriftAction, reason: str) -> None:
    """A rule that only right answers break would recycle healthy workers; what it hides is told, whatever is chosen."""
    chosen = recommend(profile(found=found), [asked("sequential")]).settings[2]
    assert (chosen.path, chosen.value, chosen.reason) == ("isolation.drift.action", action, reason)


def test_what_was_not_tested_is_not_trusted() -> None:
    """Without sequential requests the careful level is chosen."""
    untested = FirstWrong(None, 0, None, ())
    settings = recommend(profile(counters=None, first=untested), [asked("schemas")]).settings
    assert [setting.value for setting in settings[:2]] == [IsolationLevel.SCRUB, True]


def test_any_wrong_answer_holds_everything() -> None:
    """Also if only requests at once were wrong, which a fleet never sends."""
    recommended = recommend(profile(), [asked("sequential"), asked("concurrent-2", 1)])
    assert recommended.settings[-1].value == VerifyMode.FULL


async def test_the_recommended_pool_of_a_broken_build_answers_all_right(check: Check, tmp_path: Path) -> None:
    """Checked, pasted and run by `up`: the very requests that broke the bare server are all right."""
    async with emulator(*BUG) as server:
        status, out, _ = await check(server.url, "--report", "json")
    assert status == 1
    spec = yaml.safe_load(msgspec.json.decode(out, type=Report).recommendation.yaml)["spec"]
    async with fleet(tmp_path, pool(*BUG, replicas=2, **spec)) as running:
        status, out, _ = await check(running.url, "--requests", "24", "--report", "json")
        assert running.overlaps() == []
    found = msgspec.json.decode(out, type=Report)
    assert (status, found.right) == (0, found.judged)
    assert "asked through a fleet" in found.recommendation.yaml
