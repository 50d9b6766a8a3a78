"""What came of each shape: its answers, counted, as a part of the structure that `--report json` prints.

Field names are part of the interface (docs/check.md); they appear in camelCase. A field is added, never given another
meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

import msgspec

from basert_fleet.cli.answers import Answer, Outcome
from basert_fleet.cli.shapes import Shape


class Slot(msgspec.Struct, frozen=True):
    """One entry of a server's /slots, named as there."""

    cache_tokens: int
    cache_position: int

    def __str__(self) -> str:
        return f"{self.cache_tokens}/{self.cache_position}"


class AnswerFound(msgspec.Struct, frozen=True, rename="camel"):
    """One answer."""

    asked: str
    """The request's label; where a call was wanted, the value it had to carry."""
    wanted: str | None
    """The only right call; null where any whole text is right."""
    got: str
    outcome: Outcome
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    attempts: int | None
    """Header x-basert-attempts; null where the server is no fleet."""
    seconds: float
    settled: Slot | None
    """The server's only slot, idle again after this answer; null for answers at once, or where it cannot be read."""


class ShapeFound(msgspec.Struct, frozen=True, rename="camel"):
    """One shape."""

    name: str
    title: str
    right: int
    judged: int
    """Of the answers, those that were right, wrong or an error."""
    finish_reasons: dict[str, int]
    first_prompt_tokens: int | None
    least_later_prompt_tokens: int | None
    """Far below the first, of shapes that repeat a prefix: the server reuses it."""
    median_seconds: float
    max_seconds: float
    """Of single answers."""
    seconds: float
    """Of the whole shape."""
    slots_before: tuple[Slot, ...] | None
    """Null where /slots cannot be read, as through a fleet."""
    slots_after: tuple[Slot, ...] | None
    answers: tuple[AnswerFound, ...]

    @property
    def first_wrong(self) -> int | None:
        """Which request (from 1) got the first wrong answer; None if none did."""
        outcomes = [answer.outcome for answer in self.answers]
        return outcomes.index(Outcome.WRONG) + 1 if Outcome.WRONG in outcomes else None

    def count(self, outcome: Outcome) -> int:
        """Return how many answers came out so."""
        return sum(answer.outcome is outcome for answer in self.answers)


def shape_found(
    shape: Shape,
    answers: Sequence[Answer],
    seconds: float,
    *,
    slots_before: tuple[Slot, ...] | None,
    slots_after: tuple[Slot, ...] | None,
) -> ShapeFound:
    """Count one shape's answers, which are in the order of its questions."""
    each = [answer.seconds for answer in answers]
    prompts = [answer.prompt_tokens for answer in answers]
    return ShapeFound(
        name=shape.name,
        title=shape.title,
        right=sum(answer.outcome is Outcome.RIGHT for answer in answers),
        judged=sum(answer.outcome is not Outcome.UNJUDGED for answer in answers),
        finish_reasons=dict(Counter(answer.finish_reason for answer in answers if answer.finish_reason)),
        first_prompt_tokens=prompts[0],
        least_later_prompt_tokens=min((tokens for tokens in prompts[1:] if tokens is not None), default=None),
        median_seconds=round(median(each), 3),
        max_seconds=round(max(each), 3),
        seconds=round(seconds, 3),
        slots_before=slots_before,
        slots_after=slots_after,
        answers=tuple(map(_answer_found, answers)),
    )


def _answer_found(answer: Answer) -> AnswerFound:
    wanted, settled = answer.question.wanted, answer.settled
    return AnswerFound(
        asked=answer.question.label,
        wanted=None if wanted is None else str(wanted),
        got=answer.got,
        outcome=answer.outcome,
        finish_reason=answer.finish_reason,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        attempts=answer.attempts,
        seconds=round(answer.seconds, 3),
        settled=None if settled is None else Slot(settled.cache_tokens, settled.cache_position),
    )
