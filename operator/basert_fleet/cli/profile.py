"""What kind of server it is: how its counters and its prefix cache behave, and when it first mixes requests up.

Drawn from what was counted already; nothing is sent from here. What a pool should do about it is decided in
`recommendation`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from basert_fleet.cli.answers import Outcome
from basert_fleet.cli.counters import Calibration, CountersFound
from basert_fleet.cli.findings import AnswerFound, ShapeFound
from basert_fleet.cli.shapes import CONCURRENT, SEQUENTIAL
from basert_fleet.core.api import DriftSpec
from basert_fleet.core.calibration import Baseline, Ending, Probe
from basert_fleet.core.isolation import shows_reuse
from basert_fleet.engine.canary import CHAT_PATH, lookup_key_request
from basert_fleet.engine.request import prepare
from basert_fleet.engine.response import ENDINGS

TOLERANCE_TOKENS = DriftSpec().tolerance_tokens
"""What a pool takes for normal unless it says otherwise: the judge of a default pool would see the same drift."""


class ReuseFound(msgspec.Struct, frozen=True, rename="camel"):
    """Whether the server reuses a prompt's prefix."""

    is_reused: bool
    """Whether far fewer prompt tokens were reported than the prompt has: as many as the first answer told, or as the
    judge estimates, whichever is more. A server that was in use before may reuse the prefix from the first request on.
    """
    first_prompt_tokens: int
    """Of the repeated request's first answer."""
    least_later_prompt_tokens: int


class FirstWrong(msgspec.Struct, frozen=True, rename="camel"):
    """When requests of the repeated shape were first answered wrongly."""

    sequential_request: int | None
    """Which of those sent one after another, from 1; null: none was wrong."""
    sequential_asked: int
    """How many were sent; 0: the shape was not asked for."""
    concurrent_size: int | None
    """The least number at once with a wrong answer; null: none had one, or none was tested by itself."""
    concurrent_tested: tuple[int, ...]
    """Sizes that were tested on a server not yet found wrong: only they tell anything of requests at once."""


class DriftFound(msgspec.Struct, frozen=True, rename="camel"):
    """Whether the counters tell right answers from wrong ones, by the rule of the healthy slot."""

    tolerance_tokens: int
    judged: int
    """Sequential answers whose drift could be told."""
    wrong_shown: int
    """Wrong ones with drift: the judge would have withheld them."""
    wrong_hidden: int
    """Wrong ones without."""
    right_drifted: int
    """Right ones with drift: either luck on a contaminated slot, or the rule is no good."""
    first_tokens: int | None
    """The first drift above the tolerance; null if there was none."""


class Profile(msgspec.Struct, frozen=True, rename="camel"):
    """One server, as far as it was looked at."""

    counters: CountersFound | None
    """Null where they were not asked for (--only)."""
    reuse: ReuseFound | None
    """Null where the server reports no prompt tokens, or the repeated request was sent less than twice."""
    first_wrong: FirstWrong
    drift: DriftFound | None
    """Null without a rule for the counters, or without sequential answers."""


def profile_of(
    calibration: Calibration | None, shapes: Sequence[ShapeFound], *, spoiled: frozenset[str] = frozenset()
) -> Profile:
    """Sum up; `spoiled` are the shapes that were sent to a server that had been wrong and was not restarted since."""
    sequential = next((shape for shape in shapes if shape.name == SEQUENTIAL), None)
    baseline = None if calibration is None else calibration.baseline
    return Profile(
        counters=None if calibration is None else calibration.found,
        reuse=None if sequential is None else _reuse(sequential),
        first_wrong=_first_wrong(sequential, [shape for shape in shapes if shape.name not in spoiled]),
        drift=None if sequential is None or baseline is None else _drift(sequential, baseline),
    )


def _reuse(shape: ShapeFound) -> ReuseFound | None:
    first, least = shape.first_prompt_tokens, shape.least_later_prompt_tokens
    if first is None or least is None:
        return None
    estimate = prepare(CHAT_PATH, lookup_key_request("seq-0", "model"), request_id="").expected_prompt_tokens
    return ReuseFound(shows_reuse(least, max(first, estimate or 0)), first, least)


def _first_wrong(sequential: ShapeFound | None, unspoiled: Sequence[ShapeFound]) -> FirstWrong:
    at_once = {len(shape.answers): shape for shape in unspoiled if shape.name.startswith(CONCURRENT)}
    return FirstWrong(
        sequential_request=None if sequential is None else sequential.first_wrong,
        sequential_asked=0 if sequential is None else len(sequential.answers),
        concurrent_size=min((size for size, shape in at_once.items() if shape.count(Outcome.WRONG)), default=None),
        concurrent_tested=tuple(sorted(at_once)),
    )


def _drift(shape: ShapeFound, baseline: Baseline) -> DriftFound | None:
    found = [(answer, drift) for answer in shape.answers if (drift := _drift_of(answer, baseline)) is not None]
    if not found:
        return None
    drifted = [(answer, drift) for answer, drift in found if drift > TOLERANCE_TOKENS]
    wrong = sum(answer.outcome is Outcome.WRONG for answer, _ in found)
    wrong_shown = sum(answer.outcome is Outcome.WRONG for answer, _ in drifted)
    return DriftFound(
        tolerance_tokens=TOLERANCE_TOKENS,
        judged=len(found),
        wrong_shown=wrong_shown,
        wrong_hidden=wrong - wrong_shown,
        right_drifted=sum(answer.outcome is Outcome.RIGHT for answer, _ in drifted),
        first_tokens=drifted[0][1] if drifted else None,
    )


def _drift_of(answer: AnswerFound, baseline: Baseline) -> int | None:
    if answer.settled is None or answer.outcome not in (Outcome.RIGHT, Outcome.WRONG):
        return None
    probe = Probe(
        is_processing=False, cache_tokens=answer.settled.cache_tokens, cache_position=answer.settled.cache_position
    )
    drift = baseline.drift(probe, ENDINGS.get(answer.finish_reason, Ending.OTHER), answer.completion_tokens)
    return drift if isinstance(drift, int) else None
