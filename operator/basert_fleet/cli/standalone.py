"""Gateway, planner and agent in one process: what `basert-fleet up` runs, and nothing that decides anything.

The order matters: the state directory (C25) and the ports first (the commonest mistakes are found before a model
loads), requests may wait while workers start (C28), and at the end requests first, then workers, then ports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

from basert_fleet.agent.agent import Agent
from basert_fleet.agent.state import StateDirectory
from basert_fleet.cli.attach import promises
from basert_fleet.cli.changes import described
from basert_fleet.cli.endpoint import DRAIN_SECONDS, STOPPING, EndpointSettings, FleetEndpoint
from basert_fleet.gateway.fleet import Fleet
from basert_fleet.telemetry.logs import FleetLog
from basert_fleet.wire.memory import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from basert_fleet.agent.attached import AttachedServer
    from basert_fleet.cli.signals import Interrupts
    from basert_fleet.telemetry.line_sink import LineSink

STOP_SECONDS = 20.0
"""Chosen: how long idle workers may take to exit before they are killed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one standalone fleet runs with."""

    endpoint: EndpointSettings
    state_dir: Path
    node: str
    """How this machine is called in status, metrics and logs."""
    attached: Mapping[str, AttachedServer] = field(default_factory=dict)
    """The workers, by name, that are servers which something else runs."""


async def serve(settings: Settings, interrupts: Interrupts, say: Callable[[str], None], lines: LineSink) -> bool:
    """Run the fleet until the first signal, then drain; say whether everything ended in its own time.

    `say` tells a person how it goes, `lines` takes the log; neither may wait or fail. However it ends, no worker
    process that it started is left; attached servers stay.

    Raises:
        StateDirectoryHeld: another fleet runs on the state directory.
        StateUnusable: the state directory cannot be used.
        ListenFailed: a port cannot be listened on.
    """
    state = StateDirectory(settings.state_dir)
    with state.held():
        return await _serve(settings, state, interrupts, say, lines)


async def _serve(
    settings: Settings, state: StateDirectory, interrupts: Interrupts, say: Callable[[str], None], lines: LineSink
) -> bool:
    log = FleetLog(lines)
    agent = Agent(settings.node, state, version=version("basert-fleet"), log=log.events, attached=settings.attached)
    fleet = Fleet(log)
    lines.on_dropped.append(fleet.metrics.log_lines_dropped.inc)
    endpoint = FleetEndpoint(settings.endpoint, fleet, say, attached=settings.attached)
    async with endpoint.listening():
        pools = settings.endpoint.fleet_file.first
        say(f"starting {', '.join(map(described, pools))}; logs in {state.logs}")
        if settings.attached:
            say(promises(settings.attached))
        try:
            fleet.apply(pools)
            _join(fleet, agent)
            await endpoint.run_until(interrupts.stop)
            say(STOPPING)
            return bool(await interrupts.unless_at_once(_wind_down(fleet, agent)))
        finally:
            await agent.close()
            fleet.close()


def _join(fleet: Fleet, agent: Agent) -> None:
    session = fleet.new_session()
    to_gateway, to_agent = connect(agent, session)
    session.bind(to_agent)
    agent.bind(to_gateway)


async def _wind_down(fleet: Fleet, agent: Agent) -> bool:
    finished = await fleet.drain(DRAIN_SECONDS)
    await agent.drain(STOP_SECONDS)
    return finished
