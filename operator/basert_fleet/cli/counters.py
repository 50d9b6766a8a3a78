"""How a server's /slots counts while it is healthy: readings after requests of every ending, and the rule they follow.

The requests are those of a worker's warm-up, and the rule is fitted by `core.calibration`, the very code that the judge
uses: what is found here is what a fleet would find.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from basert_fleet.cli.asking import OK, NoAnswer, Server
from basert_fleet.core.calibration import Baseline, Ending, NoFit, Reading, fit
from basert_fleet.engine.canary import CHAT_PATH, calibration_requests, canary_failure, canary_request
from basert_fleet.engine.response import ENDINGS

COUNTERS = "counters"
"""What `--only` and a report's findings call the readings of /slots."""


class CounterMode(StrEnum):
    """What the gap between the two counters of a healthy slot is."""

    EQUAL = "equal"
    """None."""
    CONSTANT = "constant"
    """The same after every ending."""
    COMPLETION = "completion"
    """It grows by one with each token of the answer."""
    ENDING = "ending"
    """Each ending has its own."""


class ReadingFound(msgspec.Struct, frozen=True, rename="camel"):
    """The settled slot after one request."""

    ending: Ending
    completion_tokens: int | None
    """Null where the server does not say, as after a hang-up."""
    cache_tokens: int
    cache_position: int


class CountersFound(msgspec.Struct, frozen=True, rename="camel"):
    """What the counters of a healthy slot do."""

    mode: CounterMode | None
    """Null where no rule was found."""
    canary_passed: bool | None
    """False: the tool call was answered wrongly, so the slot may have been contaminated and no rule is drawn from it.
    Null: it was not sent, or not answered."""
    slope: int | None
    """Tokens by which the gap grows with each token of the answer, 0 or 1."""
    intercepts: dict[Ending, int]
    """The gap after each ending, the slope's part left out; empty where no rule was found."""
    explanation: str
    """Why there is no rule, or what is missing of it; else empty."""
    readings: tuple[ReadingFound, ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found, and the rule itself."""

    found: CountersFound
    baseline: Baseline | None


async def calibrate(server: Server, model: str) -> Calibration:
    """Send one request for each way to end, look at the slot after each, and fit the rule.

    The canary comes first, as in a worker's warm-up: what follows must not continue its prefix.
    """
    taking = _Taking(server, model)
    if await server.settled() is None:
        return Calibration(_without_rule(_why_unreadable(server), taking), None)
    await taking.all_endings()
    fitted = fit(taking.readings)
    if taking.canary_passed is False:
        return Calibration(_without_rule("; ".join(taking.gaps), taking), None)
    if isinstance(fitted, NoFit):
        return Calibration(_without_rule("; ".join([*taking.gaps, fitted.explanation]), taking), None)
    found = CountersFound(
        mode=_mode(fitted),
        canary_passed=taking.canary_passed,
        slope=fitted.slope,
        intercepts=dict(fitted.intercepts),
        explanation="; ".join(taking.gaps),
        readings=taking.found,
    )
    return Calibration(found, fitted)


class _Taking:
    """The readings of one calibration, and why one is missing."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, model
        self.readings: list[Reading] = []
        self.gaps: list[str] = []
        self.canary_passed: bool | None = None

    @property
    def found(self) -> tuple[ReadingFound, ...]:
        return tuple(map(_reading_found, self.readings))

    async def all_endings(self) -> None:
        nonce = f"canary-{secrets.token_hex(6)}"
        canary = await self._read("tool call", canary_request(nonce, self._model))
        if canary is not None:
            failure = canary_failure(canary, nonce)
            self.canary_passed = failure is None
            self.gaps += [] if failure is None else [f"the canary failed, so the slot proves nothing: {failure}"]
        requests = calibration_requests(self._model)
        await self._read("length", requests.short_length)
        await self._read("length", requests.long_length)
        await self._read("stop", requests.stop)
        await self._read_after_hang_up(requests.cancelled)

    async def _read(self, what: str, body: bytes) -> bytes | None:
        """Take a reading, and return the answer's body if there is one."""
        try:
            response = await self._server.post(CHAT_PATH, body)
        except NoAnswer as error:
            self.gaps.append(f"{what}: {error}")
            return None
        if response.status_code != OK:
            self.gaps.append(f"{what}: HTTP {response.status_code}")
            return None
        ending, tokens = _ended(response.content)
        await self._note(what, ending, tokens)
        return response.content

    async def _read_after_hang_up(self, body: bytes) -> None:
        try:
            was_at_work = await self._server.hang_up(CHAT_PATH, body)
        except NoAnswer as error:
            self.gaps.append(f"hang-up: {error}")
            return
        if was_at_work:
            await self._note("hang-up", Ending.CANCELLED, None)
        else:
            await self._server.settled()
            self.gaps.append("hang-up: the server was not seen at work on the request any more")

    async def _note(self, what: str, ending: Ending, tokens: int | None) -> None:
        probe = await self._server.settled()
        if probe is None:
            self.gaps.append(f"{what}: /slots did not show an idle slot afterwards")
        else:
            self.readings.append(Reading(ending, tokens, probe))


def _mode(baseline: Baseline) -> CounterMode:
    if baseline.slope == 1:
        return CounterMode.COMPLETION
    gaps = set(baseline.intercepts.values())
    if gaps == {0}:
        return CounterMode.EQUAL
    return CounterMode.CONSTANT if len(gaps) == 1 else CounterMode.ENDING


def _reading_found(reading: Reading) -> ReadingFound:
    probe = reading.probe
    return ReadingFound(reading.ending, reading.completion_tokens, probe.cache_tokens, probe.cache_position)


def _without_rule(explanation: str, taking: _Taking) -> CountersFound:
    return CountersFound(None, taking.canary_passed, None, {}, explanation, taking.found)


def _why_unreadable(server: Server) -> str:
    if server.has_slots:
        return "/slots does not show one idle slot"
    return "the server has no /slots, as behind a fleet"


def _ended(body: bytes) -> tuple[Ending, int | None]:
    """Return how an answer ended and how many tokens it says it has."""
    try:
        decoded = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Ending.OTHER, None
    ending = ENDINGS.get(decoded.choices[0].finish_reason, Ending.OTHER) if decoded.choices else Ending.OTHER
    return ending, None if decoded.usage is None else decoded.usage.completion_tokens


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
