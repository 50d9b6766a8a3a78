"""The order of one check: counters first, then the shapes, with a restart wherever one is possible and needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from basert_fleet.cli.answers import Outcome
from basert_fleet.cli.asking import Server
from basert_fleet.cli.counters import COUNTERS, calibrate
from basert_fleet.cli.findings import ShapeFound
from basert_fleet.cli.profile import profile_of
from basert_fleet.cli.report import Report, report
from basert_fleet.cli.restarting import Restarter
from basert_fleet.cli.shapes import FRESH, Shape, fresh_shape, seed_shapes
from basert_fleet.cli.talk import say
from basert_fleet.cli.visible import visible
from basert_fleet.core.errors import FleetError


class UnknownShape(FleetError):
    """`--only` names a shape that is not among those to be sent."""

    code = "unknown_shape"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"--only {name}: no such shape; there are {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How much is to be asked."""

    sequential: int
    concurrency: tuple[int, ...]
    only: tuple[str, ...] | None
    """None: everything."""


async def examine(server: Server, model: str, wishes: Wishes, restart: Restarter | None) -> Report:
    """Ask for everything that is wished and sum it up.

    With a restart, every shape that would meet a server already found wrong meets a fresh one instead; a failed canary
    of the counters finds it wrong as well.

    Raises:
        UnknownShape: a wished shape does not exist.
        RestartFailed: a restart did not give a fresh server.
    """
    shapes = _shapes(model, wishes, may_restart=restart is not None)
    names = [COUNTERS, *(shape.name for shape in shapes)]
    chosen = _chosen(names, wishes.only)
    calibration = None
    if COUNTERS in chosen:
        say(f"asking {visible(model)}: healthy counters of /slots")
        calibration = await calibrate(server, model)
    is_wrong = calibration is not None and calibration.found.canary_passed is False
    asked = _Asked(server, restart, is_wrong=is_wrong)
    for shape in shapes:
        if shape.name in chosen:
            say(f"asking {visible(model)}: {shape.title} ({len(shape.questions)} requests)")
            await asked.ask(shape)
    spoiled = frozenset(asked.spoiled)
    profile = profile_of(calibration, asked.found, spoiled=spoiled)
    return report(server.name, model, asked.found, profile, spoiled=spoiled)


class _Asked:
    """What has been asked of one server, and whether it can still be trusted to start clean."""

    def __init__(self, server: Server, restart: Restarter | None, *, is_wrong: bool) -> None:
        self._server, self._restart = server, restart
        self._is_wrong = is_wrong
        self.found: list[ShapeFound] = []
        self.spoiled: list[str] = []

    async def ask(self, shape: Shape) -> None:
        before_each = self._restart if shape.name == FRESH else None
        if self._is_wrong and self._restart is not None:
            if before_each is None:  # else its own first restart is enough
                await self._restart()
            self._is_wrong = False
        if self._is_wrong:
            self.spoiled.append(shape.name)
        found = await self._server.examine(shape, before_each=before_each)
        self._is_wrong = self._is_wrong or found.count(Outcome.WRONG) > 0
        self.found.append(found)


def _shapes(model: str, wishes: Wishes, *, may_restart: bool) -> tuple[Shape, ...]:
    """Return the shapes in their order.

    The fresh control comes first: its last request would otherwise be the first of the sequential ones' prefix.
    """
    shapes = seed_shapes(model, sequential=wishes.sequential, concurrency=wishes.concurrency)
    return (fresh_shape(model), *shapes) if may_restart else shapes


def _chosen(names: Sequence[str], only: Sequence[str] | None) -> frozenset[str]:
    if only is None:
        return frozenset(names)
    for name in only:
        if name not in names:
            raise UnknownShape(name, names)
    return frozenset(only)
