"""Which settings a pool of such servers should have, each with its reason, as YAML to paste under a BasertPool.

The careful choice wins where something was not tested. No text of the server or of a person goes into the YAML.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from basert_fleet.cli.answers import Outcome
from basert_fleet.cli.findings import ShapeFound
from basert_fleet.cli.profile import Profile
from basert_fleet.cli.shapes import SCHEMAS
from basert_fleet.core.api import DriftAction, DriftSpec, IsolationLevel
from basert_fleet.core.delivery import VerifyMode

MARGIN = 2
"""Chosen: a process is replaced after half of the requests that it answered rightly here; real prompts vary more."""


class Setting(msgspec.Struct, frozen=True, rename="camel"):
    """One setting of a pool."""

    path: str
    """Under `spec`, with dots."""
    value: str | int | bool
    reason: str


class Recommendation(msgspec.Struct, frozen=True, rename="camel"):
    """What a pool of such servers should be told."""

    settings: tuple[Setting, ...]
    """Settings that this version honours."""
    recycle_max_requests: int | None
    """After how many requests a process should be replaced, with a margin; null: nothing speaks for a limit. This
    version has no setting for it, so the YAML holds a limit as a comment."""
    yaml: str
    """A document's part `spec:`, to paste or to merge into one that is there."""


def recommend(profile: Profile, shapes: Sequence[ShapeFound]) -> Recommendation:
    """Choose the settings."""
    is_wrong = any(shape.count(Outcome.WRONG) for shape in shapes)
    settings = (
        _level(profile, shapes),
        _require_slots(profile, shapes),
        _action(profile),
        Setting("isolation.drift.toleranceTokens", DriftSpec().tolerance_tokens, _TOLERANCE_REASON),
        _verify(is_wrong=is_wrong),
    )
    return Recommendation(settings, _max_requests(profile), _yaml(settings, _recycle_comments(profile)))


_TOLERANCE_REASON = "the default; the report's contaminated slot is off by 128 tokens"


def _level(profile: Profile, shapes: Sequence[ShapeFound]) -> Setting:
    first = profile.first_wrong
    path = "isolation.level"
    if first.sequential_request is not None:
        if any(shape.name == SCHEMAS and shape.count(Outcome.WRONG) for shape in shapes):
            return Setting(path, _SCRUB, "repeated requests were wrong; with another prompt between them too, here")
        return Setting(
            path, _SCRUB, f"request {first.sequential_request} of the repeated shape was the first wrong one"
        )
    if not first.sequential_asked:
        return Setting(path, _SCRUB, "repeated requests were not tested")
    return Setting(path, _VERIFY, f"none of {first.sequential_asked} repeated requests was wrong")


_SCRUB, _VERIFY = IsolationLevel.SCRUB.value, IsolationLevel.VERIFY.value


def _require_slots(profile: Profile, shapes: Sequence[ShapeFound]) -> Setting:
    path = "isolation.requireSlots"
    if any(answer.attempts is not None for shape in shapes for answer in shape.answers):
        return Setting(
            path, value=True, reason="asked through a fleet, which shows no /slots; check a worker by itself"
        )
    if profile.counters is None:
        return Setting(path, value=True, reason="the counters were not tested; true refuses what cannot be verified")
    if profile.counters.canary_passed is False:
        return Setting(
            path, value=True, reason="the canary failed before the shapes; restart the server and check again"
        )
    if profile.counters.mode is None:
        return Setting(path, value=False, reason="no rule for /slots' counters was found here, canaries alone must do")
    return Setting(path, value=True, reason=f"the counters follow a rule ({profile.counters.mode.value})")


def _action(profile: Profile) -> Setting:
    path, drift = "isolation.drift.action", profile.drift
    if drift is None:
        return Setting(path, DriftAction.RECYCLE.value, "the default; drift could not be measured here")
    told = f"; {drift.wrong_hidden} wrong answers did not drift, so drift alone does not find such"
    hidden = told if drift.wrong_hidden else ""
    if drift.right_drifted and not drift.wrong_shown:
        reason = f"{drift.right_drifted} right answers drifted and no wrong one: let a canary decide{hidden}"
        return Setting(path, DriftAction.CONFIRM.value, reason)
    if drift.wrong_shown:
        return Setting(path, DriftAction.RECYCLE.value, f"drift showed {drift.wrong_shown} wrong answers{hidden}")
    if hidden:
        return Setting(path, DriftAction.RECYCLE.value, f"the default{hidden}")
    return Setting(path, DriftAction.RECYCLE.value, f"none of {drift.judged} right answers drifted")


def _verify(*, is_wrong: bool) -> Setting:
    path = "delivery.verify"
    if is_wrong:
        return Setting(path, VerifyMode.FULL.value, "it answered wrongly: nothing may go out before its slot is judged")
    return Setting(path, VerifyMode.TOOL_CALLS.value, "no answer was wrong: text may stream, tool calls wait")


def _max_requests(profile: Profile) -> int | None:
    first = profile.first_wrong.sequential_request
    return None if first is None else max(1, (first - 1) // MARGIN)


def _recycle_comments(profile: Profile) -> tuple[str, ...]:
    """Return a limit as a comment, for a setting that this version does not have would be refused; none without one."""
    limit = _max_requests(profile)
    if limit is None:
        return ()
    reason = f"half of what came before request {profile.first_wrong.sequential_request}, the first wrong one"
    return (f"# recycle.maxRequests: {limit}  # {reason}; no setting yet",)


def _yaml(settings: Sequence[Setting], comments: Sequence[str]) -> str:
    """Nest the settings by their paths, which are in order; each line ends with its reason."""
    lines, open_groups = [_MERGE, "spec:"], list[str]()
    for setting in settings:
        *groups, key = setting.path.split(".")
        for depth, group in enumerate(groups):
            if open_groups[depth : depth + 1] != [group]:
                lines.append(f"{_INDENT * (depth + 1)}{group}:")
                open_groups[depth:] = [group]
        value = msgspec.json.encode(setting.value).decode().strip('"')
        lines.append(f"{_INDENT * (len(groups) + 1)}{key}: {value}  # {setting.reason}")
    return "\n".join([*lines, *(f"{_INDENT}{comment}" for comment in comments)]) + "\n"


_INDENT, _MERGE = "  ", "# merge into the pool's own spec:"
